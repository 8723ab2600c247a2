local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ready_at = tonumber(redis.call('get', KEYS[1]))
if not ready_at or ready_at - now > tonumber(ARGV[1]) then
  redis.call('set', KEYS[1], string.format('%.0f', now + ARGV[1]))
  return tonumber(ARGV[1])
end
return math.max(0, ready_at - now)
