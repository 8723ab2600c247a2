-- Needs: first, time, now.
local k,c,ttl,value=KEYS[first],KEYS[first+1],tonumber(ARGV[2]),ARGV[first+3]
local held,seen=redis.pcall("GET",k),redis.pcall("HGET",c,"muxlock")
local ends,left,vote=redis.call("PTTL",c),redis.call("PTTL",k),0
local is_ours,token=type(seen)=="string"and string.len(seen)==40,"0000000000000000000000000000000000000000"
if type(seen)=="table"and redis.call("EXISTS",c)==0 then return seen end
if is_ours and ends>=left and left>=redis.call("PTTL",c) then token=seen end
time=redis.call("TIME")
now=time[1]*1000+math.floor(time[2]/1000)+1
