-- Needs: time, wait.
local c=tonumber(redis.call("HGET",KEYS[3],ARGV[4])or 0)
local p=tonumber(ARGV[5])
if not(c and c>=0 and c<9000000000000000)then return redis.error_reply("ERR muxlock: bad fencing counter")end
local set=redis.call("SET",KEYS[1],ARGV[1],"NX","PX",ARGV[2])
local n=time[1]*1000000+time[2]
if set then c=math.max(c+1,math.min(math.max(p,n-500000),n+500000))
redis.call("HSET",KEYS[3],ARGV[4],string.format("%.0f",c)) end
if wait>0 then return -wait end
if not set then return 0 end
if c==p then return 1 end return c
