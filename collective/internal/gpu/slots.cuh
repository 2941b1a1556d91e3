// Slots: how small and middling operands travel. A rank stores its vectors of 16 bytes in slots at its
// peers. A vector in a slot says itself that it is there, so nothing needs a fence or a counter.
//
//	words    of ones are "not there yet"; a word of ones that is sent becomes 0x7FFFFFFF (both are NaNs)
//	doubles  the same with words of 64 bits, for fp64, whose halves may be ones
//	pairs    any bytes: each 4 bytes of data travel with a word of zeros, in one access of 8 bytes
//
// A move keeps all bits (WEFT_EXACT). So where a vector arrives with a word 0x7FFFFFFF, a side word says which of
// its words were ones. The window has a side word for each slot, ones as long as it says nothing. The receiver
// waits for it, and makes it ones again at once. Few vectors have such a word, and the others cost a comparison.
//
// The window has three turns of slots, used by the lane's operations in turn, all ones in the
// beginning. An operation that ends leaves its turn as ones again, or notes how much of it is not, and
// the next operation makes that ones.
//
// Invariant: a turn is ones when the first peer stores into it. A peer stores into the turn of
// operation e in operation e+3 for the first time, or e-3. It began e+3 after it ended e+2. If e+2 was
// full, it had a word of this rank's there, which this rank sent after its operation e+1 ended, and
// that is the one that cleared the turn. If it was not full, the peer looks whether this rank has begun
// e+2: Heard.
#pragma once
#include "flags.cuh"
#include "unaligned.cuh"

#ifndef WEFT_ENCODING
#define WEFT_ENCODING 1 // 1 words, 2 doubles, 3 pairs
#endif
#ifndef WEFT_RANKS
#define WEFT_RANKS 0
#endif
#ifndef WEFT_EXACT
#define WEFT_EXACT 0 // 1: what arrives has the bits of what was sent
#endif

