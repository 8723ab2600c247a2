-- Piece: checks the flush marker, which a flush deletes together with the locks: `FlushMarker` in
-- `src/proto/command.rs`. Its value is the time from which on the server may vote. Afterwards
-- `wait` is the number of milliseconds until then, 0 if the server may vote now.
-- Needs: marker, wait, now.

local ready_at = tonumber(redis.call("GET", marker))
if ready_at and ready_at - now <= wait then
  wait = math.max(0, ready_at - now)
else
  -- It is absent, or its time is too far ahead. DEL comes first, because a server without memory
  -- lets a script SET only after another write.
  redis.call("DEL", marker)
  redis.call("SET", marker, string.format("%.0f", now + wait))
end
