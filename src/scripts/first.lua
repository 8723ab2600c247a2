-- Piece: without a flush marker, the keys of a lock begin at the first.

local first = 1
