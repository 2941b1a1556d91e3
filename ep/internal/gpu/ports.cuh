// Port channels, or queue pairs of a card, in place of windows: how rows reach ranks whose memory this GPU does not
// map.
//
// In a Group the window of such a far rank r is this rank's own. What a kernel through slots stores for r so stays
// here. Rows and records, which are the same for all ranks, stand at this rank's own place; counts and sums at r's,
// where those of r come later. Between the launch that sends and the one that receives a kernel of one block a link
// carries it:
//
//	pack  copies what is for the link's peer to the link's outbox, and pushes one trigger, put with signal
//	land  waits for the peer's signal, and stores what lies in the inbox where the peer would have stored it
//
// A peer has `parts` links. Link p of it has the tokens p, p + parts, and so on. An outbox or inbox lies in pinned
// memory of the host:
//
//	PortHeader | parts of the kernel's | an index for each row that may come: which one it is, + 1 | the rows
//
// Two inboxes a link are filled by turns. The peer's next signal but one comes after this rank's next one, which
// comes after this rank has landed. Before it packs again it waits until the outbox may change, which it mostly may.
#pragma once
#include "exchange.cuh"
#include "nic.cuh"

namespace weft {

enum { KEEPS_OURS = 1, KEEPS_THEIRS = 2 }; // the peer for this rank, and this rank for the peer. Go: keepsOurs

// PortLink is a channel, or a queue pair of a card, and what it carries between. Go: portLink.
struct PortLink {
	PortChannel channel;
	u64 out, in; // offsets of this rank's outbox and inboxes
	u64 to;		 // of the peer's inboxes, in its memory
	u64 *taken;	 // signals of the peer that were consumed, in this GPU's memory
	u32 part;
	u32 role; // who keeps for whom: see ports_hosts.cuh
	// Of a queue pair, in whose order a flag comes behind a box. It has the number of boxes that came.
	NicQueue queue;
	NicMemory theirs, ours;
	u64 flag, own; // offsets of the peer's flag, and of this rank's
	u64 count;	   // what taken leads to
	u64 flushed;   // of a channel: the position behind that of the last put, in the ring
};

// Ports are a rank's links. Go: portArgs.
struct Ports {
	PortLink *links;
	char *memory; // which has the boxes
	u64 box;	  // bytes of one
	u32 count, parts;
	u32 blocks; // that move rows, of the kernels whose flags are to be set
	u32 card;	// not 0: links are queue pairs
	// Where rows go once to each host:
	const u32 *places;
	u64 told; // offset in a window, of [2][ranks][parts] words

	// send writes an outbox to the inbox whose turn it is, and a signal behind it.
	__device__ __forceinline__ void send(Wait &w, PortLink &l, u64 bytes) const {
		u64 n = load_relaxed_sys_u64(l.taken), to = l.to + (n & 1) * box, position;
		if (card == 0) {
			if (l.channel.put_with_signal_then_flush(w, to, l.out, bytes, position)) l.flushed = position + 1;
		} else if (l.queue.put(w, l.theirs, to, l.ours, l.out, bytes, NIC_DEFER)) {
			l.queue.put8(w, l.theirs, l.flag, n + 1);
		}
	}

	// await waits for the peer's signal, and gives which inbox has come, + 1; or 0.
	__device__ __forceinline__ u32 await(Wait &w, const PortLink &l) const {
		u64 n = load_relaxed_sys_u64(l.taken);
		if (card == 0) return l.channel.wait(w) ? 1 + (u32)(n & 1) : 0;
		u64 come = load_acquire_sys_u64(memory + l.own);
		while (come <= n && w.more(l.channel.peer, n + 1, come)) come = load_acquire_sys_u64(memory + l.own);
		if (come <= n) return 0;
		*l.taken = n + 1;
		return 1 + (u32)(n & 1);
	}

	// come is await without a wait: it gives 0, too, if nothing has come.
	__device__ __forceinline__ u32 come(Wait &w, const PortLink &l) const {
		u64 n = load_relaxed_sys_u64(l.taken);
		if (card == 0) {
			if (l.channel.poll()) return 1 + (u32)(n & 1);
			u64 v = load_acquire_sys_u64(&l.channel.line->arrived);
			if ((v & PORT_TOP) != 0 && (v & ~PORT_TOP) <= n) w.give_up(l.channel.peer, CAUSE_LOST, n + 1, v & ~PORT_TOP);
			return 0;
		}
		if (load_acquire_sys_u64(memory + l.own) <= n) return 0;
		*l.taken = n + 1;
		return 1 + (u32)(n & 1);
	}

