-- Piece: whether the reply `r` is the error of a command that the server lacks, or that the user
-- has no right to. An error about the right to a key contains " access ", and is another matter.
-- Needs: r.

local missing = type(r) == "table" and r["err"]
missing = missing and (string.find(missing, "nknown")
  or not string.find(missing, " access ") and (string.find(missing, "NOPERM")
  or string.find(missing, "ACL failure") or string.find(missing, "user executing")))
