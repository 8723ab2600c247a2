-- Piece: reads a counter of fencing tokens, a field of a hash: `Counter` in `src/proto/command.rs`
-- (F1, F2).
-- Needs: counters, bucket.

local counter = tonumber(redis.call("HGET", counters, bucket) or 0)
-- Lua counts exactly up to 9e15 and beyond (F5).
if not (counter and counter >= 0 and counter < 9000000000000000) then
  return redis.error_reply("ERR muxlock: bad fencing counter")
end
