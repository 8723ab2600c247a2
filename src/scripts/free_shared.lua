local k=KEYS[1]
local kind=redis.call("TYPE",k)["ok"]
if kind=="string"and redis.call("GET",k)==ARGV[1] then return redis.call("DEL",k) end
if kind~="zset"or redis.call("ZREM",k,ARGV[1])==0 then return 0 end
local last=redis.call("ZRANGE",k,-1,-1,"WITHSCORES")
if last[2] then redis.call("PEXPIREAT",k,last[2]) end
return 1
