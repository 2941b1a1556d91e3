// Describe: what a routing says of the rows that came here, in memory that holds -1, and 0 for
// weights. set_weights gives a routing other weights at home, or reads the experts of its selections.
#include "describe.cuh"

namespace weft {

static_assert(sizeof(Describe) == WEFT_DESCRIBE_BYTES, "not the size of the host's struct");

// Go: setWeightsArgs.
struct SetWeights {
	Pair *home; // [n]
	u32 n, zero;
	const float *weights; // [n]: new weights of the selections, or none
	// [n]: filled with the experts that they name, -1 for none, as a dispatch that tells the
	// routing anew reads them; or none
	int *ids;
};

static_assert(sizeof(SetWeights) == WEFT_SET_WEIGHTS_BYTES, "not the size of the host's struct");

} // namespace weft

namespace weft::ep {

__global__ void __launch_bounds__(256) describe(const __grid_constant__ Describe a) { weft::describe(a); }

__global__ void __launch_bounds__(256) set_weights(const __grid_constant__ SetWeights a) {
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += gridDim.x * blockDim.x) {
		if (a.weights != nullptr) a.home[i].weight = bits(a.weights[i]);
		if (a.ids != nullptr) a.ids[i] = (int)(a.home[i].target & 0xFFFF) - 1;
	}
}

} // namespace weft::ep
