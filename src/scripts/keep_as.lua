-- Needs: held, value, token, vote, c, k.
if held==value and token==ARGV[1] then vote=1
elseif ARGV[3]=="1"and not held and redis.call("EXISTS",c)==0 then
redis.call("SET",k,value,"PX",ARGV[2])
redis.call("HSET",c,"muxlock",ARGV[1])
vote=2
end
