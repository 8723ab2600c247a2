-- Needs: n, m.
return redis.error_reply("MUXLOCKMISSING "..n)end
end
if type(m)=="table"and m["err"]and string.find(m["err"],"OOM",1,true)then return redis.error_reply("OOM no memory for the lock")end
