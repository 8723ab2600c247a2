-- Reads the marker of a database, and writes it where it is absent: `Command::Marker`.
-- KEYS: the marker. ARGV: a random number of 16 digits.
-- Answers the marker: `!`, the random number and the time of who has written it, in microseconds;
-- null if it cannot be written.
-- Needs: time.

local found = redis.pcall("GET", KEYS[1])
if not found then
  local micros = string.format("%.0f", time[1] * 1000000 + time[2])
  redis.pcall("SET", KEYS[1], "!" .. ARGV[1] .. micros)
  found = redis.pcall("GET", KEYS[1])
end
return found
