local k,q,me,i=KEYS[1],KEYS[2],ARGV[1],0
local p=redis.call("LPOS",q,me)
if p then redis.call("LREM",q,1,me) end
if ARGV[2]=="1" then
if p~=0 then
local h=redis.call("LPOP",q)
if h then redis.call("PUBLISH",h,"o"..k) end
end
redis.call("LPUSH",q,me)
redis.call("PEXPIRE",q,ARGV[3])
i=1
elseif not p or p>1 then
return 0
else
i=p
end
local first=redis.call("EXISTS",k)==1 and "p" or "g"
while i<2 do
local h=redis.call("LINDEX",q,i)
if not h then break end
if redis.call("PUBLISH",h,(i==0 and first or "n")..k)==0 then redis.call("LREM",q,1,h) else i=i+1 end
end
return 0
