-- Piece: the answer of a script that checks the flush marker. In quarantine, it is the remaining
-- milliseconds as a negative number. What the script has done stays.
-- Needs: vote, wait.

if wait > 0 then return -wait end
return vote
