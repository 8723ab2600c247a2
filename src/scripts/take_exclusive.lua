-- Takes a write lock: `KindStep::Take` of `LockKind::Exclusive` (K4 to K6).
-- KEYS: the lock, the sign of a waiting writer. ARGV: the token, the time to live in milliseconds,
-- the time to live of the sign or 0.
-- Answers 1 if the lock was taken, else 0.

local key, sign, vote = KEYS[1], KEYS[2], 0
-- Read locks that have expired count for nothing (K5).
if redis.call("TYPE", key)["ok"] == "zset" and redis.call("PTTL", key) >= 0 then
  local clock = redis.call("TIME")
  local past = clock[1] * 1000 + math.floor(clock[2] / 1000)
  redis.call("ZREMRANGEBYSCORE", key, "-inf", string.format("%.0f", past))
end
-- A sign is empty; any other value is somebody's lock, and stays (K6).
local left = redis.pcall("GET", sign)
if redis.call("SET", key, ARGV[1], "NX", "PX", ARGV[2]) then
  if left == "" then redis.call("DEL", sign) end
  vote = 1
elseif ARGV[3] ~= "0" and (not left or left == "") then
  redis.call("SET", sign, "", "PX", ARGV[3])
end
