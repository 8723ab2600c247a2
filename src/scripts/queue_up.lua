-- Takes a position in the queue for a lock, or keeps it: `Wait::QueueUp` (W5, W10, W14).
-- KEYS: the lock, the queue. ARGV: the engine's channel, for how many milliseconds the queue lives,
-- the most positions.
-- Answers the position times 2^40, plus the lock's PTTL, plus 2.
-- The letters that it publishes are those of `Wakeup` in `src/proto/command.rs`.

local lock, queue, me = KEYS[1], KEYS[2], ARGV[1]
local position = redis.call("LPOS", queue, me)
local left = redis.call("PTTL", lock)
local is_new = not position
if is_new then
  position = redis.call("LLEN", queue)
  -- In a full queue the answer is `PLACE_NONE` of `src/proto/wait/entry.rs`.
  if position < tonumber(ARGV[3]) then redis.call("RPUSH", queue, me) else position = 1023 end
end
-- Without the right to PEXPIRE, a new entry would stay for ever.
local prolonged = redis.pcall("PEXPIRE", queue, ARGV[2])
if type(prolonged) == "table" then
  if is_new then redis.call("LREM", queue, 1, me) end
  return prolonged
end
-- An engine behind the second that asks again removes those of the first two that have ended (W10).
local i, letter = 0, "a"
while not is_new and i < 2 and position > 1 do
  local other = redis.call("LINDEX", queue, i)
  if redis.pcall("PUBLISH", other, letter .. lock) == 0 then
    redis.call("LREM", queue, 1, other)
    position = position - 1
    -- The next one has moved up: it is notified of that instead of being asked.
    if i == 0 then letter = "p" else letter = "n" end
  else
    i = i + 1
    if letter == "p" then letter = "n" end
  end
end
-- This engine has become the second, and the loop ended before it notified the new first one.
if letter == "p" and position == 1 then
  redis.pcall("PUBLISH", redis.call("LINDEX", queue, 0), letter .. lock)
end
if left > 1099511627773 then left = 1099511627773 end
return position * 1099511627776 + left + 2
