-- Piece: the server's clock in milliseconds.
-- Needs: time.

local now = time[1] * 1000 + math.floor(time[2] / 1000)
