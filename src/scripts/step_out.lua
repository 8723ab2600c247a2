-- Leaves the queue, or takes its first position: `Wait::StepOut` (W11, W12).
-- KEYS: the lock, the queue. ARGV: the engine's channel, `Step`: 1 for the first position or 0 to
-- leave, for how many milliseconds the queue lives.
-- Answers 0.
-- The letters that it publishes are those of `Wakeup` in `src/proto/command.rs`.

local lock, queue, me, i = KEYS[1], KEYS[2], ARGV[1], 0
local position = redis.call("LPOS", queue, me)
local letter = redis.call("EXISTS", lock) == 1 and "p" or "g"
if ARGV[2] == "1" then
  local other = redis.call("LINDEX", queue, 0)
  redis.call("PEXPIRE", queue, ARGV[3])
  if other ~= me then
    if position then redis.call("LREM", queue, 1, me) end
    redis.call("LPUSH", queue, me)
  end
  if not other then
    -- The queue was absent at the first PEXPIRE.
    redis.call("PEXPIRE", queue, ARGV[3])
  elseif other ~= me then
    -- The former first one slept, and loses its position (W11).
    redis.call("PUBLISH", other, "o" .. lock)
    redis.call("LREM", queue, 1, other)
  end
  i = 1
elseif not position then
  return 0
else
  redis.call("LREM", queue, 1, me)
  -- The first two stay the first two.
  if position > 1 then return 0 end
  i = position
end
-- Notifies the new first and second ones. An entry without a listener is removed.
while i < 2 do
  local other = redis.call("LINDEX", queue, i)
  if not other then break end
  if redis.call("PUBLISH", other, (i == 0 and letter or "n") .. lock) == 0 then
    redis.call("LREM", queue, 1, other)
  else
    i = i + 1
  end
end
return 0
