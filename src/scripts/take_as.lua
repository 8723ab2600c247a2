-- Needs: held, is_ours, c, k, value, vote.
if not held and(is_ours or redis.call("EXISTS",c)==0)then
redis.call("PEXPIREAT",c,0)
redis.call("HSET",c,"muxlock",ARGV[1])
redis.call("SET",k,value,"PX",ARGV[2])
vote=1
end
