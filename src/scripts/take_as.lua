-- Takes a lock with a caller's value: `KindStep::Take` of `LockKind::Value` (K11).
-- KEYS and ARGV: see `as`.
-- Answers 1 if the lock was taken, else 0.
-- Needs: held, is_ours, companion, key, value, vote.

-- A companion without a token of ours belongs to another client.
if not held and (is_ours or redis.call("EXISTS", companion) == 0) then
  -- This removes the companion of an earlier lock.
  redis.call("PEXPIREAT", companion, 0)
  redis.call("HSET", companion, "muxlock", ARGV[1])
  redis.call("SET", key, value, "PX", ARGV[2])
  vote = 1
end
