-- Piece: the flush marker of a plain lock is the second of KEYS. The quarantine in milliseconds is
-- the third of ARGV.

local marker, wait = KEYS[2], tonumber(ARGV[3])
