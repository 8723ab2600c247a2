if is_ours and seen==ARGV[1] then
redis.call("HSET",c,"muxlock",ARGV[first+4])
vote=1
end
return vote
