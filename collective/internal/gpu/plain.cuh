// The plain form of an operation of few bytes, which takes as long as its instructions: a thread has one
// vector of each part.
//
// The host says in Lane.plain that operands are whole vectors of aligned memory, that a reduction is a sum,
// and that one pass does all. The GPU finds that no rank is masked, and that the operation before was full.
// Then nothing but data is on the way, as in the general form.
#pragma once
#include "slots.cuh"

#if WEFT_RANKS != 0

namespace weft {

// Early is what a thread knows by the arguments alone: where its vectors stand in so many parts of the input, and where
// they go. A kernel makes it before its Collective, and passes all to computed. So the addresses are computed while the
// kernel before this one still runs. Nothing is loaded then: that kernel may write the input, and it may be what leaves
// the slots empty. load comes behind the Collective, which has waited for that kernel to end, and a send behind quiet.
template <u32 PARTS> struct Early {
	const char *in[PARTS]; // its vectors, or the first ones: it loads before it knows whether it has any
	char *to[RANKS];	   // its slot at each rank, in the first turn
	u64 all;			   // addresses

	// A part has part_bytes and stands step bytes behind the one before it. With a step of 0 all are the same.
	__device__ __forceinline__ Early(const Group &g, const Lane &l, u64 slot_bytes, const char *input, u64 part_bytes,
									 u64 step)
		: all(0) {
		u32 at = thread_of_launch();
		u64 vector = (u64)(at < (u32)(part_bytes / 16) ? at : 0) * 16, slot = slot_of(l.slots, g.rank, slot_bytes, at);
#pragma unroll
		for (u32 p = 0; p < PARTS; p++) all |= (u64)(in[p] = kept(input + p * step + vector));
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) all |= (u64)(to[r] = kept(g.window[r] + slot));
	}

	__device__ __forceinline__ uint4 load(u32 part) const { return load_once(in[part]); }
	__device__ __forceinline__ void load(Vectors &parts) const {
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) parts.v[r] = load(r);
	}
};

struct Plain {
	const Group &g;
	const Lane &l;
	const Collective &c;
	char *const (&to)[RANKS]; // of Early
	u32 slot_bytes;			  // of a rank
	bool has;				  // the thread has a vector

	template <u32 PARTS>
	__device__ __forceinline__ Plain(const Group &g, const Lane &l, const Collective &c, const Early<PARTS> &e,
									 u64 slot_bytes, u64 part_bytes)
		: g(g), l(l), c(c), to(e.to), slot_bytes((u32)slot_bytes), has(c.at < (u32)(part_bytes / 16)) {}

	__device__ __forceinline__ void put(char *part, uint4 v) const { store16(part + (u64)c.at * 16, v); }

	// slot is where the thread's vector of a rank stands in a window, in the slots that begin at a place there.
	__device__ __forceinline__ u64 slot(u64 slots, u32 rank) const {
		return slots + (u64)slot_bytes * rank + c.at * SLOT_BYTES;
	}

	// send sends every other rank this one's vector, into slots that begin at a place of a window.
	__device__ __forceinline__ void send(u64 slots, uint4 v) const {
		send_by(slots, [&](u32) { return v; });
	}

	// send_each sends every other rank a vector of its own.
	__device__ __forceinline__ void send_each(u64 slots, const Vectors &all) const {
		send_by(slots, [&](u32 r) { return all.v[r]; });
	}

	template <class F> __device__ __forceinline__ void send_by(u64 slots, F vector) const {
		u64 beyond = c.o.turn * l.turn_bytes + (slots - c.turn); // from the slots of the first turn
		WEFT_TRACED(u64 time = nanoseconds();)
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) {
			if (r != g.rank) weft::send(to[r] + beyond, vector(r));
		}
		WEFT_TRACED(note_sent(slots, time);)
	}

#if WEFT_TRACE
	// Slots of the turn's second half have what was reduced.
	__device__ __forceinline__ u32 phase_of(u64 slots) const { return slots == c.turn ? 0 : 1; }
	__device__ __forceinline__ void note_sent(u64 slots, u64 time) const {
		if (threadIdx.x == 0) c.o.trace.signalled_at(time, phase_of(slots));
	}
#endif

