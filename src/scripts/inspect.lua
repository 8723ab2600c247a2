local value=redis.call("GET",KEYS[1]) if not value then return 0 end
if #value<24 then value=redis.sha1hex(value) end
return {string.sub(value,1,8),redis.call("PTTL",KEYS[1])}
