-- Piece: the server's clock: seconds, and microseconds within the second.

local time = redis.call("TIME")