namespace weft {

constexpr u32 RANKS = WEFT_RANKS; // of the communicator, or 0: any number

// THREADS are those of a block, at most: as many as have registers on an SM. Go: threads.
constexpr u32 THREADS = RANKS == 1 || RANKS == 2 ? 768 : 512;

// AHEAD is how many vectors a thread has sent when it waits for its first: what it does with those that
// arrive takes place while others are on the way.
#ifndef WEFT_AHEAD
#define WEFT_AHEAD 3
#endif
constexpr u32 AHEAD = WEFT_AHEAD;

// Lane is what kernels of all collectives have. Go: lane.
struct Lane {
	State *state;
	char *own;			   // this rank's part of the window
	u64 slots, turn_bytes; // in the window
	u64 cleared;		   // in the window: where the slots are that are made ones again: slots, but for loopback
	u64 sides;			   // in the window: a side word for each 16 bytes of slots
	u64 heard;			   // in the window: [ranks] words of 8 bytes: the last operation that each said it began
	u32 counts;			   // of blocks: those beyond the launch's count with it
	u32 clear;			   // the operation clears what it has read; else the next does
	u32 op;				   // the operation's number, for records
	u32 plain;			   // the operation has its plain form: plain.cuh
};

// ---- Encodings. A vector in a slot takes SLOT_BYTES.

#if WEFT_ENCODING == 1

constexpr u32 SLOT_BYTES = 16;
typedef uint4 Slot;

__device__ __forceinline__ void send(char *slot, uint4 v) { store_relaxed_sys16(slot, clean(v)); }
__device__ __forceinline__ Slot look(const char *slot) { return load_relaxed_sys16(slot); }
// A maximum of words is EMPTY if one of them is.
__device__ __forceinline__ bool there(const Slot &s) { return max(max(s.x, s.y), max(s.z, s.w)) != EMPTY; }
__device__ __forceinline__ uint4 value(const Slot &s) { return s; }
// most is the largest word of a vector as it travels, as a signed number. It is MOST if some word was ones, or looks as
// if it had been.
typedef int Most;
constexpr Most MOST = 0x7FFFFFFF;
__device__ __forceinline__ Most most(uint4 v) { return max(max((int)v.x, (int)v.y), max((int)v.z, (int)v.w)); }
__device__ __forceinline__ uint4 as_sent(uint4 v) { return clean(v); }
// ones_of are the words that are ones, a bit each, and with_ones makes them ones again.
__device__ __forceinline__ u32 ones_of(uint4 v) {
	return (u32)(v.x == EMPTY) | (u32)(v.y == EMPTY) << 1 | (u32)(v.z == EMPTY) << 2 | (u32)(v.w == EMPTY) << 3;
}
__device__ __forceinline__ uint4 with_ones(uint4 v, u32 ones) {
	return make_uint4(v.x | ones << 31, v.y | ones >> 1 << 31, v.z | ones >> 2 << 31, v.w | ones >> 3 << 31);
}

#elif WEFT_ENCODING == 2

constexpr u32 SLOT_BYTES = 16;
typedef ulonglong2 Slot;

__device__ __forceinline__ u64 clean64(u64 w) { return w == ~0ull ? ~0ull >> 1 : w; }
__device__ __forceinline__ void send(char *slot, uint4 v) {
	store_relaxed_sys_u64x2(slot, {clean64((u64)v.y << 32 | v.x), clean64((u64)v.w << 32 | v.z)});
}
__device__ __forceinline__ Slot look(const char *slot) { return load_relaxed_sys_u64x2(slot); }
__device__ __forceinline__ bool there(const Slot &s) { return s.x != ~0ull && s.y != ~0ull; }
__device__ __forceinline__ uint4 value(const Slot &s) {
	return make_uint4((u32)s.x, (u32)(s.x >> 32), (u32)s.y, (u32)(s.y >> 32));
}
typedef long long Most;
constexpr Most MOST = 0x7FFFFFFFFFFFFFFF;
__device__ __forceinline__ Most most(uint4 v) {
	return max((long long)((u64)v.y << 32 | v.x), (long long)((u64)v.w << 32 | v.z));
}
__device__ __forceinline__ uint4 as_sent(uint4 v) {
	u64 low = clean64((u64)v.y << 32 | v.x), high = clean64((u64)v.w << 32 | v.z);
	return make_uint4((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
}
__device__ __forceinline__ u32 ones_of(uint4 v) {
	return (u32)((v.x & v.y) == EMPTY) | (u32)((v.z & v.w) == EMPTY) << 1;
}
__device__ __forceinline__ uint4 with_ones(uint4 v, u32 ones) {
	return make_uint4(v.x, v.y | ones << 31, v.z, v.w | ones >> 1 << 31);
}

#else

constexpr u32 SLOT_BYTES = 32;
struct Slot {
	ulonglong2 low, high;
};

__device__ __forceinline__ void send(char *slot, uint4 v) {
	store_relaxed_sys_u64x2(slot, {v.x, v.y});
	store_relaxed_sys_u64x2(slot + 16, {v.z, v.w});
}
__device__ __forceinline__ Slot look(const char *slot) {
	return {load_relaxed_sys_u64x2(slot), load_relaxed_sys_u64x2(slot + 16)};
}
__device__ __forceinline__ bool there(const Slot &s) {
	return (s.low.x >> 32 | s.low.y >> 32 | s.high.x >> 32 | s.high.y >> 32) == 0;
}
__device__ __forceinline__ uint4 value(const Slot &s) {
	return make_uint4((u32)s.low.x, (u32)s.low.y, (u32)s.high.x, (u32)s.high.y);
}

#endif

// poll looks at a slot until a vector of peer's is there, or the wait is over. It is a function of its
// own, as poll_begun is: kernels of few instructions are fast ones, and each of them waits in many
// places.
__device__ __noinline__ Slot poll(const Group &g, State *state, u32 op, u64 epoch, u32 peer, const char *slot) {
	Wait w(g, state, op, epoch);
	Slot s = look(slot);
	while (!there(s) && w.more(peer, 0, 0)) s = look(slot);
	return s;
}

// await waits until a vector of peer's is in a slot that has been looked at, and gives it.
__device__ __forceinline__ uint4 await(Wait &w, u32 peer, const char *slot, Slot s) {
	if (!there(s) && !w.over) {
		s = poll(w.group, w.state, w.op, w.epoch, peer, slot);
		w.over = !there(s);
	}
	return value(s);
}

#if WEFT_EXACT && WEFT_ENCODING != 3

// side_of is where a slot's side word stands, in a window.
__device__ __forceinline__ u64 side_of(const Lane &l, u64 slot) { return l.sides + (slot - l.slots) / 4; }

__device__ __noinline__ void send_side(char *side, uint4 v) { store_relaxed_sys4(side, ones_of(v)); }

// await_side waits for what a side word says, and is EMPTY if the wait is over.
__device__ __noinline__ u32 await_side(const Group &g, State *state, u32 op, u64 epoch, u32 peer, char *side) {
	Wait w(g, state, op, epoch);
	u32 ones = await4(w, peer, side);
	if (ones != EMPTY) store_relaxed_sys4(side, EMPTY);
	return ones;
}

// deliver sends a vector to a slot in a window.
__device__ __forceinline__ void deliver(const Lane &l, char *window, u64 slot, uint4 v) {
	send(window + slot, v);
	if (__builtin_expect(most(as_sent(v)) == MOST, 0)) send_side(window + side_of(l, slot), v);
}

// restore gives a vector of peer's, which was in a slot of this rank's, the bits that it had. False: the wait is over.
__device__ __forceinline__ bool restore(const Group &g, const Lane &l, u64 epoch, u32 peer, const char *slot,
										uint4 &v) {
	if (__builtin_expect(most(v) != MOST, 1)) return true;
	u32 ones = await_side(g, l.state, l.op, epoch, peer, l.own + side_of(l, (u64)(slot - l.own)));
	if (ones == EMPTY) return false;
	v = with_ones(v, ones);
	return true;
}

#else

__device__ __forceinline__ void deliver(const Lane &, char *window, u64 slot, uint4 v) { send(window + slot, v); }
__device__ __forceinline__ bool restore(const Group &, const Lane &, u64, u32, const char *, uint4 &) { return true; }

#endif

// empty makes a slot ones.
__device__ __forceinline__ void empty(const Lane &l, char *slot) {
#pragma unroll
	for (u32 i = 0; i < SLOT_BYTES; i += 16) store16(slot + (l.cleared - l.slots) + i, empty16());
}

// ---- Operands.

// Operand is memory of the caller's, of any alignment. Go: operand.
struct Operand {
	char *at;
	u64 bytes;
	u32 unit; // its address, and where its parts begin, are multiples of this: 1, 2, 4, 8 or 16
	u32 zero;
};

// Span is a part of an operand, in elements. Go: span.
struct Span {
	u64 from, count;
};

// MOST_RANKS is how many ranks a parameter has room for, whatever domain the kernel is compiled for. Go:
// device.MaxRanks.
constexpr u32 MOST_RANKS = 72;

// Part is a part of an operand, as vectors of 16 bytes of which the last may be shorter.
struct Part {
	char *at;
	u64 bytes;
	u32 unit;

	__device__ __forceinline__ Part(const Operand &o) : at(o.at), bytes(o.bytes), unit(o.unit) {}
	__device__ __forceinline__ Part(const Operand &o, u64 from, u64 bytes) : at(o.at + from), bytes(bytes), unit(o.unit) {}

	// This one is of any address.
	__device__ __forceinline__ Part(char *at, u64 bytes) : at(at), bytes(bytes), unit(greatest_unit((u32)(u64)at | 16)) {}

	__device__ __forceinline__ u32 vectors() const { return (u32)((bytes + 15) / 16); }
	// whole: it is whole vectors of aligned memory.
	__device__ __forceinline__ bool whole() const { return unit == 16 && bytes % 16 == 0; }
	__device__ __forceinline__ uint4 load(u64 i) const {
		u64 rest = bytes - i * 16;
		if (__builtin_expect(unit == 16 && rest >= 16, 1)) return load_once(at + i * 16);
		u32 n = rest >= 16 ? 16 : (u32)rest;
		return load_slowly(at + i * 16, n, min(unit, greatest_unit(n)));
	}
	__device__ __forceinline__ void store(u64 i, uint4 v) const {
		u64 rest = bytes - i * 16;
		if (__builtin_expect(unit == 16 && rest >= 16, 1)) return store16(at + i * 16, v);
		u32 n = rest >= 16 ? 16 : (u32)rest;
		store_slowly(at + i * 16, n, min(unit, greatest_unit(n)), v);
	}
};

// fly moves up to N vectors of a thread: vector i, and every step-th after it that comes before end. It loads all of
// them before it stores the first. L and S are the halves: load(vector) and store(vector, data).
template <u32 N, class L, class S>
__device__ __forceinline__ void fly(u32 i, u32 step, u32 end, L load, S store) {
	uint4 v[N];
#pragma unroll
	for (u32 j = 0; j < N; j++) {
		if (i + j * step < end) v[j] = load(i + j * step);
	}
#pragma unroll
	for (u32 j = 0; j < N; j++) {
		if (i + j * step < end) store(i + j * step, v[j]);
	}
}

constexpr u32 FLYING = 4; // vectors of a thread, where nothing is encoded

// ---- The live ranks of an operation, numbered from 0 in rank order.
struct Live {
	RankSet set, others;
	u32 count, own; // how many, and this rank's number among them
	bool all;		// no rank is masked

	__device__ __forceinline__ Live(const Group &g, const RankSet &mask) {
		u32 n = RANKS != 0 ? RANKS : g.ranks;
		set = RankSet::first_ranks(n) & ~mask;
		others = set & ~RankSet::one(g.rank);
		all = !nonempty(RankSet::first_ranks(n) & mask);
		count = all ? n : set.count();
		own = number(g.rank);
	}
	__device__ __forceinline__ u32 number(u32 rank) const { return all ? rank : set.before(rank); }
};

// Peers reach the windows of other ranks. Where the number of ranks is known at compile time they are
// constants of the launch; else a warp keeps them in its registers.
struct Peers {
	const Group &g;
#if WEFT_RANKS == 0
	Windows windows;
	__device__ __forceinline__ Peers(const Group &g) : g(g), windows(g) {}
#else
	__device__ __forceinline__ Peers(const Group &g) : g(g) {}
#endif

	// each calls f(rank, window) for every rank of a set. All lanes of the warp call it.
	template <class F> __device__ __forceinline__ void each(const RankSet &set, F f) const {
#if WEFT_RANKS == 0
		for (Round round(set, g.rank, g.ranks); round.more();) {
			u32 r = round.next();
			f(r, windows.of(r));
		}
#else
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) {
			if (holds(set, r)) f(r, g.window[r]);
		}
#endif
	}
};

#if WEFT_RANKS != 0
// Vectors are one of each rank.
struct Vectors {
	uint4 v[RANKS];

	// of is a rank's that is not known at compile time.
	__device__ __forceinline__ uint4 of(u32 rank) const {
		uint4 w = v[0];
#pragma unroll
		for (u32 r = 1; r < RANKS; r++) {
			if (r == rank) w = v[r];
		}
		return w;
	}
};
#endif

// Parts are a vector of each rank's part, on the way to the ranks. Where the number of ranks is known at
// compile time all of them are loaded before the first is sent; a kernel loads those of a thread's first
// vector before it knows which ranks take part. F gives a rank's: load(rank).
struct Parts {
#if WEFT_RANKS == 0
	template <class F> __device__ __forceinline__ void fetch(F) {}
	// send sends to every rank of a set, at an offset in the rank's window, where has(rank). All lanes of
	// the warp call it.
	template <class H, class F>
	__device__ __forceinline__ void send(const Lane &l, const Peers &peers, const RankSet &to, u64 slot, H has,
										 F load) const {
		peers.each(to, [&](u32 r, char *there) {
			if (has(r)) deliver(l, there, slot, load(r));
		});
	}
	// of gives a rank's part, where that has been fetched.
	template <class F> __device__ __forceinline__ uint4 of(u32 rank, F load) const { return load(rank); }
#else
	Vectors all;

	template <class F> __device__ __forceinline__ void fetch(F load) {
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) all.v[r] = load(r);
	}
	template <class H, class F>
	__device__ __forceinline__ void send(const Lane &l, const Peers &peers, const RankSet &to, u64 slot, H has, F) const {
		peers.each(to, [&](u32 r, char *there) {
			if (has(r)) deliver(l, there, slot, all.v[r]);
		});
	}
	template <class F> __device__ __forceinline__ uint4 of(u32 rank, F) const { return all.of(rank); }
#endif
};

// Shares cuts vectors into one share for each live rank, or for so many of them, by its number: they differ by one at
// most.
struct Shares {
	u32 each, more; // the first `more` have one more

