// Channels: put, get, signal and wait, for kernels of your own.
//
//	put, get          copy to a peer's window, and from it
//	signal, wait      tell a peer that what was put is there; wait for a peer's signal
//	put_packets,      copy small data so that it needs neither signal nor fence: each word travels
//	get_packets       with a flag
//
// A kernel begins with Operation::begin, makes a Wait, and ends with Operation::end on all threads
// of all blocks, also after a wait that timed out. Offsets are those of the group's window, the
// same on every rank.
//
// Memory is used again from operation to operation. With packets, and wherever both sides signal each
// other in every operation, two turns are enough: an operation of number n uses turn n & 1. A rank
// writes a turn again two operations later. By then it has the peer's data of the operation between,
// which the peer sent after it had read the first.
#pragma once
#include "wait.cuh"

namespace weft {

// Threads are the threads that copy together: this one is number `at` of `count`.
struct Threads {
	u32 at, count;

	__device__ __forceinline__ static Threads of_block() { return {threadIdx.x, blockDim.x}; }
	__device__ __forceinline__ static Threads of_grid() {
		return {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x};
	}
};

// Packet is a word of data with its flag, in one 8-byte access: a reader sees both or neither. The
// flag is the low half of the operation's number, which is 0 for no operation until the numbers
// wrap.
constexpr u32 PACKET_BYTES = 8; // for 4 bytes of data. Go: device.PacketBytes

// Channel is this rank's way to one peer and back. Its functions are for ranks that are not masked:
// ask holds(operation.mask, peer) first.
struct Channel {
	char *there; // the peer's window
	char *here;	 // this rank's
	u32 peer;

	__device__ __forceinline__ Channel(const Group &g, u32 peer)
		: there(g.window[peer]), here(g.window[g.rank]), peer(peer) {}

	// put copies bytes of this GPU's memory to an offset in the peer's window, and get the other way.
	// Sizes and addresses are multiples of 16 bytes. The threads share the work. Both return before the
	// data is seen elsewhere: signal comes after a put, and wait before a get.
	__device__ __forceinline__ void put(u64 to, const void *from, u64 bytes, Threads t) const {
		copy(there + to, (const char *)from, bytes, t);
	}

	__device__ __forceinline__ void get(void *to, u64 from, u64 bytes, Threads t) const {
		copy((char *)to, there + from, bytes, t);
	}

	// signal raises a word at an offset in the peer's window to the number of the operation. A peer
	// that waits for it sees all puts of the block. Each block signals a word of its own, a zero in
	// the beginning. All threads of the block call it.
	__device__ __forceinline__ void signal(u64 at, u64 epoch) const {
		__syncthreads();
		if (threadIdx.x == 0) store_release_sys4(there + at, (u32)epoch);
	}

	// wait returns when the peer has signalled the word at an offset in this rank's window. False:
	// the wait ended without it, on every thread of the block. All threads of the block call it.
	__device__ __forceinline__ bool wait(Wait &w, u64 at, u64 epoch) const {
		if (threadIdx.x == 0) await_epoch(w, peer, here + at, (u32)epoch);
		WEFT_TRACED(if (threadIdx.x == 0 && !w.over) w.trace.arrived(peer);)
		return __syncthreads_or(w.over) == 0;
	}

	// put_packets sends bytes of this GPU's memory as packets, which take twice the room, to an offset
	// in the peer's window, a multiple of 8. bytes is a multiple of 4.
	__device__ __forceinline__ void put_packets(u64 to, const void *from, u64 bytes, u64 epoch, Threads t) const {
		for (u64 i = t.at; i < bytes / 4; i += t.count)
			store_relaxed_sys_u64(there + to + i * PACKET_BYTES, epoch << 32 | ((const u32 *)from)[i]);
	}

	// get_packets waits for packets at an offset in this rank's window and copies their data.
	// False: the wait ended without it, on this thread.
	__device__ __forceinline__ bool get_packets(Wait &w, void *to, u64 from, u64 bytes, u64 epoch, Threads t) const {
		for (u64 i = t.at; i < bytes / 4; i += t.count) {
			const char *p = here + from + i * PACKET_BYTES;
			u64 v = load_relaxed_sys_u64(p);
			while ((u32)(v >> 32) != (u32)epoch && w.more(peer, (u32)epoch, v >> 32)) v = load_relaxed_sys_u64(p);
			if (w.over) return false;
			((u32 *)to)[i] = (u32)v;
		}
		return true;
	}

private:
	__device__ __forceinline__ static void copy(char *to, const char *from, u64 bytes, Threads t) {
		constexpr u32 FLIGHT = 4; // loads of a thread in flight
		u64 step = (u64)t.count * 16;
		for (u64 first = (u64)t.at * 16; first < bytes; first += FLIGHT * step) {
			uint4 v[FLIGHT];
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (first + j * step < bytes) v[j] = load_once(from + first + j * step);
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (first + j * step < bytes) store16(to + first + j * step, v[j]);
			}
		}
	}
};

} // namespace weft
