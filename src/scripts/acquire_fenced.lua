-- Takes a lock and raises its counter to the proposal or more: `Command::AcquireFenced` (F6, F7).
-- KEYS: the lock, the hash of the counters. ARGV: the token, the time to live in milliseconds, the
-- bucket, the proposal.
-- Answers 1 if the counter has the proposal, the counter if that is another number, null if the
-- lock is held: `Answer::Numbered` in `src/proto/kind.rs`.
-- Needs: counter, counters, bucket, proposal, time.

local vote = redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2])
if vote then
  local micros, wanted = time[1] * 1000000 + time[2], tonumber(proposal)
  vote = 1
  if counter >= wanted or micros - 500000 >= wanted or wanted >= micros + 500000 then
    -- The proposal, but within half a second of this clock, and greater than the counter was.
    vote = math.max(counter + 1, math.min(math.max(wanted, micros - 500000), micros + 500000))
    proposal = string.format("%.0f", vote)
  end
  redis.call("HSET", counters, bucket, proposal)
end
