-- Shows the value that a key holds, and the token of its companion: `KindStep::Look` of
-- `LockKind::Value` (K13, K15), decoded as `Reply::Owned`.
-- KEYS and ARGV: see `as`.
-- Answers 0 if the key is absent, else `=`, the token, and at most 513 bytes of the value: one more
-- than any of ours has.
-- Needs: held, token.

if type(held) == "table" then return held end
if held then return "=" .. token .. string.sub(held, 1, 513) end
return 0
