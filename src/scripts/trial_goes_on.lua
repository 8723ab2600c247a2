return redis.error_reply("MUXLOCKMISSING "..n)end
end
