-- Needs: is_ours, seen, c, k, held, value, token, left, now, first, vote.
if is_ours and seen==ARGV[1] then
redis.pcall("PEXPIREAT",c,"-")
if held==value and token==ARGV[1] and left>0 then
redis.call("PEXPIREAT",k,string.format("%.0f",now+left))
redis.call("PEXPIREAT",c,string.format("%.0f",now+left))
end
redis.call("HSET",c,"muxlock",ARGV[first+4])
vote=1
end
return vote
