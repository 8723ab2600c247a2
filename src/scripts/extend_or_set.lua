local held=redis.call("GET",KEYS[1])
if not held then redis.call("SET",KEYS[1],ARGV[1],"NX","PX",ARGV[2]) return 2 end
if held~=ARGV[1] then return 0 end
if redis.call("PTTL",KEYS[1])<tonumber(ARGV[2]) then redis.call("PEXPIRE",KEYS[1],ARGV[2]) end return 1