	__device__ __forceinline__ Shares(u32 vectors, const Live &live) {
		each = RANKS != 0 && live.all ? vectors / (RANKS != 0 ? RANKS : 1) : vectors / live.count;
		more = vectors - each * live.count;
	}
	__device__ __forceinline__ Shares(u32 vectors, u32 count) : each(vectors / count), more(vectors - each * count) {}
	__device__ __forceinline__ u32 first(u32 number) const { return number * each + min(number, more); }
	__device__ __forceinline__ u32 size(u32 number) const { return each + (number < more ? 1 : 0); }
	__device__ __forceinline__ u32 longest() const { return each + (more != 0 ? 1 : 0); }
};

// ---- An operation of the lane.

__device__ __noinline__ void refuse_operation(const Group &g, u32 op, u64 epoch) { refuse(g, op, epoch); }

__device__ __forceinline__ u32 thread_of_launch() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Collective is an operation that is under way, as a thread knows it. It is made before what reads memory, so that what
// it reads is on its way while the kernel asks for the first of its operands; begin comes next.
struct Collective {
	Operation o;
	u32 at, step; // the thread's number in the launch, and how many there are
	u64 turn;	  // this operation's turn of slots, in a window
	Count count;
	u32 stopped;
	WEFT_TRACED(u64 called; bool begun = false;)

