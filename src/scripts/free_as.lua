-- Releases a lock with a caller's value: `KindStep::Free` of `LockKind::Value` (K12, K13). A token
-- of zeros releases a lock that has none.
-- KEYS and ARGV: see `as`.
-- Answers 1 if the lock was deleted, else 0.
-- Needs: held, value, token, vote, key, companion, is_ours, seen.

if held == value and token == ARGV[1] then vote = redis.call("DEL", key) end
if is_ours and (vote == 1 or seen == ARGV[1]) then redis.call("DEL", companion) end
