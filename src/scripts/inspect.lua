-- Shows who holds a lock: `Command::Inspect`.
-- KEYS: the lock.
-- Answers 0 if the key is absent, else the fingerprint of its value and its PTTL.

local value = redis.call("GET", KEYS[1])
if not value then return 0 end
-- The beginning of a token betrays nothing. A short value would be betrayed, so it is hashed.
if #value < 24 then value = redis.sha1hex(value) end
return {string.sub(value, 1, 8), redis.call("PTTL", KEYS[1])}
