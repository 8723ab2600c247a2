local all,i=1,1
while KEYS[i] do
if redis.pcall("GET",KEYS[i])==ARGV[1] then redis.call("DEL",KEYS[i]) else all=0 end
i=i+1
end
return all
