-- Raises the time to live of several keys if each holds the token: `KindStep::Keep` and `Heal` of
-- `LockKind::Set` (K3). Healing sets absent keys.
-- KEYS: the locks. ARGV: the token, the time to live in milliseconds, 1 to heal or 0.
-- Answers 1 if every key held the token, 2 if some were set, else 0.

local vote, i = 1, 1
while KEYS[i] do
  local held = redis.pcall("GET", KEYS[i])
  if not held and ARGV[3] == "1" then
    if vote == 1 then vote = 2 end
  elseif held ~= ARGV[1] then
    vote = 0
  end
  i = i + 1
end
-- PEXPIRE comes before SET, because a server without memory refuses SET (K3).
i = 1
while vote > 0 and KEYS[i] do
  local left = redis.call("PTTL", KEYS[i])
  -- A key that is absent has -2. An extension shortens nothing (R27).
  if left ~= -2 and left < tonumber(ARGV[2]) then redis.call("PEXPIRE", KEYS[i], ARGV[2]) end
  i = i + 1
end
i = 1
while vote == 2 and KEYS[i] do
  redis.call("SET", KEYS[i], ARGV[1], "NX", "PX", ARGV[2])
  i = i + 1
end
