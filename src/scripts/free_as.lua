-- Needs: held, value, token, vote, k, c, is_ours, seen.
if held==value and token==ARGV[1] then vote=redis.call("DEL",k) end
if is_ours and(vote==1 or seen==ARGV[1])then redis.call("DEL",c) end
return vote
