// Copies: each source, or one for all, goes to its own sink. Packets are sent, or received.
#pragma once
#include "vectors.cuh"

namespace weft {

namespace plan {

// Copies are operands that are copied.
struct Copies : Operands {
	// pairs copies each source to its own sink, or one source to all sinks, which are packets or not.
	template <bool WHOLE, bool PACKET> __device__ __forceinline__ void pairs(const Data &d, u64 from, u64 to) const {
		u64 step = (u64)blockDim.x * 16;
		u32 sinks = d.first + d.sources;
		auto move = [&](char *sink, u64 i, uint4 v) {
			if (PACKET) {
				put_packet<WHOLE>(sink + 2 * i, to - i, v);
			} else {
				put<WHOLE>(sink + i, to - i, v);
			}
		};
		uint4 v[FLIGHT];
		if (d.sources == 1) {
			const char *source = at(d.first);
#pragma unroll 1
			for (u64 i = from + me * 16; i < to; i += FLIGHT * step) {
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (i + j * step < to) v[j] = take<WHOLE>(source + i + j * step, to - i - j * step);
				}
#pragma unroll 1
				for (u32 k = 0; k < d.sinks; k++) {
					char *sink = at(sinks + k);
#pragma unroll
					for (u32 j = 0; j < FLIGHT; j++) {
						if (i + j * step < to) move(sink, i + j * step, v[j]);
					}
				}
			}
			return;
		}
#pragma unroll 1
		for (u64 i = from + me * 16; i < to; i += step) {
#pragma unroll 1
			for (u32 k = 0; k < d.sources; k += FLIGHT) {
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < d.sources) v[j] = take<WHOLE>(at(d.first + k + j) + i, to - i);
				}
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < d.sources) move(at(sinks + k + j), i, v[j]);
				}
			}
		}
	}

	// receive_some copies the packets of each source to its own sink, from the thread's vector at i on. It gives the first
	// one whose packets do not come soon.
	template <bool WHOLE> __device__ __forceinline__ u64 receive_some(const Data &d, u64 i, u64 to) const {
		u64 step = (u64)blockDim.x * 16;
#pragma unroll 1
		for (; i < to; i += step) {
			u64 rest = to - i;
#pragma unroll 1
			for (u32 k = 0; k < d.sources; k += FLIGHT) {
				Packet v[FLIGHT];
				if (!arrive<WHOLE>(v, d.first + k, d.sources - k, 2 * i, rest)) return i;
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < d.sources) put<WHOLE>(at(d.first + d.sources + k + j) + i, rest, v[j].value());
				}
			}
		}
		return i;
	}
};

} // namespace plan
} // namespace weft
