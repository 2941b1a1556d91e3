// What a word costs that another GPU waits for.
#include "wait.cuh"

using namespace weft;

constexpr u32 LINE = 128; // bytes between two ranks' words

// link_barrier: every rank tells every rank that it is there, itself included, and waits until all
// have told it. The window has a line for each rank. done counts the barriers, on this GPU.
extern "C" __global__ void link_barrier(const __grid_constant__ Group group, State *state, u64 *done) {
	wait_for_previous();
	u64 epoch = *done;
	u32 next = (u32)epoch + 1, rank = threadIdx.x;
	__syncthreads(); // all have read the epoch
	if (rank < group.ranks && state->stopped == 0) {
		Wait wait(group, state, 0, epoch);
		store_relaxed_sys4(group.window[rank] + group.rank * LINE, next);
		await_epoch(wait, rank, group.window[group.rank] + rank * LINE, next);
	}
	let_next_start();
	__syncthreads();
	if (threadIdx.x == 0 && state->stopped == 0) *done = epoch + 1;
}

// link_ping plays the rounds of a word that goes there and back. The window has one line for each
// of two sides; a block is one side, or two blocks of one GPU are both. Side 0 leaves in times when
// it began, after the first skip rounds, and when it ended. Both leave the last round that they
// saw.
extern "C" __global__ void link_ping(const __grid_constant__ Group group, State *state, u32 side, u32 rounds, u32 skip,
									 u64 *times, u32 *seen) {
	side += blockIdx.x;
	char *mine = group.window[side], *other = group.window[side ^ 1];
	Wait wait(group, state, 0, 0);
	u64 begun = 0;
	u32 round = 1;
	for (; round <= rounds; round++) {
		if (side == 0) store_relaxed_sys4(other, round);
		await_epoch(wait, side ^ 1, mine, round);
		if (wait.over) break;
		if (side == 1) store_relaxed_sys4(other, round);
		if (round == skip) begun = nanoseconds();
	}
	if (side == 0) {
		times[0] = begun;
		times[1] = nanoseconds();
	}
	seen[side] = round - 1;
}
