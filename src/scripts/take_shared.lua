local k,vote=KEYS[first],0
local kind=redis.call("TYPE",k)["ok"]
if(kind=="none"or kind=="zset"and redis.call("PTTL",k)>=0)and redis.pcall("GET",KEYS[first+1])~="intent"then
redis.call("ZREMRANGEBYSCORE",k,"-inf",string.format("%.0f",now))
vote=redis.call("ZADD",k,"NX",string.format("%.0f",now+tonumber(ARGV[2])),ARGV[1])
redis.call("PEXPIREAT",k,redis.call("ZRANGE",k,-1,-1,"WITHSCORES")[2])
end
if wait>0 then return -wait end
return vote
