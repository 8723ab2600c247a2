-- Needs: held, value, token, first, left, is_ours, c, vote.
if held==value and token==ARGV[first+4] and left>=0 and(is_ours or redis.call("EXISTS",c)==0)then
redis.call("HSET",c,"muxlock",ARGV[1])
vote=1
end
