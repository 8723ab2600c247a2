-- Takes one of several keys: `KindStep::Take` of `LockKind::Slot` (K8).
-- KEYS: the slots. ARGV: the token, the time to live in milliseconds, the index of the slot.
-- Answers 1 if the slot was taken, else 2 plus 2^index of each free slot.

local vote, bit, i = 2, 1, 1
local got = redis.call("SET", KEYS[1 + tonumber(ARGV[3])], ARGV[1], "NX", "PX", ARGV[2])
while not got and KEYS[i] do
  if redis.call("EXISTS", KEYS[i]) == 0 then vote = vote + bit end
  bit = bit * 2
  i = i + 1
end
if got then vote = 1 end
