local time=redis.call("TIME")
local now=time[1]*1000+math.floor(time[2]/1000)
local ready_at=tonumber(redis.call("GET",KEYS[2]))
local wait=tonumber(ARGV[3])
if ready_at and ready_at-now<=wait then wait=math.max(0,ready_at-now)
else redis.call("DEL",KEYS[2]) redis.call("SET",KEYS[2],string.format("%.0f",now+wait)) end
