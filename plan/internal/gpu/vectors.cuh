// How a thread reads and writes its vectors of 16 bytes of operands: plain, whole or less than that, and as packets.
//
// Ordering: a vector is one thread's, in all operations. What another thread wrote there comes before by the signal,
// barrier or nop that the plan has between, or is a packet.
#pragma once
#include "packets.cuh"
#include "unaligned.cuh"

namespace weft {

namespace plan {

__device__ __forceinline__ uint4 load(const Plan &a, const char *p, u64 rest) {
	u32 n = rest >= 16 ? 16 : (u32)rest;
	return load_slowly(p, n, min(a.unit, greatest_unit(n)));
}

__device__ __forceinline__ void store(const Plan &a, char *p, u64 rest, uint4 v) {
	u32 n = rest >= 16 ? 16 : (u32)rest;
	store_slowly(p, n, min(a.unit, greatest_unit(n)), v);
}

// Operands is what threads know of operations on data. Vector u of one is that of thread u mod blockDim.x, in plain
// operations and in packets alike, so a thread sees what it wrote itself.
struct Operands {
	const Plan &a;
	const u64 *operands; // addresses, of which operations count theirs from the first
	u64 epoch;
	u32 flag; // of this launch's packets
	u32 me;	  // the thread

	__device__ __forceinline__ char *at(u32 i) const { return (char *)operands[i]; }

	// some gives the addresses of operands from the k-th on. They are read before anything that takes one: each alone
	// would be waited for. Those that are none stand in memory all the same (Go: endVectors).
	__device__ __forceinline__ void some(char *(&p)[FLIGHT], u32 k) const {
		const u64 *from = operands + k;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) p[j] = (char *)from[j];
	}

	__device__ __forceinline__ u32 words(u64 rest) const { return rest >= 16 ? 4 : (u32)(rest + 3) / 4; }

	template <bool WHOLE> __device__ __forceinline__ uint4 take(const char *p, u64 rest) const {
		if (WHOLE) return load_once(p);
		return load(a, p, rest);
	}

	template <bool WHOLE> __device__ __forceinline__ void put(char *p, u64 rest, uint4 v) const {
		if (WHOLE) return store16(p, v);
		store(a, p, rest, v);
	}

	template <bool WHOLE> __device__ __forceinline__ void put_packet(char *p, u64 rest, uint4 v) const {
		if (WHOLE) return send(p, flag, v);
		send_slowly(p, words(rest), flag, v);
	}

	template <bool WHOLE> __device__ __forceinline__ Packet see(const char *p, u64 rest) const {
		if (WHOLE) return look(p);
		return look_slowly(p, words(rest), flag);
	}

	// arrive looks at vectors of packets, `place` behind the sources from operand k on, of which there are `left`, until
	// all are there. False: they do not come soon. Lanes stay together, unless there are none: then each is for itself.
	template <bool WHOLE> __device__ __forceinline__ bool arrive(Packet (&v)[FLIGHT], u32 k, u32 left, u64 place,
																 u64 rest, u32 lanes = 0) const {
		char *p[FLIGHT];
		some(p, k);
		bool all = false;
#pragma unroll 1
		for (u32 tries = 0; !all && tries < TRIES; tries++) {
			all = true;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				v[j] = Packet::none(flag); // so that nothing has to be kept from try to try
				if (j < left) v[j] = see<WHOLE>(p[j] + place, rest);
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) all &= v[j].there(flag);
		}
		return lanes == 0 ? all : __all_sync(lanes, all) != 0;
	}

	// await waits by the clock until an operation's packets are there, of the vector at i.
	__device__ __forceinline__ bool await(const uint4 *code, const Head &h, const Data &d, u64 i, u32 words) const {
		bool receives = h.kind() == RECEIVE;
		return poll(a.group, a.state, h.site, receives ? 1 : 0, epoch, (const u32 *)(code + 3), flag, operands + d.first,
					receives ? d.sources : d.packets & 0xFFFF, 2 * i, words);
	}
};

} // namespace plan
} // namespace weft
