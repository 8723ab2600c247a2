local k,q,r,n,i=KEYS[1],KEYS[2],0,0,0
local v=redis.pcall("GET",k)
if v==ARGV[2] then r=redis.call("DEL",k)
elseif type(v)=="table" then
local t=redis.pcall("TYPE",k)["ok"]
if not t or t=="string" then return v end
end
if ARGV[3]=="1" then
n=redis.pcall("LREM",q,1,ARGV[1])
while i<2 and type(n)=="number" do
local h=redis.pcall("LINDEX",q,i)
if not h then break end
if type(h)=="table" then n=h break end
n=redis.pcall("PUBLISH",h,(i==0 and "g" or "n")..k)
if n==0 then n=redis.pcall("LREM",q,1,h) else i=i+1 end
end
end
if type(n)=="number" then n=redis.pcall("LLEN",q) end
if type(n)=="number" then return r+2*n end
if r==1 then return -1 end
return n
