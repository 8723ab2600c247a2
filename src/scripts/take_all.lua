-- Needs: first, wait.
local worst,index,i=-1,0,first
while KEYS[i] do
if redis.call("EXISTS",KEYS[i])==1 then
local left=redis.call("PTTL",KEYS[i])
if left<0 then left=9007199254740991 end
if left>worst then worst=left index=i-first+1 end
end
i=i+1
end
i=first
while index==0 and KEYS[i] do redis.call("SET",KEYS[i],ARGV[1],"PX",ARGV[2]) i=i+1 end
if wait>0 then return -wait end
return index+1
