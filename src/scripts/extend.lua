-- Raises the lock's time to live if its key holds the token: `Command::Extend` (R25 to R29).
-- KEYS: the lock. ARGV: the token, the time to live in milliseconds.
-- Answers 1 if the key holds the token, else 0.

if redis.call("GET", KEYS[1]) ~= ARGV[1] then return 0 end
-- An extension shortens nothing (R27).
if redis.call("PTTL", KEYS[1]) < tonumber(ARGV[2]) then redis.call("PEXPIRE", KEYS[1], ARGV[2]) end
return 1