#if WEFT_EXACT && WEFT_ENCODING != 3
	// send_sides sends the side words of those vectors that need one. It comes while all are on the way.
	__device__ __forceinline__ void send_sides(u64 slots, const Vectors &all) const {
		Most largest = most(as_sent(all.v[0]));
#pragma unroll
		for (u32 r = 1; r < RANKS; r++) largest = max(largest, most(as_sent(all.v[r])));
		if (__builtin_expect(largest != MOST, 1)) return;
		u64 side = side_of(l, slot(slots, g.rank));
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) {
			if (r != g.rank && most(as_sent(all.v[r])) == MOST) send_side(g.window[r] + side, all.v[r]);
		}
	}
#else
	__device__ __forceinline__ void send_sides(u64, const Vectors &) const {}
#endif
};

// Seen is what a thread saw in the slots of its vector.
template <Looking LOOKING = AT_ONCE> struct Seen {
	const Plain &p;
	const char *slots; // rank 0's
	Looks looks;
	WEFT_TRACED(u32 phase, noted = 0;) // noted: ranks whose vectors were seen

	__device__ __forceinline__ Seen(const Plain &p, u64 slots) : p(p), slots(p.l.own + p.slot(slots, 0)) {
		WEFT_TRACED(phase = p.phase_of(slots);)
	}

	__device__ __forceinline__ const char *slot(u32 rank) const { return slots + (u64)p.slot_bytes * rank; }

	__device__ __forceinline__ void look() {
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) {
			if (r != p.g.rank) looks.s[r] = weft::look(slot(r));
		}
	}

	// try_in_turn is try_all where a look is back before the next one begins.
	__device__ __forceinline__ u32 try_in_turn() {
		u32 missing = ~0u;
#pragma unroll 1
		for (u32 tries = 0; missing != 0 && tries < TRIES; tries++) {
			missing = 0;
#pragma unroll
			for (u32 r = 0; r < RANKS; r++) {
				if (r == p.g.rank) continue;
				if (tries != 0 && !there(looks.s[r])) looks.s[r] = weft::look(slot(r));
				missing |= (u32)!there(looks.s[r]) << r;
				WEFT_TRACED(note(r);)
			}
		}
		return missing;
	}

	// await waits until all are there. own is this rank's. False: the wait is over.
	__device__ __forceinline__ bool await(Vectors &all, uint4 own) {
		u32 missing = LOOKING == IN_TURN ? try_in_turn()
										 : looks.try_all(slots, p.slot_bytes, [&](u32 r) { return r != p.g.rank; },
														 [&](u32 r) { WEFT_TRACED(note(r);) });
#pragma unroll
		for (u32 r = 0; missing != 0 && r < RANKS; r++) {
			if ((missing >> r & 1) == 0) continue;
			looks.s[r] = poll(p.g, p.l.state, p.l.op, p.c.o.epoch, r, slot(r));
			if (!there(looks.s[r])) return false;
			WEFT_TRACED(note(r);)
		}
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) {
			all.v[r] = own;
			if (r != p.g.rank) all.v[r] = value(looks.s[r]);
		}
		if (!restore_all(all)) return false;
		if (p.l.clear != 0) {
#pragma unroll
			for (u32 r = 0; r < RANKS; r++) {
				if (r != p.g.rank) empty(p.l, (char *)slot(r));
			}
		}
		return true;
	}

#if WEFT_TRACE
	// note notes that a rank's vector was seen, the first time.
	__device__ __forceinline__ void note(u32 rank) {
		if (threadIdx.x != 0 || !there(looks.s[rank]) || (noted >> rank & 1) != 0) return;
		noted |= 1u << rank;
		p.c.o.trace.arrived(rank, phase);
	}
#endif

	// restore_all gives the peers' vectors the bits that they had.
	__device__ __forceinline__ bool restore_all(Vectors &all) const {
#if WEFT_EXACT && WEFT_ENCODING != 3
		Most largest = most(all.v[0]);
#pragma unroll
		for (u32 r = 1; r < RANKS; r++) largest = max(largest, most(all.v[r]));
		if (__builtin_expect(largest != MOST, 1)) return true;
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) {
			if (r != p.g.rank && !restore(p.g, p.l, p.c.o.epoch, r, slot(r), all.v[r])) return false;
		}
#endif
		return true;
	}
};

} // namespace weft

#endif
