// What a routing knows of the received rows: for callers who ask, and for those who copy the rows.
#pragma once
#include "exchange.cuh"

namespace weft {

// Go: describeArgs. Outputs that are not wanted are null.
struct Describe {
	Shape shape;
	u32 ranks, by_expert;
	u32 rows, zero;			// that the outputs have room for: what others are is not said
	const Pair *recv_rows;	// [ranks][capacity][top-k], of the tokens that a source has
	const int *sent;		// [ranks]: how many those are
	const u32 *recv_tokens; // [ranks][capacity]: row + 1, for rows that are neither by expert nor at their slots
	int *tokens, *sources;	// [rows]
	int *selections;		// [rows], by expert
	float *weights;			// the same
	// For one row a token.
	int *experts;		   // [rows][top-k]
	long long *wide;	   // [rows][top-k]: the same as numbers of 64 bits
	float *expert_weights; // [rows][top-k]
};

// has_row says whether a token has a row here that is not by expert.
__device__ __forceinline__ bool has_row(const Describe &a, u32 slot) {
	bool any = false;
	for (u32 k = 0; k < a.shape.topk; k++) any |= a.recv_rows[(u64)slot * a.shape.topk + k].target != 0;
	return any;
}

// describe writes what each row is that holds a token, and nothing elsewhere. All threads of the
// launch call it.
__device__ __forceinline__ void describe(const Describe &a) {
	u64 n = (u64)a.ranks * a.shape.capacity * a.shape.topk;
	for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
		u32 slot = (u32)(i / a.shape.topk), source = slot / a.shape.capacity, token = slot % a.shape.capacity;
		if (token >= (u32)a.sent[source]) continue;
		Pair p = a.recv_rows[i];
		if (p.target == 0 && (a.by_expert != 0 || !has_row(a, slot))) continue;
		u32 row = a.by_expert != 0 ? p.target - 1 : a.recv_tokens != nullptr ? a.recv_tokens[slot] - 1 : slot;
		if (row >= a.rows) continue;
		// Selections of one token by rank say the same here.
		if (a.tokens != nullptr) a.tokens[row] = (int)token;
		if (a.sources != nullptr) a.sources[row] = (int)source;
		float weight = p.target != 0 ? number(p.weight) : 0;
		if (a.by_expert != 0) {
			if (a.selections != nullptr) a.selections[row] = (int)(i % a.shape.topk);
			if (a.weights != nullptr) a.weights[row] = weight;
			continue;
		}
		u64 at = (u64)row * a.shape.topk + i % a.shape.topk;
		if (a.experts != nullptr) a.experts[at] = (int)p.target - 1;
		if (a.wide != nullptr) a.wide[at] = (long long)p.target - 1;
		if (a.expert_weights != nullptr) a.expert_weights[at] = weight;
	}
}

} // namespace weft
