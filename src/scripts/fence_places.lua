-- Piece: where `acquire_fenced` has its counter and its proposal.

local counters, bucket, proposal = KEYS[2], ARGV[3], ARGV[4]
