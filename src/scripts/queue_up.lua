local q,me=KEYS[2],ARGV[1]
local p=redis.call("LPOS",q,me)
if not p then
p=redis.call("LLEN",q)
if p<tonumber(ARGV[3]) then redis.call("RPUSH",q,me) else p=1023 end
end
redis.call("PEXPIRE",q,ARGV[2])
local t=redis.call("PTTL",KEYS[1])
if t>1099511627773 then t=1099511627773 end
return p*1099511627776+t+2
