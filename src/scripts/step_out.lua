local k,q,me,i=KEYS[1],KEYS[2],ARGV[1],0
local p=redis.call("LPOS",q,me)
local first=redis.call("EXISTS",k)==1 and "p" or "g"
if ARGV[2]=="1" then
local h=redis.call("LINDEX",q,0)
redis.call("PEXPIRE",q,ARGV[3])
if h~=me then
if p then redis.call("LREM",q,1,me) end
redis.call("LPUSH",q,me)
end
if not h then
redis.call("PEXPIRE",q,ARGV[3])
elseif h~=me then
redis.call("PUBLISH",h,"o"..k)
redis.call("LREM",q,1,h)
end
i=1
elseif not p then
return 0
else
redis.call("LREM",q,1,me)
if p>1 then return 0 end
i=p
end
while i<2 do
local h=redis.call("LINDEX",q,i)
if not h then break end
if redis.call("PUBLISH",h,(i==0 and first or "n")..k)==0 then redis.call("LREM",q,1,h) else i=i+1 end
end
return 0
