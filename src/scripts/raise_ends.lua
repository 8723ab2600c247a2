-- Piece: the end of `raise`. It lowers nothing.
-- Needs: counter, counters, bucket.

if counter < tonumber(ARGV[3]) then redis.call("HSET", counters, bucket, ARGV[3]) end
return 1
