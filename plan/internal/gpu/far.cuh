// How a plan's blocks reach ranks of other hosts: through port channels, which a proxy on the host serves. doc.go says
// how, and why it is right.
#pragma once
#include "packets.cuh"
#include "port.cuh"
#include "unaligned.cuh"

namespace weft {

namespace plan {

// Stream is what one block pushes to one rank of another host, as either end has it. Go: farStream.
struct Stream {
	PortChannel channel;
	u64 flushed; // the position behind the last push that has a signal, in the ring; or 0
	u64 zero;
};

// Push is a line of a PUSH.
struct Push {
	u32 stream, out, in; // where the data is in the outbox and goes to in the peer's inbox, in chunks
	u32 what;			 // CARRIES, SIGNALS
};
enum { CARRIES = 1, SIGNALS = 2 };

// push pushes what this thread's line says.
__device__ __forceinline__ bool push(const Plan &a, Wait &w, const Push &p, u64 from, u64 to) {
	Stream &s = a.streams[p.stream];
	u64 out = a.outbox_at + p.out * a.chunk + from, in = p.in * a.chunk + from, bytes = to - from, position;
	if ((p.what & CARRIES) == 0 || bytes == 0) {
		if ((p.what & SIGNALS) == 0) return true;
		out = in = bytes = 0;
	}
	if ((p.what & SIGNALS) == 0) return s.channel.put(w, in, out, bytes);
	if (!s.channel.put_with_signal_then_flush(w, in, out, bytes, position)) return false;
	s.flushed = position + 1;
	return true;
}

// arrive waits for the peer's next signal. Time counts when the plan's blocks of this rank have ended: before, what the
// peer pushes may depend on them, and their waits say who is late.
__device__ __forceinline__ bool arrive(const Plan &a, Wait &w, const PortChannel &c) {
	while (!c.poll()) {
		if ((load_relaxed_sys_u64(&c.line->arrived) & PORT_TOP) != 0) {
			w.give_up(c.peer, CAUSE_LOST, 1, 0);
			return false;
		}
		if (load_relaxed_gpu4(a.ended) != (u32)w.epoch * a.own) w.start = 0;
		if (!w.more(c.peer, 1, 0)) return false;
	}
	return true;
}

// load_landed reads up to 16 bytes of the host's memory, past the caches.
__device__ __forceinline__ uint4 load_landed(const char *p, u32 bytes, u32 unit) {
	u32 w[4] = {0, 0, 0, 0};
	for (u32 i = 0; i < bytes;) {
		if (unit >= 4) {
			w[i / 4] = load_relaxed_sys4(p + i);
			i += 4;
		} else {
			w[i / 4] |= (u32) * (const volatile u8 *)(p + i) << i % 4 * 8;
			i++;
		}
	}
	return make_uint4(w[0], w[1], w[2], w[3]);
}

// land stores the bytes [from, to) of what has come where they belong, as they are or as packets.
__device__ __forceinline__ void land(const Plan &a, const char *in, char *out, bool packets, u32 flag, u64 from,
									 u64 to) {
	u64 step = (u64)blockDim.x * 16;
	if (a.whole != 0) {
#pragma unroll 1
		for (u64 i = from + threadIdx.x * 16; i < to; i += FLIGHT * step) {
			uint4 v[FLIGHT];
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (i + j * step < to) v[j] = load_relaxed_sys16(in + i + j * step);
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u64 at = i + j * step;
				if (at >= to) continue;
				if (packets) {
					send(out + 2 * at, flag, v[j]);
				} else {
					store16(out + at, v[j]);
				}
			}
		}
		return;
	}
#pragma unroll 1
	for (u64 i = from + threadIdx.x * 16; i < to; i += step) {
		u64 rest = to - i;
		u32 n = rest >= 16 ? 16 : (u32)rest;
		uint4 v = load_landed(in + i, n, min(a.unit, greatest_unit(n)));
		if (packets) {
			send_slowly(out + 2 * i, (n + 3) / 4, flag, v);
		} else {
			store_slowly(out + i, n, min(a.unit, greatest_unit(n)), v);
		}
	}
}

// far runs an operation of ports to other hosts, whose head is at code, on the bytes [from, to) of its operands. False:
// a wait has ended in vain. It is a function of its own, as other hosts are far.
__device__ __noinline__ bool far(const Plan &a, const uint4 *code, const u64 *operands, u64 epoch, u32 flag, u64 from,
								 u64 to) {
	Head h = *(const Head *)code;
	u32 kind = h.what & 0xFF;
	if (kind == LAND) {
		u32 first = 2 * a.uses + ((const Data *)(code + 1))->first;
		land(a, (const char *)operands[first], (char *)operands[first + 1], (h.what >> 8 & SEND) != 0, flag, from, to);
		return true;
	}
	Wait w(a.group, a.state, h.site, epoch);
	if (kind == PUSH) {
		const Push *lines = (const Push *)(code + 3);
		for (u32 i = threadIdx.x; i < h.count && !w.over; i += blockDim.x) push(a, w, lines[i], from, to);
		return !w.over;
	}
	const u32 *streams = (const u32 *)(code + 1);
	for (u32 i = threadIdx.x; i < h.count && !w.over; i += blockDim.x) {
		Stream &s = a.streams[streams[i]];
		switch (kind) {
		case BEGIN: s.channel.signal(w); break;
		case ADMIT: s.channel.wait(w); break;
		case ARRIVE: arrive(a, w, s.channel); break;
		case FLUSH:
			if (s.flushed != 0) s.channel.await_flush(w, s.flushed - 1);
		}
	}
	return !w.over;
}

} // namespace plan
} // namespace weft
