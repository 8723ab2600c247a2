-- Deletes those of several keys that hold the token: `KindStep::Free` of `LockKind::Set` (K3).
-- KEYS: the locks. ARGV: the token, and two that it does not need.
-- Answers 1 if every key held the token, else 0.

local vote, i = 1, 1
while KEYS[i] do
  if redis.pcall("GET", KEYS[i]) == ARGV[1] then redis.call("DEL", KEYS[i]) else vote = 0 end
  i = i + 1
end
