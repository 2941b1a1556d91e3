// Folds: all sources of an operation are reduced, in their order, and the result goes to every sink.
//
//	fold_some   sources and sinks may be packets; a thread has one vector on its way
//	fold_plain  there are no packets; a thread has several
#pragma once
#include "copies.cuh"

namespace weft {

namespace plan {

// Folds are operands that are folded, or copied.
struct Folds : Copies {
	// fold_some folds all sources, in their order, and stores the result in every sink. It begins and ends as receive_some
	// does.
	template <bool WHOLE> __device__ __forceinline__ u64 fold_some(const Data &d, u64 i, u64 to, u32 op,
																   bool early) const {
		u64 step = (u64)blockDim.x * 16;
		u32 packets = d.packets & 0xFFFF, plain = d.packets >> 16, sinks = d.first + d.sources;
#pragma unroll 1
		for (; i < to; i += step) {
			u64 rest = to - i;
			Fold f(How{op, 0, 0, nullptr}, 0);
			f.clear();
			uint4 result = make_uint4(0, 0, 0, 0); // of a single source
			uint4 mine = result;				   // the first plain source, which is on its way while packets are
			if (early) mine = take<WHOLE>(at(d.first + packets) + i, rest);
			auto add = [&](u32 k, uint4 v) {
				if (k == 0) {
					result = v;
					f.start(v);
				} else {
					f.take(v);
				}
			};
#pragma unroll 1
			for (u32 k = 0; k < packets; k += FLIGHT) {
				Packet v[FLIGHT];
				if (!arrive<WHOLE>(v, d.first + k, packets - k, 2 * i, rest)) return i;
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < packets) add(k + j, v[j].value());
				}
			}
			u32 k = packets;
			if (early) add(k++, mine);
#pragma unroll 1
			for (; k < d.sources; k += FLIGHT) {
				uint4 v[FLIGHT];
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					v[j] = make_uint4(0, 0, 0, 0);
					if (k + j < d.sources) v[j] = take<WHOLE>(at(d.first + k + j) + i, rest);
				}
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < d.sources) add(k + j, v[j]);
				}
			}
			if (d.sources > 1) result = f.result();
#pragma unroll 1
			for (k = 0; k < plain; k++) put<WHOLE>(at(sinks + k) + i, rest, result);
#pragma unroll 1
			for (k = plain; k < d.sinks; k++) put_packet<WHOLE>(at(sinks + k) + 2 * i, rest, result);
		}
		return i;
	}

	// fold_plain folds all sources, in their order, and stores the result in every sink: none are packets. Several vectors
	// of a thread are on their way together, of so many sources, for one alone does not keep memory busy.
	template <bool WHOLE, u32 VECTORS, u32 SOURCES>
	__device__ __forceinline__ void fold_plain(const Data &d, u64 from, u64 to, u32 op) const {
		u64 step = (u64)blockDim.x * 16;
		u32 sinks = d.first + d.sources;
#pragma unroll 1
		for (u64 i = from + me * 16; i < to; i += VECTORS * step) {
			Fold f[VECTORS];
#pragma unroll
			for (u32 j = 0; j < VECTORS; j++) {
				f[j] = Fold(How{op, 0, 0, nullptr}, 0);
				f[j].clear();
			}
#pragma unroll 1
			for (u32 k = 0; k < d.sources; k += SOURCES) {
				uint4 v[SOURCES][VECTORS];
#pragma unroll
				for (u32 s = 0; s < SOURCES; s++) {
#pragma unroll
					for (u32 j = 0; j < VECTORS; j++) {
						v[s][j] = make_uint4(0, 0, 0, 0);
						if (k + s < d.sources && i + j * step < to) {
							v[s][j] = take<WHOLE>(at(d.first + k + s) + i + j * step, to - i - j * step);
						}
					}
				}
#pragma unroll
				for (u32 s = 0; s < SOURCES; s++) {
#pragma unroll
					for (u32 j = 0; j < VECTORS; j++) {
						if (k + s == 0) {
							f[j].start(v[s][j]);
						} else if (k + s < d.sources) {
							f[j].take(v[s][j]);
						}
					}
				}
			}
			uint4 result[VECTORS];
#pragma unroll
			for (u32 j = 0; j < VECTORS; j++) result[j] = f[j].result();
#pragma unroll 1
			for (u32 k = 0; k < d.sinks; k++) {
				char *sink = at(sinks + k) + i;
#pragma unroll
				for (u32 j = 0; j < VECTORS; j++) {
					if (i + j * step < to) put<WHOLE>(sink + j * step, to - i - j * step, result[j]);
				}
			}
		}
	}

	template <bool WHOLE> __device__ __forceinline__ void fold_plain(const Data &d, u64 from, u64 to, u32 op) const {
		if (!WHOLE) {
			fold_plain<WHOLE, 1, FLIGHT>(d, from, to, op);
		} else if (d.sources == 2) {
			fold_plain<WHOLE, 4, 2>(d, from, to, op);
		} else {
			fold_plain<WHOLE, 2, FLIGHT>(d, from, to, op);
		}
	}

	// add moves the bytes [from, to) of an operation that has no packets and compares nothing.
	__device__ __forceinline__ void add(const Data &d, u64 from, u64 to) const {
		if (d.sources == 1) {
			pairs<true, false>(d, from, to);
		} else {
			fold_plain<true>(d, from, to, SUM);
		}
	}
};

} // namespace plan
} // namespace weft
