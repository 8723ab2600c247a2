-- Tries the commands of a kind of lock (R32), in front of the script that takes the first such
-- lock. `src/resp/trial.rs` replaces COUNT by the number of commands, and COMMANDS by branches that
-- call the command with the index `i`, and set `r` to its reply and `n` to its number. A command
-- that a server without memory refuses also sets `m` to its reply. So these names have one letter.
-- The pieces `missing` and `trial_first_ends` complete the loop.
-- Answers an error with the number of the first missing command; without one, the script goes on.

local i, n, r, m = 0, 0, 0, 0
while i < COUNT do
  i = i + 1
  COMMANDS()
