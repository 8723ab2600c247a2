-- Takes several keys if all are free: `KindStep::Take` of `LockKind::Set` (K1, K2).
-- KEYS: the locks. ARGV: the token, the time to live in milliseconds, 0.
-- Answers 1 if the keys were taken, else 2 plus the index of the held key that lives longest.

local longest, held, i = -1, 0, 1
local is_free = redis.call("EXISTS", unpack(KEYS, 1)) == 0
while not is_free and KEYS[i] do
  local left = redis.call("PTTL", KEYS[i])
  -- This key never expires. One that is absent has -2.
  if left == -1 then left = 9007199254740991 end
  if left > longest then
    longest = left
    held = i
  end
  i = i + 1
end
i = 1
while held == 0 and KEYS[i] do
  redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
  i = i + 1
end
local vote = held + 1
