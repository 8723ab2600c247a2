-- Takes a read lock: `KindStep::Take` of `LockKind::Shared` (K4 to K6). Read locks are members of a
-- sorted set: the token, and as its score the time at which it expires.
-- KEYS: the lock, the sign of a waiting writer. ARGV: the token, the time to live in milliseconds,
-- 0.
-- Answers 1 if the read lock was taken, else 0.
-- Needs: now.

local key, vote, at = KEYS[1], 0, string.format("%.0f", now + tonumber(ARGV[2]))
local left = redis.call("PTTL", key)
-- Our sorted sets expire. A sign is empty; any other value is somebody's lock.
if left ~= -1 and redis.pcall("GET", KEYS[2]) ~= "" then
  -- A key that is absent has -2.
  if left == -2 then
    vote = redis.call("ZADD", key, at, ARGV[1])
    redis.call("PEXPIREAT", key, at)
  elseif redis.call("TYPE", key)["ok"] == "zset" then
    redis.call("ZREMRANGEBYSCORE", key, "-inf", string.format("%.0f", now))
    vote = redis.call("ZADD", key, "NX", at, ARGV[1])
    if vote == 1 then
      -- The key lives as long as its longest member (K5).
      redis.call("PEXPIREAT", key, redis.call("ZRANGE", key, -1, -1, "WITHSCORES")[2])
    end
  end
end
