-- Needs: first, now, wait.
local k,vote,at=KEYS[first],0,now+tonumber(ARGV[2])
local kind=redis.call("TYPE",k)["ok"]
local may_heal=ARGV[3]=="1"and redis.pcall("GET",KEYS[first+1])~=""
if kind=="string"then
if redis.call("GET",k)==ARGV[1] then
at=math.max(at,now+redis.call("PTTL",k))
redis.call("DEL",k)
vote=1
end
elseif kind=="zset"and redis.call("PTTL",k)>=0 then
local score=tonumber(redis.call("ZSCORE",k,ARGV[1]))
if score and score>now then
at=math.max(at,score)
redis.call("PEXPIREAT",k,string.format("%.0f",at))
vote=1
elseif may_heal then vote=2 end
elseif kind=="none"and may_heal then vote=2 end
if vote>0 then
redis.call("ZADD",k,string.format("%.0f",at),ARGV[1])
redis.call("PEXPIREAT",k,redis.call("ZRANGE",k,-1,-1,"WITHSCORES")[2])
end
if wait>0 then return -wait end
return vote
