-- Deletes the lock's key if it holds the token: `Command::Release` (R10).
-- KEYS: the lock. ARGV: the token.
-- Answers 1 if the key was deleted, else 0.

if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0
