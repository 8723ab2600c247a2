-- Needs: wait.
local held=redis.call("GET",KEYS[1])
local vote=0
if not held then redis.call("SET",KEYS[1],ARGV[1],"NX","PX",ARGV[2]) vote=2 end
if held==ARGV[1] then vote=1
if redis.call("PTTL",KEYS[1])<tonumber(ARGV[2]) then redis.call("PEXPIRE",KEYS[1],ARGV[2]) end end
if wait>0 then return -wait end return vote
