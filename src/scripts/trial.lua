-- Tries commands during the handshake (R32), see `src/resp/trial.rs`. The pieces `missing` and
-- `trial_ends` complete its loop.
-- ARGV: for each command its number (`ServerCommand`), the number of its words, the words.
-- Answers the number of the first missing command, or 0.

local i = 1
while ARGV[i] do
  local r = redis.pcall(unpack(ARGV, i + 2, i + 1 + ARGV[i + 1]))
