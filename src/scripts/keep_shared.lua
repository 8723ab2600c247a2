-- Prolongs a read lock: `KindStep::Keep` and `Heal` of `LockKind::Shared` (K3 to K6). A write lock
-- with the token becomes a read lock (K7). Healing takes an absent one again, unless a writer
-- waits.
-- KEYS: the lock, the sign of a waiting writer. ARGV: the token, the time to live in milliseconds,
-- 1 to heal or 0.
-- Answers 1 if the lock was prolonged, 2 if it was taken again, else 0.
-- Needs: now.

local key, vote, at = KEYS[1], 0, now + tonumber(ARGV[2])
local kind = redis.call("TYPE", key)["ok"]
local may_heal = ARGV[3] == "1" and redis.pcall("GET", KEYS[2]) ~= ""
-- DEL or PEXPIREAT comes before ZADD, which a server without memory would refuse (K3).
if kind == "string" then
  if redis.call("GET", key) == ARGV[1] then
    at = math.max(at, now + redis.call("PTTL", key))
    redis.call("DEL", key)
    vote = 1
  end
elseif kind == "zset" and redis.call("PTTL", key) >= 0 then
  local score = tonumber(redis.call("ZSCORE", key, ARGV[1]))
  if score and score > now then
    at = math.max(at, score)
    redis.call("PEXPIREAT", key, string.format("%.0f", at))
    vote = 1
  elseif may_heal then
    vote = 2
  end
elseif kind == "none" and may_heal then
  vote = 2
end
if vote > 0 then
  redis.call("ZADD", key, string.format("%.0f", at), ARGV[1])
  -- The key lives as long as its longest member (K5).
  redis.call("PEXPIREAT", key, redis.call("ZRANGE", key, -1, -1, "WITHSCORES")[2])
end
