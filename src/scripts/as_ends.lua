-- Piece: gives the lock and its companion the same end, and shortens nothing (K11).
-- Needs: vote, after, left, key, companion.

if vote > 0 then
  local at = string.format("%.0f", after + math.max(tonumber(ARGV[2]), left))
  redis.call("PEXPIREAT", key, at)
  redis.call("PEXPIREAT", companion, at)
end
