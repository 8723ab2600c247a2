-- Prolongs a lock with a caller's value: `KindStep::Keep` and `Heal` of `LockKind::Value` (K12).
-- Healing sets both keys if both are absent.
-- KEYS and ARGV: see `as`.
-- Answers 1 if the lock was there, 2 if it was set, else 0.
-- Needs: held, value, token, vote, companion, key.

if held == value and token == ARGV[1] then
  vote = 1
elseif ARGV[3] == "1" and not held and redis.call("EXISTS", companion) == 0 then
  redis.call("SET", key, value, "PX", ARGV[2])
  redis.call("HSET", companion, "muxlock", ARGV[1])
  vote = 2
end
