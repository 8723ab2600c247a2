-- Piece: the server's clock in milliseconds after `as` has read `left`, rounded up. So `after +
-- left` is not earlier than the end of the key.

local clock = redis.call("TIME")
local after = clock[1] * 1000 + math.floor(clock[2] / 1000) + 1