	__device__ __forceinline__ Collective(const Lane &l) {
		State *state = l.state;
		const Count *counts = count_of(state, blockIdx.x);
		at = thread_of_launch();
		step = gridDim.x * blockDim.x;
		computed((u64)counts | at | step);
		wait_for_previous();
		WEFT_TRACED(called = nanoseconds();)
		count = *counts;
		stopped = state->stopped;
		o.mask = state->mask();
	}

	// begin is false if the lane is stopped.
	__device__ __forceinline__ bool begin(const Group &g, const Lane &l) {
		o.epoch = count.epoch + 1;
		o.turn = count.turn;
		o.own = l.own;
		turn = l.slots + o.turn * l.turn_bytes;
		WEFT_TRACED(o.trace = Trace(g, l.state, o.epoch);)
		WEFT_TRACED(begun = stopped == 0;)
		WEFT_TRACED(if (begun && threadIdx.x == 0) o.trace.put(SITE_BEGIN, SITE_BEGIN, NO_PEER, l.op, called);)
		if (__builtin_expect(stopped != 0, 0)) refuse_operation(g, l.op, o.epoch);
		return stopped == 0;
	}

	// Kernels end in many ways, and a block when its last thread does.
	WEFT_TRACED(__device__ __forceinline__ ~Collective() {
		if (!begun) return;
		__syncthreads();
		o.trace.first_at(SITE_END);
	})

