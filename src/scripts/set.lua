-- Does what `SET key token NX PX ttl` does: `Command::Acquire` with a flush marker (R3).
-- KEYS: the lock, the marker. ARGV: the token, the time to live in milliseconds, the quarantine.
-- Answers 1 if the key was set, else 0.

local vote = redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) and 1 or 0
