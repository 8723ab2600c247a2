-- Raises the lock's time to live if its key holds the token, and sets the key if it is absent:
-- `Command::Heal` (R27, R29).
-- KEYS: the lock. ARGV: the token, the time to live in milliseconds.
-- Answers 1 if the key held the token, 2 if it was set, else 0.

local held, vote = redis.call("GET", KEYS[1]), 0
if not held then
  redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2])
  vote = 2
elseif held == ARGV[1] then
  -- An extension shortens nothing (R27).
  if redis.call("PTTL", KEYS[1]) < tonumber(ARGV[2]) then
    redis.call("PEXPIRE", KEYS[1], ARGV[2])
  end
  vote = 1
end
