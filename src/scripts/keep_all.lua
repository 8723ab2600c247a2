-- Needs: first, wait.
local vote,i=1,first
while KEYS[i] do
local held=redis.pcall("GET",KEYS[i])
if not held and ARGV[3]=="1" then
if vote==1 then vote=2 end
elseif held~=ARGV[1] then vote=0 end
i=i+1
end
i=first
while vote>0 and KEYS[i] do
local left=redis.call("PTTL",KEYS[i])
if left~=-2 and left<tonumber(ARGV[2]) then redis.call("PEXPIRE",KEYS[i],ARGV[2]) end
i=i+1
end
i=first
while vote==2 and KEYS[i] do
redis.call("SET",KEYS[i],ARGV[1],"NX","PX",ARGV[2])
i=i+1
end
if wait>0 then return -wait end
return vote
