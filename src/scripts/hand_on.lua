-- Releases a lock and notifies the next clients in its queue: `Wait::ReleaseAtQueue` (R10, W7).
-- KEYS: the lock, the queue. ARGV: the engine's channel, the token, `Notify`: 1 to notify, else 0.
-- Answers 1 if the lock's key was deleted, else 0, plus twice the length of the queue. If the
-- length is unknown: -1 if the key was deleted, else the error.
-- The letters that it publishes are those of `Wakeup` in `src/proto/command.rs`.
-- An error about the queue must not undo the release, so commands on the queue are `pcall`.

local lock, queue, deleted, done, i = KEYS[1], KEYS[2], 0, 0, 0
local held = redis.pcall("GET", lock)
if held == ARGV[2] then
  deleted = redis.call("DEL", lock)
elseif type(held) == "table" then
  -- A key of another type does not hold the token. Any other error is the answer.
  local kind = redis.pcall("TYPE", lock)["ok"]
  if not kind or kind == "string" then return held end
end
if ARGV[3] == "1" then
  done = redis.pcall("LREM", queue, 1, ARGV[1])
  while i < 2 and type(done) == "number" do
    local other = redis.pcall("LINDEX", queue, i)
    if not other then break end
    if type(other) == "table" then
      done = other
      break
    end
    done = redis.pcall("PUBLISH", other, (i == 0 and "g" or "n") .. lock)
    -- Without a listener, the engine has ended.
    if done == 0 then done = redis.pcall("LREM", queue, 1, other) else i = i + 1 end
  end
end
if type(done) == "number" then done = redis.pcall("LLEN", queue) end
if type(done) == "number" then return deleted + 2 * done end
if deleted == 1 then return -1 end
return done
