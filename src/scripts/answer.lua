-- Piece: the answer of a script.
-- Needs: vote.

return vote