	// What the operation before left: whether every rank had a word of every other, and how many vectors of
	// its turn, from the beginning on, are not ones.
	__device__ __forceinline__ bool full_before() const { return count.left >> 31 != 0; }
	__device__ __forceinline__ u32 vectors_before() const { return count.left & 0x7FFFFFFF; }

	// quiet says that nothing but data is on the way: see plain.cuh.
	__device__ __forceinline__ bool quiet() const { return stopped == 0 && full_before() && !nonempty(o.mask); }

	// clear makes ones of what the operation before left. It comes between sending and waiting.
	__device__ __forceinline__ void clear(const Lane &l) const {
		char *p = o.own + l.cleared + turn_before(o.turn) * l.turn_bytes;
		for (u32 i = at; i < vectors_before(); i += step) store16(p + (u64)i * 16, empty16());
	}

	// note leaves what the next operation goes by. All threads call it, once, while their data is on the
	// way. bytes are what the operation uses of its turn.
	__device__ __forceinline__ void note(const Lane &l, u64 bytes, bool full) const {
		__syncthreads(); // all have read the count
		u32 left = (l.clear != 0 ? 0 : (u32)(bytes / 16)) | (full ? 1u << 31 : 0);
		Count next = {o.epoch, o.turn == 2 ? 0 : o.turn + 1, left};
		for (u32 b = blockIdx.x + threadIdx.x * gridDim.x; b < l.counts; b += step) *count_of(l.state, b) = next;
	}
};

// slot_of is where a vector of src's stands in a window, of an operation whose ranks have slot_bytes each.
__device__ __forceinline__ u64 slot_of(u64 turn, u32 src, u64 slot_bytes, u64 vector) {
	return turn + src * slot_bytes + vector * SLOT_BYTES;
}

// Slots of a vector are looked at together: FLIGHT ranks' at a time.
constexpr u32 FLIGHT = RANKS != 0 ? RANKS : 4;

// Looking is how a thread looks again at slots in which nothing was: at those of all ranks AT_ONCE, so it sees the
// last vector soonest, or IN_TURN, where a look is back before the next one begins. What sends all before it looks is
// faster AT_ONCE. A two-shot looks IN_TURN: AT_ONCE it has as many more loads on their way while other warps have
// results to send, and on four H100s 1 MB takes 8.2 us and not 7.8. Rooted operations by helpers look IN_TURN too:
// AT_ONCE they lack registers.
enum Looking { AT_ONCE, IN_TURN };

// TRIES is how often a thread looks at all its slots before it waits for one after the other, by the clock.
constexpr u32 TRIES = 64;

// Looks are what was seen in the slots of a vector, of FLIGHT ranks from first on. A thread looks for its
// first vector before it clears and notes what it must, which takes as long as the look.
struct Looks {
	Slot s[FLIGHT];

