// Traces of operations: when each block of an operation came to which place. Without WEFT_TRACE nothing of it is
// compiled, and a kernel's program is what it would be without these lines.
//
// A lane that is traced has a ring of operations before its State, in this GPU's memory:
//
//	ring       a power of two of operations; number e of a block stands at e modulo the ring's size, counted from
//	           the State downwards
//	operation  a line of records for each of the lane's counts: for each block
//	line       FIXED_SITES records, and two for each rank; 128 bytes or a multiple
//	record     16 bytes, written by one store: the time, the operation's number, and in a word the site, the peer, a
//	           detail and a check of the other words, for the host may read while it is written
//
// Each site has a record of its own in a line, so nothing counts and nothing is atomic. Who comes to a site again in
// the same operation overwrites what it left: of arrivals the last one stays. A record whose number is not the expected
// one is of another operation, or of none.
//
// State.trace is 0 or says how the ring is laid out. The host sets and clears it while kernels run, of graphs too.
//
// An arrow goes from SIGNALLED of a block to ARRIVED at the block of the same number on the peer, in the same phase.
// The time of SIGNALLED is read before the store that signals, and that of ARRIVED when it was seen.
#pragma once
#include "ptx.cuh"

#ifndef WEFT_TRACE
#define WEFT_TRACE 0
#endif

#if WEFT_TRACE
#define WEFT_TRACED(...) __VA_ARGS__ // what only kernels that trace have
#else
#define WEFT_TRACED(...)
#endif

#if WEFT_TRACE

namespace weft {

// Sites, as records name them. Go: the Sites of package trace.
enum Site {
	SITE_BEGIN = 1, SITE_LOADED, SITE_PUSHED, SITE_SIGNALLED, SITE_ARRIVED, SITE_REDUCED, SITE_STORED, SITE_END,
	SITE_ROUTED, SITE_COUNTED, SITE_QUANTISED, SITE_PLACED
};

constexpr u32 FIXED_SITES = 16; // records of a line before those of arrivals. Go: device.TraceSites
constexpr u32 NO_PEER = 255, TRACE_CHECK = 0x9E3779B1; // Go: device.TraceNoPeer, traceCheck

// Trace is where a thread leaves the records of an operation's block.
struct Trace {
	const char *state;
	u32 armed, ranks, epoch, block;

	__device__ __forceinline__ Trace() : state(nullptr), armed(0), ranks(0), epoch(0), block(0) {}

	// g is a Group, s a State, first the lane's first Count.
	template <class G, class S> __device__ __forceinline__ Trace(const G &g, const S *s, u64 epoch, u32 first = 0)
		: state((const char *)s), armed(s->trace), ranks(g.ranks), epoch((u32)epoch), block(first + blockIdx.x) {}

	// put leaves a record in a place of the line.
	__device__ __forceinline__ void put(u32 place, Site site, u32 peer, u32 detail, u64 time) const {
		if (armed == 0) return;
		u64 back = (u64)((epoch & ((1u << (armed & 31)) - 1)) + 1) * ((u64)(armed >> 5) * 128);
		u64 line = ((u64)(FIXED_SITES + 2 * ranks) * 16 + 127) / 128 * 128;
		char *at = (char *)state - back + block * line + place * 16;
		u32 low = (u32)time, high = (u32)(time >> 32), check = (low ^ high << 7 ^ epoch << 13) * TRACE_CHECK >> 20;
		store16(at, make_uint4(low, high, epoch, (u32)site | peer << 4 | (detail & 255) << 12 | check << 20));
	}

	// at is a site that a block comes to once.
	__device__ __forceinline__ void at(Site site, u32 detail = 0) const {
		if (armed != 0) put((u32)site, site, NO_PEER, detail, nanoseconds());
	}
	__device__ __forceinline__ void begin(u32 op) const { at(SITE_BEGIN, op); }

	// first_at is at, by the block's first thread.
	__device__ __forceinline__ void first_at(Site site) const {
		if (threadIdx.x == 0) at(site);
	}

	// signalled comes before the store by which peers know, of this block: all of them, or one.
	__device__ __forceinline__ void signalled(u32 phase = 0, u32 peer = NO_PEER) const {
		if (armed != 0) signalled_at(nanoseconds(), phase, peer);
	}
	__device__ __forceinline__ void signalled_first(u32 phase = 0) const {
		if (threadIdx.x == 0) signalled(phase);
	}
	// signalled_by_all is for signals that any thread of the block may send next. All threads call it.
	__device__ __forceinline__ void signalled_by_all(u32 phase = 0) const {
		signalled_first(phase);
		__syncthreads();
	}
	__device__ __forceinline__ void signalled_at(u64 time, u32 phase = 0, u32 peer = NO_PEER) const {
		put(phase == 0 ? (u32)SITE_SIGNALLED : FIXED_SITES - 1, SITE_SIGNALLED, peer, phase, time);
	}
	__device__ __forceinline__ void arrived(u32 peer, u32 phase = 0) const {
		if (armed != 0) put(FIXED_SITES + phase * ranks + peer, SITE_ARRIVED, peer, phase, nanoseconds());
	}
};

} // namespace weft

#endif
