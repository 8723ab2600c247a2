if is_ours and seen==ARGV[1] then
local at=string.format("%.0f",now+math.max(1,ends))
if held==value and token==ARGV[1] and left>0 then
at=string.format("%.0f",now+left)
redis.call("PEXPIREAT",k,at)
end
redis.call("PEXPIREAT",c,at)
redis.call("HSET",c,"muxlock",ARGV[first+4])
vote=1
end
return vote
