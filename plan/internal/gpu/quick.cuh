// What runs operations of few instructions, and leaves the others to Block.
//
//	Opening     the operation with which a block begins: its sources are read beside the number of the launch
//	Quick       operations in a row from there on, in registers
//	move_short  operations in a row of which a thread has one vector at most, behind one that Block ran
//
// Ordering: as in Block. The opening's sources have one place in all launches (FIRST), and are read when the launch
// before has ended.
#pragma once
#include "one_vector.cuh"
#include "part.cuh"
#include "sync.cuh"

namespace weft {

namespace plan {

constexpr u32 ENDED = ~0u; // where a program is that has ended

// Quick runs what takes few instructions. Where a plan has packets it calls no function, so nothing leaves registers: a
// warp leaves the program to Block when its packets do not come soon, and at what is no data. Else it calls what waits
// for signals that do not come soon, and all warps leave at the same operation.
template <bool PACKETS> struct Quick {
	const Plan &a;
	const uint4 *code;
	const u64 *words; // addresses: for each end its peer's word and its own
	u64 *counts;
	Mover<PACKETS> m;
	bool over; // a wait has ended in vain

	__device__ __forceinline__ const u32 *peers() const { return (const u32 *)code; }

	// run runs a program from an operation on. It gives that which it leaves, or ENDED.
	__device__ __forceinline__ u32 run(u32 at) {
		for (;;) {
			Head h = *(const Head *)(code + at);
			Data d = *(const Data *)(code + at + 1); // if the operation is on data
			if (h.kind() >= PAIRS && h.kind() <= FOLD) {
				if (!move(h, d)) return at;
			} else if (h.kind() == END) {
				return ENDED;
			} else if (PACKETS) {
				return at;
			} else if (h.kind() == NOP) {
				if (__syncthreads_or(over) != 0) return ENDED;
			} else if (h.kind() == SIGNAL && !h.has(BEHIND)) {
				if (u32 i = m.me; i < a.uses && (d.chunks >> i & 1) != 0 && !over) {
					signal_end((char *)words[2 * i], peers()[2 * i], counts + 2 * i, h.has(RELAXED));
				}
			} else if (h.kind() == WAIT) {
				if (u32 i = m.me; i < a.uses && (d.chunks >> i & 1) != 0) await(i, h.site);
			} else {
				return at;
			}
			at += h.length;
		}
	}

	// move runs an operation on data. False: it is Block's.
	__device__ __forceinline__ bool move(const Head &h, const Data &d) const {
		Part p(Sizes(a), h, d, m.me);
		if (PACKETS) { // lanes stay together
			if (!p.is_short) return false;
			u32 lanes = __ballot_sync(WARP, p.has());
			bool done = !p.has() || m.one(h, d, p.at(), lanes);
			return __all_sync(WARP, done) != 0;
		}
		if (!p.is_short && (!p.sums || h.kind() == PAIRS && d.sources != 1)) return false;
		if (over) return true;
		if (!p.is_short) {
			m.add(d, p.from, p.to);
		} else if (p.has()) {
			m.one(h, d, p.at(), 0);
		}
		return true;
	}

	WEFT_TRACED(__device__ __forceinline__ void note_arrived(u32 peer) const {
		Trace(a.group, a.state, m.epoch).arrived(peer);
	})

	// await waits for the next signal of an end.
	__device__ __forceinline__ void await(u32 i, u32 site) {
		u32 peer = peers()[2 * i], shared = peer & SHARED_WAITS;
		u32 want = shared != 0 ? atomic_add_gpu4(a.awaited + peers()[2 * i + 1], 1) + 1 : (u32)++counts[2 * i + 1];
		const char *word = (const char *)words[2 * i + 1];
#pragma unroll 1
		for (u32 tries = 0; tries < TRIES; tries++) {
			if ((int)((u32)load_acquire_sys_u64(word) - want) >= 0) {
				WEFT_TRACED(note_arrived(peer & ~(SHARED_SIGNALS | SHARED_WAITS));)
				return;
			}
		}
		peer &= ~(SHARED_SIGNALS | SHARED_WAITS);
		if (!over) over = !poll_signals(a.group, a.state, site, m.epoch, peer, word, want);
		WEFT_TRACED(if (!over) note_arrived(peer);)
	}
};

// move_short runs operations in a row that are short, behind one that was not, and gives where it ends. Each lane is
// for itself. It is given sizes: to read them from the arguments takes long in a function.
template <bool PACKETS>
__device__ __noinline__ u32 move_short(const Plan &a, Sizes z, const uint4 *code, const u64 *operands, u32 flag,
									   u32 at) {
	const Mover<PACKETS> m = {a, operands, 0, flag, threadIdx.x};
	for (;;) {
		Head h = *(const Head *)(code + at);
		Data d = *(const Data *)(code + at + 1);
		Part p(z, h, d, threadIdx.x);
		if (!p.is_short || p.has() && !m.one(h, d, p.at(), 0)) return at;
		at += h.length;
	}
}

// Opening is the operation with which a block begins, if its sources are read with what the launch before left: a
// thread's vector of each is on the way while the block finds out which launch this is.
template <bool PACKETS> struct Opening {
	Head h;
	Data d;
	Part part;
	char *p[FLIGHT];
	uint4 v[FLIGHT];

	// The operation's head is at code.
	__device__ __forceinline__ Opening(const Plan &a, const uint4 *code, const u64 *operands, u32 me)
		: h(*(const Head *)code), d(*(const Data *)(code + 1)), part(Sizes(a), h, d, me) {
		part.is_short = part.is_short && h.has(FIRST) && a.shared != 0 && a.whole != 0;
		if (part.is_short) Mover<PACKETS>{a, operands, 0, 0, me}.some(p, d.first);
	}

	__device__ __forceinline__ void read() {
		if (part.is_short && part.has()) Mover<PACKETS>::read(v, p, d.sources, part.at());
	}

	// send ends the operation. It gives how long that is in the program.
	__device__ __forceinline__ u32 send(const Mover<PACKETS> &m) {
		if (!part.is_short) return 0;
		if (part.has()) m.pair_one(h, d, v, part.at());
		return h.length;
	}
};

} // namespace plan
} // namespace weft
