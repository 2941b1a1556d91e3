// Describe: what a routing says of the rows that came here, one row after another, for those who ask. And weigh, by which a routing gets other weights at home, or tells
// the experts of its selections.
#include "exchange.cuh"

namespace weft {

// Go: describeArgs.
struct Describe {
	Shape shape;
	u32 ranks, by_expert;
	const Pair *landings; // [ranks][capacity][top-k], of the tokens that a source has
	const int *sent;	  // [ranks]: how many those are
	const u32 *arrivals;  // [ranks][capacity]: row + 1, for rows that are neither by expert nor at their slots
	// Filled with -1, -1 and 0 before.
	int *tokens, *sources; // [rows]
	float *weights;		   // [rows], by expert
	// For one row a token, -1 and 0 before.
	int *experts;			  // [rows][top-k]
	float *expert_weights; // [rows][top-k]
};

static_assert(sizeof(Describe) == WEFT_DESCRIBE_BYTES, "the host has another idea of the arguments");

// Go: weighArgs.
struct Weigh {
	Pair *home; // [n]
	u32 n, zero;
	const float *weights; // [n]: what the selections weigh from now on; or none
	int *ids;			  // [n]: filled with the experts that they name, -1 for none, as a dispatch that tells the routing anew reads them; or none
};

static_assert(sizeof(Weigh) == WEFT_WEIGH_BYTES, "the host has another idea of the arguments");

} // namespace weft

extern "C" __global__ void __launch_bounds__(256) weft_describe(const __grid_constant__ weft::Describe a) {
	using namespace weft;
	u64 n = (u64)a.ranks * a.shape.capacity * a.shape.topk;
	for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
		u32 slot = (u32)(i / a.shape.topk), source = slot / a.shape.capacity, token = slot % a.shape.capacity;
		if (token >= (u32)a.sent[source]) continue;
		Pair p = a.landings[i];
		if (p.what == 0) continue;
		u32 row = a.by_expert != 0 ? p.what - 1 : a.arrivals != nullptr ? a.arrivals[slot] - 1 : slot;
		// Selections of one token by rank say the same here.
		a.tokens[row] = (int)token;
		a.sources[row] = (int)source;
		if (a.by_expert != 0) {
			a.weights[row] = number(p.weight);
		} else {
			u64 at = (u64)row * a.shape.topk + i % a.shape.topk;
			a.experts[at] = (int)p.what - 1;
			a.expert_weights[at] = number(p.weight);
		}
	}
}

extern "C" __global__ void __launch_bounds__(256) weft_weigh(const __grid_constant__ weft::Weigh a) {
	using namespace weft;
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += gridDim.x * blockDim.x) {
		if (a.weights != nullptr) a.home[i].weight = bits(a.weights[i]);
		if (a.ids != nullptr) a.ids[i] = (int)(a.home[i].what & 0xFFFF) - 1;
	}
}
