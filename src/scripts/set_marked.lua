-- Needs: wait.
local set=redis.call("SET",KEYS[1],ARGV[1],"NX","PX",ARGV[2])
if wait>0 then return -wait end
if set then return 1 end return 0
