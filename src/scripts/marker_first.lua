-- Piece: the flush marker of a lock that is not one plain key is the first of KEYS, and the lock's
-- keys follow. The quarantine in milliseconds is the fourth of ARGV.

local first, marker, wait = 2, KEYS[1], tonumber(ARGV[4])
