// How a block's threads wait for others, and signal to them.
//
//	signals     poll_signals, signal_end   of channels, between ranks: an end's word counts those that came there
//	barriers    meet_blocks                of this rank's blocks: two words of this GPU
//	semaphores  take_one                   of this rank's blocks: a word of this GPU
//
// Ordering: a signal is a release at system scope, or an add behind a fence, and poll_signals acquires. A relaxed
// signal orders nothing. Barriers and semaphores fence at the scope of the GPU on both sides.
//
// Waits that do not end at once are functions of their own, so that others take few instructions and registers. They
// are false if the wait is over.
#pragma once
#include "program.cuh"

namespace weft {

namespace plan {

// poll_signals looks until as many signals have come. The lower half of a count wraps, and no launch waits for 2^31.
__device__ __noinline__ bool poll_signals(const Group &g, State *state, u32 site, u64 epoch, u32 peer,
										  const char *word, u32 want) {
	Wait w(g, state, site, epoch);
	u64 seen = load_acquire_sys_u64(word);
	while ((int)((u32)seen - want) < 0 && w.more(peer, want, seen)) seen = load_acquire_sys_u64(word);
	return !w.over;
}

// poll_local looks until there() holds, which another block of this rank brings about: a quarter longer than blocks
// wait for other ranks, so that the error names the rank that is late and not this one.
template <class F> __device__ __forceinline__ bool poll_local(const Group &g, State *state, u32 site, u64 epoch,
															  F there) {
	u64 begun = 0, looked = 0;
	for (u32 polls = 1; !there(); polls++) {
		if ((polls & 63) != 0) continue;
		u64 now = nanoseconds();
		if (begun == 0) begun = now;
		u64 waited = now - begun;
		bool looks = waited >> 20 != looked;
		looked = waited >> 20;
		if (gave_up(g, state, site, epoch, waited - waited / 5, looks, g.rank, 1, 0)) return false;
	}
	return true;
}

// meet_blocks waits until so many blocks have come to a barrier: a count of them, and the turn behind it, which the
// last one begins.
__device__ __noinline__ bool meet_blocks(const Group &g, State *state, u32 site, u64 epoch, u32 *come, u32 blocks) {
	u32 *turn = come + 1, now = load_relaxed_gpu4(turn);
	fence_gpu();
	bool met = true;
	if (atomic_add_gpu4(come, 1) == blocks - 1) {
		fence_gpu();
		store_relaxed_gpu4(come, 0);
		fence_gpu();
		store_relaxed_gpu4(turn, now + 1);
	} else {
		met = poll_local(g, state, site, epoch, [&] { return load_relaxed_gpu4(turn) != now; });
	}
	fence_gpu();
	return met;
}

// take_one takes one of a semaphore, whose word says by how much it is more than at first.
__device__ __noinline__ bool take_one(const Group &g, State *state, u32 site, u64 epoch, u32 *word, u32 first) {
	bool taken = poll_local(g, state, site, epoch, [&] {
		u32 more = load_relaxed_gpu4(word);
		return (int)(first + more) > 0 && atomic_cas_gpu4(word, more, more - 1) == more;
	});
	fence_gpu();
	return taken;
}

// signal_end signals to an end, whose peer has a word there; sent counts the signals.
__device__ __forceinline__ void signal_end(char *word, u32 peer, u64 *sent, bool relaxed) {
	if (word == nullptr) return; // the peer has no other end
	if ((peer & SHARED_SIGNALS) != 0) {
		if (!relaxed) fence_sys();
		add_relaxed_sys_u64(word, 1);
	} else if (relaxed) {
		store_relaxed_sys_u64(word, ++*sent);
	} else {
		store_release_sys_u64(word, ++*sent);
	}
}

} // namespace plan
} // namespace weft
