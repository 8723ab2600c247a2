local q,me=KEYS[2],ARGV[1]
local p=redis.call("LPOS",q,me)
local t=redis.call("PTTL",KEYS[1])
local is_new=not p
if is_new then
p=redis.call("LLEN",q)
if p<tonumber(ARGV[3]) then redis.call("RPUSH",q,me) else p=1023 end
end
local e=redis.pcall("PEXPIRE",q,ARGV[2])
if type(e)=="table" then
if is_new then redis.call("LREM",q,1,me) end
return e
end
local i,m=0,"a"
while not is_new and i<2 and p>1 do
local h=redis.call("LINDEX",q,i)
if redis.pcall("PUBLISH",h,m..KEYS[1])==0 then
redis.call("LREM",q,1,h)
p=p-1
if i==0 then m="p" else m="n" end
else
i=i+1
if m=="p" then m="n" end
end
end
if m=="p" and p==1 then redis.pcall("PUBLISH",redis.call("LINDEX",q,0),m..KEYS[1]) end
if t>1099511627773 then t=1099511627773 end
return p*1099511627776+t+2
