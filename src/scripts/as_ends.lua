-- Needs: vote, now, ttl, left, k, c, wait.
if vote>0 then
local at=string.format("%.0f",now+math.max(ttl,left))
redis.call("PEXPIREAT",k,at)
redis.call("PEXPIREAT",c,at)
end
if wait>0 then return -wait end
return vote
