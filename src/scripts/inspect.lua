local value=redis.call("GET",KEYS[1]) if not value then return 0 end
return {string.sub(value,1,math.min(8,math.floor(#value/3))),redis.call("PTTL",KEYS[1])}
