-- Undoes a failed take-over: `KindStep::Free` of `LockKind::TakeOver` (K14). It puts the former
-- token back and deletes nothing, because the former holder might still rely on the lock.
-- KEYS and ARGV: see `as`.
-- Answers 1 if the companion held the token, else 0.
-- Needs: is_ours, seen, companion, key, held, value, token, left, after, first, vote.

if is_ours and seen == ARGV[1] then
  -- The server refuses this and changes nothing. But it counts as a write, after which a server
  -- without memory lets the script HSET (K3).
  redis.pcall("PEXPIREAT", companion, "-")
  if held == value and token == ARGV[1] and left > 0 then
    redis.call("PEXPIREAT", key, string.format("%.0f", after + left))
    redis.call("PEXPIREAT", companion, string.format("%.0f", after + left))
  end
  redis.call("HSET", companion, "muxlock", ARGV[first + 4])
  vote = 1
end
