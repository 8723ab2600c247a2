-- Piece: the end of `trial`.
-- Needs: i, missing.

  if missing then return tonumber(ARGV[i]) end
  i = i + 2 + ARGV[i + 1]
end
return 0
