// Block runs operations of any kind, one after another, until the program ends or a wait has ended in vain.
//
//	data        move.cuh    a function with registers of its own; by_switch of switch.cuh, if it can
//	signals     sync.cuh    the thread of an end's number serves the end
//	barriers    sync.cuh    the block's threads meet, the first one meets the other blocks, they meet again
//	semaphores  sync.cuh    a thread each
//	loops       part, step  a window of each operand at a time
//	ports       far.cuh
//
// Ordering: threads of a block meet only at nops and barriers, before a signal that goes behind what all have done
// (BEHIND), before what goes through a port, and behind what has come through one.
#pragma once
#include "far.cuh"
#include "move.cuh"
#include "switch.cuh"
#include "sync.cuh"

namespace weft {

namespace plan {

constexpr u32 NO_LOOP = ~0u;

// Block is a block as one of its threads knows it. BEYOND: of a plan that may reach other hosts, or ranks by a switch.
template <bool PACKETS, bool BEYOND> struct Block {
	const uint4 *code;
	const u64 *operands; // addresses: for each end that the block uses its peer's word and its own, then operations'
	u64 *counts;		 // for each such end: signals sent, signals awaited
	u64 epoch;
	u32 flag;  // of this launch's packets
	u32 at;	   // the next operation
	bool over; // a wait has ended in vain

	// the windows of a pipeline, which ends at loop_to
	u32 loop_from, loop_to, iteration, iterations;
	u64 window;

	__device__ __forceinline__ char *word(u32 i) const { return (char *)operands[i]; }

	// meet lets the block's threads meet. False: one has waited in vain, and all end.
	__device__ __forceinline__ bool meet() const { return __syncthreads_or(over) == 0; }

	// ---- Channels. The thread of an end's number is the only one that touches its counts.

	__device__ __forceinline__ const u32 *peers() const { return (const u32 *)code; }

	template <class F> __device__ __forceinline__ void each(const Plan &a, F f) const {
		const u32 *mask = (const u32 *)(code + at + 1);
		for (u32 i = threadIdx.x; i < a.uses; i += blockDim.x) {
			if ((mask[i / 32] >> i % 32 & 1) != 0) f(i);
		}
	}

	__device__ __forceinline__ void signal(const Plan &a, bool relaxed) const {
		each(a, [&](u32 i) { signal_end(word(2 * i), peers()[2 * i], counts + 2 * i, relaxed); });
	}

	__device__ __forceinline__ void await(const Plan &a, u32 site) {
		each(a, [&](u32 i) {
			const char *word = this->word(2 * i + 1);
			u32 peer = peers()[2 * i];
			u32 want = (peer & SHARED_WAITS) != 0 ? atomic_add_gpu4(a.awaited + peers()[2 * i + 1], 1) + 1
												  : (u32)++counts[2 * i + 1];
			peer &= ~(SHARED_SIGNALS | SHARED_WAITS);
			if (!over) over = !poll_signals(a.group, a.state, site, epoch, peer, word, want);
			WEFT_TRACED(if (!over) Trace(a.group, a.state, epoch).arrived(peer);)
		});
	}

	// ---- Blocks of this rank.

	__device__ __forceinline__ bool barrier(const Plan &a, u32 number, u32 blocks, u32 site) {
		if (!meet()) return false;
		if (threadIdx.x == 0) over = !meet_blocks(a.group, a.state, site, epoch, a.barriers + 2 * number, blocks);
		return meet();
	}

	// Semaphores: each entry is the semaphore's number and its first value.
	__device__ __forceinline__ void release(const Plan &a, u32 count) const {
		const uint2 *entry = (const uint2 *)(code + at + 1);
		for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
			fence_gpu();
			atomic_add_gpu4(a.semaphores + entry[i].x, 1);
		}
	}

	__device__ __forceinline__ void acquire(const Plan &a, u32 count, u32 site) {
		const uint2 *entry = (const uint2 *)(code + at + 1);
		for (u32 i = threadIdx.x; i < count && !over; i += blockDim.x) {
			over = !take_one(a.group, a.state, site, epoch, a.semaphores + entry[i].x, entry[i].y);
		}
	}