	// missing are those ranks, a bit each, in whose slots nothing was, where wants(j) for the rank first + j.
	template <class W> __device__ __forceinline__ u32 missing(W wants) const {
		u32 m = 0;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) m |= (u32)(wants(j) && !there(s[j])) << j;
		return m;
	}

	// again looks at the slots of missing ranks once more. All looks are on their way before one of them is back: one
	// after the other they would take as many times as long.
	__device__ __forceinline__ void again(u32 missing, const char *slots, u64 slot_bytes) {
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if ((missing >> j & 1) != 0) s[j] = look(slots + j * slot_bytes);
		}
	}

	// try_all looks until all are there that wants, or in vain. It returns those that are missing. Kernels that trace call
	// saw(j) for each that is there, after every look.
	template <class W, class F>
	__device__ __forceinline__ u32 try_all(const char *slots, u64 slot_bytes, W wants, F saw) {
		u32 rest = missing(wants);
		WEFT_TRACED(show(wants, saw);)
#pragma unroll 1
		for (u32 tries = 0; rest != 0 && tries < TRIES; tries++) {
			again(rest, slots, slot_bytes);
			rest = missing(wants);
			WEFT_TRACED(show(wants, saw);)
		}
		return rest;
	}

#if WEFT_TRACE
	template <class W, class F> __device__ __forceinline__ void show(W wants, F saw) const {
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (wants(j) && there(s[j])) saw(j);
		}
	}
#endif

	template <class W> __device__ __forceinline__ void look_at(u32 first, u32 ranks, const RankSet &from,
															  const char *slots, u64 slot_bytes, W wants) {
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 r = first + j;
			if (r < ranks && holds(from, r) && wants(r)) s[j] = look(slots + r * slot_bytes);
		}
	}
};

