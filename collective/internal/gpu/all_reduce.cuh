// The parameter of every all-reduce.
#pragma once
#include "fold.cuh"
#include "plain.cuh"

namespace weft {

// Go: allReduceArgs.
struct AllReduce {
	Lane lane;
	Operand in, out;
	How how;
	u64 slot_bytes; // one shot: of a rank, in a turn; two shots: of a share, in each half of a turn
	Group group;
};

static_assert(sizeof(AllReduce) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

} // namespace weft