	// ---- Data.

	// part is the bytes [from, to) of each of an operation's operands that this block moves now.
	__device__ __forceinline__ void part(const Plan &a, const Data &d, bool uncut, u64 &from, u64 &to) const {
		from = 0, to = d.chunks * a.chunk;
		if (d.group != 0) {
			u32 id = d.group & 0xFFFF, size = d.group >> 16;
			u64 units = d.chunks * a.units, q, r;
			if (units >> 32 == 0) {
				q = (u32)units / size, r = (u32)units % size;
			} else {
				q = units / size, r = units % size;
			}
			from = (id * q + min((u64)id, r)) * a.align;
			to = ((id + 1) * q + min((u64)id + 1, r)) * a.align;
		}
		if (loop_to != NO_LOOP && !uncut) {
			from = min(from + iteration * window, to);
			to = min(from + window, to);
		}
	}

	// move runs an operation on data.
	__device__ __forceinline__ void move(const Plan &a, const Head &h, const Data &d) {
		u64 from, to;
		part(a, d, h.has(UNCUT), from, to);
		if (BEYOND && h.has(FROM_ALL | TO_ALL) && a.switches != 0 && a.whole != 0 &&
			by_switch(a, code + at, operands, from, to))
			return;
		if (a.whole != 0) {
			over = !move_many<PACKETS, true>(a, code + at, operands + 2 * a.uses, epoch, flag, from, to);
		} else {
			over = !move_many<PACKETS, false>(a, code + at, operands + 2 * a.uses, epoch, flag, from, to);
		}
	}

	// reach runs an operation of ports to other hosts.
	__device__ __forceinline__ void reach(const Plan &a, const Head &h, const Data &d) {
		if (over) return;
		u64 from = 0, to = 0;
		if (h.kind() == PUSH || h.kind() == LAND) part(a, d, h.has(UNCUT), from, to);
		over = !far(a, code + at, operands, epoch, flag, from, to);
	}

	// ---- The program.

	// may_be_short says whether the next operation may be one that move_short runs.
	__device__ __forceinline__ bool may_be_short(const Plan &a) const {
		u32 kind = ((const Head *)(code + at))->kind();
		return kind >= PAIRS && kind <= FOLD && a.whole != 0 && a.shared != 0 && !over && loop_to == NO_LOOP;
	}

	// step runs an operation, whatever it is. False: the program has ended, or a wait has ended in vain.
	__device__ __forceinline__ bool step(const Plan &a) {
		if (at == loop_to) {
			if (++iteration < iterations) {
				at = loop_from;
			} else {
				loop_to = NO_LOOP;
				return true;
			}
		}
		Head h = *(const Head *)(code + at);
		Data d = *(const Data *)(code + at + 1); // if the operation is on data
		u32 length = h.length;
		switch (h.kind()) {
		case END: return false;
		case NOP:
			if (!meet()) return false;
			break;
		case MEET:
			if (!barrier(a, d.chunks, h.count, h.site)) return false;
			break;
		case ACQUIRE: acquire(a, h.count, h.site); break;
		case RELEASE:
			if (!over) release(a, h.count);
			break;
		case SIGNAL:
			if (h.has(BEHIND) && !meet()) return false;
			if (!over) signal(a, h.has(RELAXED));
			break;
		case WAIT: await(a, h.site); break;
		case LOOP: {
			const uint4 w = code[at + 1];
			window = (u64)w.y << 32 | w.x;
			iterations = (u32)((w.z * a.chunk + window - 1) / window);
			iteration = 0;
			loop_from = at + 2;
			loop_to = loop_from + h.count;
			length = 2;
			break;
		}
		case PAIRS:
		case RECEIVE:
		case FOLD:
			if (!over) move(a, h, d);
			break;
		default:
			if (BEYOND) {
				// Behind what all threads have stored, or what any has pushed.
				if ((h.kind() == PUSH || h.kind() == FLUSH) && !meet()) return false;
				reach(a, h, d);
				if (h.kind() == ARRIVE && !meet()) return false;
			}
		}
		at += length;
		return true;
	}
};

} // namespace plan
} // namespace weft
