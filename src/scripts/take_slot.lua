-- Needs: first, wait.
local free,bit,i=0,1,first
local got=redis.call("SET",KEYS[first+tonumber(ARGV[3])],ARGV[1],"NX","PX",ARGV[2])
while not got and KEYS[i] do
if redis.call("EXISTS",KEYS[i])==0 then free=free+bit end
bit=bit*2
i=i+1
end
if wait>0 then return -wait end
if got then return 1 end
return 2+free
