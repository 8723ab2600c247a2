-- Needs: first, now, wait.
local k,intent,vote=KEYS[first],KEYS[first+1],0
if redis.call("TYPE",k)["ok"]=="zset"and redis.call("PTTL",k)>=0 then redis.call("ZREMRANGEBYSCORE",k,"-inf",string.format("%.0f",now)) end
local left=redis.pcall("GET",intent)
if redis.call("SET",k,ARGV[1],"NX","PX",ARGV[2]) then
if left==""then redis.call("DEL",intent) end
vote=1
elseif ARGV[3]~="0"and(not left or left=="")then redis.call("SET",intent,"","PX",ARGV[3]) end
if wait>0 then return -wait end
return vote
