-- Releases a read lock, or the write lock that it was: `KindStep::Free` of `LockKind::Shared` (K3,
-- K7).
-- KEYS: the lock, and one that it does not need. ARGV: the token, and two that it does not need.
-- Answers 1 if the lock was released, else 0.

local key = KEYS[1]
local kind = redis.call("TYPE", key)["ok"]
if kind == "string" and redis.call("GET", key) == ARGV[1] then return redis.call("DEL", key) end
if kind ~= "zset" or redis.call("ZREM", key, ARGV[1]) == 0 then return 0 end
-- The key lives as long as its longest member (K5).
local last = redis.call("ZRANGE", key, -1, -1, "WITHSCORES")
if last[2] then redis.call("PEXPIREAT", key, last[2]) end
return 1
