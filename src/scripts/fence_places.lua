-- Piece: where `acquire_fenced` has its counter and its proposal, without a flush marker.

local counters, bucket, proposal = KEYS[2], ARGV[3], ARGV[4]