// Arrivals are the slots of one vector after the other in which peers' data arrives.
template <Looking LOOKING = AT_ONCE> struct Arrivals {
	Wait &wait;
	const Lane &lane;
	const Live &live;
	char *slots; // rank 0's, of vector 0
	u64 slot_bytes;
	u32 ranks;
	Looks looks;
	WEFT_TRACED(u32 phase = 0, noted = 0;) // phase 1: of what was reduced; noted: ranks that were seen before take

	__device__ __forceinline__ Arrivals(Wait &w, const Lane &l, const Live &live, char *slots, u64 slot_bytes)
		: wait(w), lane(l), live(live), slots(slots), slot_bytes(slot_bytes), ranks(RANKS != 0 ? RANKS : w.group.ranks) {}

	__device__ __forceinline__ char *slot(u32 rank, u32 vector) const {
		return slots + (u64)vector * SLOT_BYTES + rank * slot_bytes;
	}

	// look begins a vector: its data comes from a set of ranks, where wants(rank).
	template <class W> __device__ __forceinline__ void look(u32 vector, const RankSet &from, W wants) {
		looks.look_at(0, ranks, from, slot(0, vector), slot_bytes, wants);
	}
	__device__ __forceinline__ void look(u32 vector) {
		look(vector, live.others, [](u32) { return true; });
	}

	__device__ __forceinline__ uint4 take(u32 rank, u32 vector, const Slot &seen) {
		uint4 v = await(wait, rank, slot(rank, vector), seen);
		if (!wait.over) wait.over = !restore(wait.group, lane, wait.epoch, rank, slot(rank, vector), v);
		WEFT_TRACED(if (!wait.over) note(rank); noted &= ~(1u << (rank & 31));)
		if (lane.clear != 0) empty(lane, slot(rank, vector));
		return v;
	}

#if WEFT_TRACE
	// note notes that a rank's vector was seen, the first time until it is taken.
	__device__ __forceinline__ void note(u32 rank) {
		if (threadIdx.x != 0 || (noted >> (rank & 31) & 1) != 0) return;
		noted |= 1u << (rank & 31);
		wait.trace.arrived(rank, phase);
	}
#endif

	// fold reduces a vector that was looked at, of every live rank in rank order; own is this rank's. F is
	// a Fold.
	template <class F> __device__ __forceinline__ void fold(F &fold, u32 vector, uint4 own) {
		u32 me = wait.group.rank;
		if (RANKS != 0 && live.all) {
			if (LOOKING == AT_ONCE && !wait.over) {
				looks.try_all(slot(0, vector), slot_bytes, [&](u32 r) { return r != me; },
							  [&](u32 r) { WEFT_TRACED(note(r);) });
			}
			uint4 v[FLIGHT];
#pragma unroll
			for (u32 r = 0; r < FLIGHT; r++) {
				v[r] = own;
				if (r != me) v[r] = take(r, vector, looks.s[r]);
			}
			return fold.rows(v);
		}
		bool begun = false;
		for (u32 first = 0; first < ranks; first += FLIGHT) {
			if (first != 0)
				looks.look_at(first, ranks, live.others, slot(0, vector), slot_bytes, [](u32) { return true; });
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u32 r = first + j;
				if (r >= ranks || !holds(live.set, r)) continue;
				uint4 v = own;
				if (r != me) v = take(r, vector, looks.s[j]);
				if (begun) {
					fold.take(v);
				} else {
					fold.start(v);
				}
				begun = true;
			}
		}
	}

	// each calls f(rank, vector's data) for every rank of a set that was looked at.
	template <class W, class F> __device__ __forceinline__ void each(u32 vector, const RankSet &from, W wants, F f) {
		for (u32 first = 0; first < ranks; first += FLIGHT) {
			if (first != 0) looks.look_at(first, ranks, from, slot(0, vector), slot_bytes, wants);
			auto waits = [&](u32 j) { return first + j < ranks && holds(from, first + j) && wants(first + j); };
			if (LOOKING == AT_ONCE && !wait.over) {
				looks.try_all(slot(first, vector), slot_bytes, waits, [&](u32 j) { WEFT_TRACED(note(first + j);) });
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u32 r = first + j;
				if (r >= ranks || !holds(from, r) || !wants(r)) continue;
				uint4 v = take(r, vector, looks.s[j]);
				if (!wait.over) f(r, v);
			}
		}
	}
};

// Words of 8 bytes do not wrap. One of 4 that no operation has written for 2^31 others would seem to be
// of the future.

// say_begun tells every rank that this one has begun the operation. Rooted and sparse operations call
// it, on all threads.
__device__ __forceinline__ void say_begun(const Group &g, const Lane &l, const Operation &o) {
	u32 r = threadIdx.x;
	if (blockIdx.x == 0 && r < g.ranks && !holds(o.mask, r))
		store_relaxed_sys_u64(g.window[r] + l.heard + g.rank * 8, o.epoch);
}

// poll_begun looks at a word until peer has begun an operation, and is false if the wait is over.
__device__ __noinline__ bool poll_begun(const Group &g, State *state, u32 op, u64 epoch, u32 peer, const char *word,
										u64 begun) {
	Wait w(g, state, op, epoch);
	u64 v = load_relaxed_sys_u64(word);
	while (v < begun && w.more(peer, begun, v)) v = load_relaxed_sys_u64(word);
	return v >= begun;
}

// await_begun waits until the ranks of a set have begun the operation before this one, unless that was
// full. All lanes of the warp call it, before they send.
__device__ __forceinline__ void await_begun(const Group &g, const Lane &l, const Collective &c, Wait &w,
											const RankSet &to) {
	WEFT_TRACED(c.o.trace.signalled_first();) // what is sent comes behind it
	if (c.full_before()) return;
#pragma unroll 1
	for (u32 r = threadIdx.x & 31; r < g.ranks; r += 32) {
		if (holds(to, r) && r != g.rank && !w.over)
			w.over = !poll_begun(g, w.state, w.op, w.epoch, r, c.o.own + l.heard + r * 8, c.o.epoch - 1);
	}
	__syncwarp();
}

} // namespace weft
