-- Shows the holders of locks, without their tokens.
-- KEYS: the locks. ARGV: the most read locks of each that are listed.
-- Answers for each key 0 if it is free or no lock's. Else the fingerprint of its value, as in
-- `inspect.lua`, the tag, and the owner value; the latter two may be empty. For read locks, an
-- empty fingerprint and the tags of those that expire last.

local function tag(token)
  if type(token) == "string" and #token == 40 and not string.find(token, "[^0-9a-f]") then
    return string.sub(token, -8)
  end
  return ""
end

local function holder(key, value)
  local fingerprint = value
  if #value < 24 then fingerprint = redis.sha1hex(value) end
  fingerprint = string.sub(fingerprint, 1, 8)
  -- An owner value has a token in the key beside it. Without one, the value itself can be a token.
  -- That key is none of KEYS, so that a user with a right to the lock's key alone gets the rest.
  local own = tag(redis.pcall("HGET", key .. ":as", "muxlock"))
  if own == "" then return {fingerprint, tag(value), ""} end
  return {fingerprint, own, string.sub(value, 1, 512)}
end

local function readers(key)
  -- The sorted sets of locks expire.
  local left = redis.pcall("PTTL", key)
  if type(left) ~= "number" or left < 0 then return 0 end
  local time, now = redis.pcall("TIME"), 0
  if time[1] then now = time[1] * 1000 + time[2] / 1000 end
  local members = redis.pcall("ZRANGE", key, -ARGV[1], -1, "WITHSCORES")
  if members["err"] then return 0 end
  local tags = {""}
  for i = #members - 1, 1, -2 do
    if tonumber(members[i + 1]) > now then tags[#tags + 1] = tag(members[i]) end
  end
  return tags
end

local all = {}
for i, key in ipairs(KEYS) do
  local value = redis.pcall("GET", key)
  if type(value) == "string" then
    all[i] = holder(key, value)
  elseif type(value) == "table" then
    all[i] = readers(key)
  else
    all[i] = 0
  end
end
return all
