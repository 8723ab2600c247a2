local k,q,r,i=KEYS[1],KEYS[2],0,0
if redis.call("GET",k)==ARGV[2] then r=redis.call("DEL",k) end
if ARGV[3]=="1" then
redis.call("LREM",q,1,ARGV[1])
while i<2 do
local h=redis.call("LINDEX",q,i)
if not h then break end
if redis.call("PUBLISH",h,(i==0 and "g" or "n")..k)==0 then redis.call("LREM",q,1,h) else i=i+1 end
end
end
return r+2*redis.call("LLEN",q)
