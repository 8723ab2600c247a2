-- Piece: the end of `trial_first`.
-- Needs: missing, n, m.

  if missing then return redis.error_reply("MUXLOCKMISSING " .. n) end
end
-- After the trial has written, the server would let the script write without memory.
if type(m) == "table" and m["err"] and string.find(m["err"], "OOM") then
  return redis.error_reply("OOM no memory for the lock")
end
