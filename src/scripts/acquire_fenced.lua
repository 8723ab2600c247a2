local c=tonumber(redis.call("HGET",KEYS[2],ARGV[3])or 0)
local p=tonumber(ARGV[4])
local t=redis.call("TIME")
if not(c and c>=0 and c<9000000000000000)then return redis.error_reply("ERR muxlock: bad fencing counter")end
if not redis.call("SET",KEYS[1],ARGV[1],"NX","PX",ARGV[2])then return false end
local n=t[1]*1000000+t[2]
if c<p and n-500000<p and p<n+500000 then redis.call("HSET",KEYS[2],ARGV[3],ARGV[4])return 1 end
c=math.max(c+1,math.min(math.max(p,n-500000),n+500000))
redis.call("HSET",KEYS[2],ARGV[3],string.format("%.0f",c))
return c
