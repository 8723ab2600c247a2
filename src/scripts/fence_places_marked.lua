-- Piece: where `acquire_fenced` has its counter and its proposal, with a flush marker.

local counters, bucket, proposal = KEYS[3], ARGV[4], ARGV[5]
