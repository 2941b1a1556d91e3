// Describe: what a routing says of the rows that came here, in memory that holds -1, and 0 for
// weights. And weigh, by which a routing gets other weights at home, or tells the experts of its
// selections.
#include "describe.cuh"

namespace weft {

static_assert(sizeof(Describe) == WEFT_DESCRIBE_BYTES, "not the size of the host's struct");

// Go: weighArgs.
struct Weigh {
	Pair *home; // [n]
	u32 n, zero;
	const float *weights; // [n]: what the selections weigh from now on; or none
	// [n]: filled with the experts that they name, -1 for none, as a dispatch that tells the
	// routing anew reads them; or none
	int *ids;
};

static_assert(sizeof(Weigh) == WEFT_WEIGH_BYTES, "not the size of the host's struct");

} // namespace weft

namespace weft::ep {

__global__ void __launch_bounds__(256) describe(const __grid_constant__ Describe a) { weft::describe(a); }

__global__ void __launch_bounds__(256) weigh(const __grid_constant__ Weigh a) {
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += gridDim.x * blockDim.x) {
		if (a.weights != nullptr) a.home[i].weight = bits(a.weights[i]);
		if (a.ids != nullptr) a.ids[i] = (int)(a.home[i].target & 0xFFFF) - 1;
	}
}

} // namespace weft::ep
