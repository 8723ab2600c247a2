local i=1
while ARGV[i] do
local r=redis.pcall(unpack(ARGV,i+2,i+1+ARGV[i+1]))
