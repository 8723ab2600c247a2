-- Takes a lock over from its former holder: `KindStep::Take` of `LockKind::TakeOver` (K14).
-- KEYS and ARGV: see `as`.
-- Answers 1 if the lock was taken over, else 0.
-- Needs: held, value, token, first, left, is_ours, companion, vote.

if held == value and token == ARGV[first + 4] and left >= 0
  and (is_ours or redis.call("EXISTS", companion) == 0) then
  redis.call("HSET", companion, "muxlock", ARGV[1])
  vote = 1
end
