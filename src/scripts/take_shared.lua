-- Needs: first, now, wait.
local k,vote=KEYS[first],0
local kind=redis.call("TYPE",k)["ok"]
if(kind=="none"or kind=="zset"and redis.call("PTTL",k)>=0)and redis.pcall("GET",KEYS[first+1])~=""then
redis.call("ZREMRANGEBYSCORE",k,"-inf",string.format("%.0f",now))
if not redis.call("ZSCORE",k,ARGV[1]) then
redis.call("ZADD",k,string.format("%.0f",now+tonumber(ARGV[2])),ARGV[1])
redis.call("PEXPIREAT",k,redis.call("ZRANGE",k,-1,-1,"WITHSCORES")[2])
vote=1
end
end
if wait>0 then return -wait end
return vote
