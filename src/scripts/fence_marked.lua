-- Piece: what `acquire_fenced` answers with a flush marker: 0 in place of null, and 1 for the
-- proposal even if the counter came to it by itself.
-- Needs: vote.

vote = vote == tonumber(ARGV[5]) and 1 or vote or 0
