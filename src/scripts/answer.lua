-- Piece: the answer of a script that checks no flush marker.
-- Needs: vote.

return vote
