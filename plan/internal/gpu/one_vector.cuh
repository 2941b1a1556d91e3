// Operations of which a thread has one vector at most.
#pragma once
#include "folds.cuh"

namespace weft {

namespace plan {

// Mover moves data of operations. An operation of which a thread has one vector takes as long as its instructions, of
// which these are few.
template <bool PACKETS> struct Mover : Folds {
	// read reads the vector at i of plain sources, of which there are `left`.
	__device__ __forceinline__ static void read(uint4 (&v)[FLIGHT], char *const (&p)[FLIGHT], u32 left, u64 i) {
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			v[j] = make_uint4(0, 0, 0, 0); // so that nothing has to be kept
			if (j < left) v[j] = load_once(p[j] + i);
		}
	}

	// fetch is read of those from operand k on.
	__device__ __forceinline__ void fetch(uint4 (&v)[FLIGHT], u32 k, u32 left, u64 i) const {
		char *p[FLIGHT];
		some(p, k);
		read(v, p, left, i);
	}

	// give stores vectors at i, each in its own sink, from operand k on, of which there are `left`.
	__device__ __forceinline__ void give(const uint4 (&v)[FLIGHT], u32 k, u32 left, bool sends, u64 i) const {
		char *p[FLIGHT];
		some(p, k);
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (j >= left) continue;
			if (PACKETS && sends) {
				send(p[j] + 2 * i, flag, v[j]);
			} else {
				store16(p[j] + i, v[j]);
			}
		}
	}

	// give_all stores a vector in all sinks, of which the first so many are plain.
	__device__ __forceinline__ void give_all(uint4 v, const Data &d, u32 plain, u64 i) const {
		u32 sinks = d.first + d.sources;
#pragma unroll 1
		for (u32 k = 0; k < plain; k++) store16(at(sinks + k) + i, v);
#pragma unroll 1
		for (u32 k = plain; PACKETS && k < d.sinks; k++) send(at(sinks + k) + 2 * i, flag, v);
	}

	// pair_one is pairs of one vector, of which the first sources' have been read.
	__device__ __forceinline__ void pair_one(const Head &h, const Data &d, uint4 (&v)[FLIGHT], u64 i) const {
		bool sends = h.has(SEND);
		if (d.sources == 1) return give_all(v[0], d, sends ? 0 : d.sinks, i);
		for (u32 k = 0;;) {
			give(v, d.first + d.sources + k, d.sources - k, sends, i);
			if ((k += FLIGHT) >= d.sources) return;
			fetch(v, d.first + k, d.sources - k, i);
		}
	}

	// one moves an operation's vector at i. False: its packets do not come soon, for one of the lanes: see arrive.
	__device__ __forceinline__ bool one(const Head &h, const Data &d, u64 i, u32 lanes) const {
		uint4 v[FLIGHT];
		if (h.kind() == PAIRS) {
			fetch(v, d.first, d.sources, i);
			pair_one(h, d, v, i);
			return true;
		}
		bool folds = !PACKETS || h.kind() == FOLD, early = PACKETS && h.has(EARLY);
		u32 packets = !PACKETS ? 0 : folds ? d.packets & 0xFFFF : d.sources;
		uint4 result = make_uint4(0, 0, 0, 0); // of a single source
		uint4 mine = result;				   // the first plain source, which is on its way while packets are
		if (early) mine = load_once(at(d.first + packets) + i);
		Fold f(How{SUM, 0, 0, nullptr}, 0);
		f.clear();
		auto add = [&](u32 k, uint4 v) {
			if (k == 0) {
				result = v;
				f.start(v);
			} else {
				f.take(v);
			}
		};
#pragma unroll 1
		for (u32 k = 0; PACKETS && k < packets; k += FLIGHT) {
			Packet seen[FLIGHT];
			if (!arrive<true>(seen, d.first + k, packets - k, 2 * i, 16, lanes)) return false;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) v[j] = seen[j].value();
			if (!folds) {
				give(v, d.first + d.sources + k, packets - k, false, i);
				continue;
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (k + j < packets) add(k + j, v[j]);
			}
		}
		if (!folds) return true;
		u32 k = packets;
		if (early) add(k++, mine);
#pragma unroll 1
		for (; k < d.sources; k += FLIGHT) {
			fetch(v, d.first + k, d.sources - k, i);
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (k + j < d.sources) add(k + j, v[j]);
			}
		}
		if (d.sources > 1) result = f.result();
		give_all(result, d, d.packets >> 16, i);
		return true;
	}
};

} // namespace plan
} // namespace weft
