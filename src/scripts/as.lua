-- Piece: looks at a lock with a caller's value, and at its companion, the hash that has the token
-- of the attempt (K11, K12). Afterwards `token` is that token, or zeros if the lock has none.
-- KEYS: the lock, the companion. ARGV: the token, the time to live in milliseconds, 1 to heal or 0,
-- the value.

local key, companion, value = KEYS[1], KEYS[2], ARGV[4]
local held, seen = redis.pcall("GET", key), redis.pcall("HGET", companion, "muxlock")
local ends, left, vote = redis.call("PTTL", companion), redis.call("PTTL", key), 0
local is_ours = type(seen) == "string" and string.len(seen) == 40
local token = "0000000000000000000000000000000000000000"
-- The error is not about the type of the companion: the user lacks a right.
if type(seen) == "table" and redis.call("EXISTS", companion) == 0 then return seen end
-- Both must expire at the same moment (K12). Time can pass between two PTTL.
if is_ours and ends >= left and left >= redis.call("PTTL", companion) then token = seen end
