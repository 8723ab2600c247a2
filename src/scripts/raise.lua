-- Raises a counter if the lock's key holds the token: `Command::Confirm` (F8, F9). The pieces
-- `fence_counter` and `raise_ends` complete it.
-- KEYS: the lock, the hash of the counters. ARGV: the token, the bucket, the number.
-- Answers 1 if the key holds the token, else 0.

if redis.call("GET", KEYS[1]) ~= ARGV[1] then return 0 end
local counters, bucket = KEYS[2], ARGV[2]