	// empty waits until the outbox may change.
	__device__ __forceinline__ void empty(Wait &w, const PortLink &l) const {
		if (card != 0)
			l.queue.flush(w);
		else if (l.flushed != 0)
			l.channel.await_flush(w, l.flushed - 1);
	}
};

// PortHeader begins a box.
struct alignas(16) PortHeader {
	uint4 opening; // as announce would have stored it
	u32 tokens, zero[3];
};

__device__ __forceinline__ constexpr u64 aligned16(u64 n) { return (n + 15) & ~15ull; }

// share is how many of so many tokens are a part's.
__device__ __forceinline__ u32 share(const Ports &p, u32 part, u32 tokens) {
	return tokens > part ? (tokens - part + p.parts - 1) / p.parts : 0;
}

// RowCounter counts the rows of a box, in shared memory.
__device__ __forceinline__ u32 *row_counter() {
	__shared__ u32 rows;
	return &rows;
}

// next_row is the number of the next row, + 1. All lanes of a warp call it.
__device__ __forceinline__ u32 next_row(u32 lane) {
	u32 n = 0;
	if (lane == 0) n = atomicAdd(row_counter(), 1) + 1;
	return __shfl_sync(0xFFFFFFFFu, n, 0);
}

// copy_row copies bytes, a multiple of 16. A warp does.
__device__ __forceinline__ void copy_row(char *to, const char *from, u32 bytes, u32 lane) {
	constexpr u32 FLIGHT = 4;
	for (u32 at = lane * 16; at < bytes; at += FLIGHT * UNIT) {
		uint4 v[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (at + j * UNIT < bytes) v[j] = load_relaxed_sys16(from + at + j * UNIT);
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (at + j * UNIT < bytes) store16(to + at + j * UNIT, v[j]);
		}
	}
}

// read_header gives what a peer has said, if that is of this call, and has as many tokens as there may be. Else the
// operation ends. All threads of the block call it.
__device__ __forceinline__ bool read_header(Wait &w, const char *in, u32 src, u32 call, u32 most, PortHeader &h) {
	h.opening = load_relaxed_sys16(in);
	h.tokens = load_relaxed_sys4(in + 16);
	if (h.opening.z == call && h.tokens <= most) return true;
	if (threadIdx.x == 0) w.give_up(src, CAUSE_MISMATCH, call, h.opening.z);
	return false;
}

// write_header is for one thread.
__device__ __forceinline__ void write_header(char *out, uint4 opening, u32 tokens) {
	store16(out, opening);
	store16(out + 16, make_uint4(tokens, 0, 0, 0));
}

// carry packs this block's links, and then lands them, as the launch does one of the two or both. pack(link, out)
// gives how many bytes the outbox has; land(link, in) is false where the operation has ended. All blocks of the grid
// run at once: a block that waits has packed all its links.
template <class Pack, class Land> __device__ __forceinline__ void carry(const Ports &p, const RankSet &mask, u32 flags,
																		Wait &w, Pack pack, Land land) {
	__shared__ u32 inbox; // which of the two has come, + 1; or 0
	for (u32 i = blockIdx.x; (flags & SEND) != 0 && i < p.count; i += gridDim.x) {
		PortLink &l = p.links[i];
		if (holds(mask, l.channel.peer)) continue;
		if (threadIdx.x == 0) {
			p.empty(w, l);
			*row_counter() = 0;
		}
		__syncthreads();
		u64 bytes = pack(l, p.memory + l.out);
		__syncthreads();
		if (threadIdx.x == 0) p.send(w, l, bytes);
	}
	for (u32 i = blockIdx.x; (flags & RECEIVE) != 0 && i < p.count; i += gridDim.x) {
		const PortLink &l = p.links[i];
		u32 peer = l.channel.peer;
		if (holds(mask, peer)) continue;
		if (threadIdx.x == 0) {
			u64 begun = nanoseconds();
			inbox = p.await(w, l);
			if (w.group.waits != nullptr && l.part == 0) atomicAdd(&w.group.waits[peer], nanoseconds() - begun);
		}
		__syncthreads();
		u32 come = inbox;
		if (come == 0 || !land(l, p.memory + l.in + (come - 1) * p.box)) return;
		__syncthreads(); // all know which inbox it was
	}
}

} // namespace weft
