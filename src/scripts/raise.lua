if redis.call("GET",KEYS[1])~=ARGV[1]then return 0 end
local c=tonumber(redis.call("HGET",KEYS[2],ARGV[2])or 0)
if not(c and c>=0 and c<9000000000000000)then return redis.error_reply("ERR muxlock: bad fencing counter")end
if c<tonumber(ARGV[3])then redis.call("HSET",KEYS[2],ARGV[2],ARGV[3])end
return 1
