-- Describes keys: `Key` in `master.rs`. It only reads.
-- KEYS: the keys.
-- Answers for each key 0 if it is absent or has a type that no lock has, else a letter, its PTTL and
-- further parts. If a command is refused, it answers -1 or -2 and the command instead.

local answers, refused, now = {}, nil, nil

local function ask(...)
  if refused then return nil end
  local reply = redis.pcall(...)
  if type(reply) ~= "table" or not reply["err"] then return reply end
  local text, command = reply["err"], string.lower((...))
  if string.find(text, "NOPERM") or string.find(text, "ACL failure")
    or string.find(text, "user executing") then
    refused = {-1, command}
  elseif string.find(text, "nknown") then
    refused = {-2, command}
  else
    refused = reply
  end
  return nil
end

for i, key in ipairs(KEYS) do
  local kind, answer = (ask("TYPE", key) or {})["ok"], 0
  if kind == "string" then
    -- The value may be other data, of any length. An owner value has at most 512 bytes.
    local value, left = ask("GETRANGE", key, 0, 512) or "", ask("PTTL", key)
    local letter, tag, print = "v", "", value
    if string.find(value, "^%x+$") and #value == 40 then
      letter, tag = "t", string.sub(value, -8)
    elseif string.find(value, "^revoked:%x+$") and #value == 24 then
      letter = "r"
    elseif #value < 24 then
      -- As in `inspect`: the beginning of a short value would betray it.
      print = redis.sha1hex(value)
    end
    if value ~= "" then answer = {letter, left, string.sub(print, 1, 8), tag} end
  elseif kind == "zset" then
    if not now then
      local time = ask("TIME") or {0, 0}
      now = "(" .. string.format("%.0f", time[1] * 1000 + math.floor(time[2] / 1000))
    end
    answer = {"z", ask("PTTL", key), ask("ZCOUNT", key, now, "+inf")}
  elseif kind == "list" then
    answer = {"l", -1, ask("LLEN", key)}
  elseif kind == "hash" then
    answer = {"h", -1}
  end
  if refused then return refused end
  answers[i] = answer
end
return answers
