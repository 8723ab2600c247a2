-- Takes a read lock: `KindStep::Take` of `LockKind::Shared` (K4 to K6). Read locks are members of a
-- sorted set: the token, and as its score the time at which it expires.
-- KEYS: the marker if there is one, the lock, the sign of a waiting writer. ARGV: the token, the
-- time to live in milliseconds, 0, the quarantine.
-- Answers 1 if the read lock was taken, else 0.
-- Needs: first, now.

local key, vote = KEYS[first], 0
local kind = redis.call("TYPE", key)["ok"]
-- Our sorted sets expire. A sign is empty; any other value is somebody's lock.
if (kind == "none" or kind == "zset" and redis.call("PTTL", key) >= 0)
  and redis.pcall("GET", KEYS[first + 1]) ~= "" then
  redis.call("ZREMRANGEBYSCORE", key, "-inf", string.format("%.0f", now))
  if not redis.call("ZSCORE", key, ARGV[1]) then
    redis.call("ZADD", key, string.format("%.0f", now + tonumber(ARGV[2])), ARGV[1])
    -- The key lives as long as its longest member (K5).
    redis.call("PEXPIREAT", key, redis.call("ZRANGE", key, -1, -1, "WITHSCORES")[2])
    vote = 1
  end
end
