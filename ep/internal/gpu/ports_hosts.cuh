// What carries a dispatch through slots to other hosts, a row once to each: in place of ports_dispatch.cuh.
//
// On each other host one rank is this rank's keeper: it lands what this rank sends there, and stores it in the windows
// of all ranks of the host that want it, its own among them, as this rank would on its own host. The others wait until
// it has. A link is used if one of its ends keeps for the other. It then has a box in both directions, so that both
// inboxes go by turns; what goes to a rank that does not keep for this one is a header. A box has, before its rows,
//
//	counts   of the first part, where counts travel: of each member, the ranks of the host that are not masked
//	records  of the part's tokens, [tokens][top-k]
//	index    of each token which row is its, + 1, and a bit for each member that wants it, in words of 32
//
// Two words for each source and part stand in a window, that the source's keeper writes: in which operation it began
// to look for the box, and in which it stored it. So who waits in vain knows who is late: the source that its keeper
// looks for, or the keeper.
#pragma once
#include "ports_rows.cuh"

namespace weft {

// What the host tells of each rank, in lists of as many words as there are ranks. Go: places.
enum { HOST, SIZE, MEMBER, KEEPER, NEAR, LISTS };

// Places are those lists.
struct Places {
	const u32 *words;
	u32 ranks;

	// host is a number of r's host; EMPTY: r is masked.
	__device__ __forceinline__ u32 host(u32 r) const { return words[HOST * ranks + r]; }
	// size is how many members r's host has, and member which of them r is.
	__device__ __forceinline__ u32 size(u32 r) const { return words[SIZE * ranks + r]; }
	__device__ __forceinline__ u32 member(u32 r) const { return words[MEMBER * ranks + r]; }
	// keeper is the rank of this host that keeps for r; EMPTY: r is near, or masked.
	__device__ __forceinline__ u32 keeper(u32 r) const { return words[KEEPER * ranks + r]; }
	// near is the m-th member of this host.
	__device__ __forceinline__ u32 near(u32 m) const { return words[NEAR * ranks + m]; }
};

// HostBox is where the parts of a box for so many members are.
struct HostBox {
	u32 tokens, counts, each; // of the part; words; words of a token's index
	u64 records, index, rows;

	__device__ __forceinline__ HostBox(const RowCarry &c, const Batch &b, u32 part, u32 all, u32 members) {
		const Dispatch &a = c.of;
		bool route = (b.flags & ROUTE) != 0;
		tokens = share(c.ports, part, all);
		counts = route && part == 0 && !from_records(b) ? members * (COUNTS + a.shape.local) : 0;
		each = 1 + (members + 31) / 32;
		records = sizeof(PortHeader) + aligned16((u64)counts * 4);
		index = records + aligned16(route ? (u64)tokens * a.shape.topk * sizeof(Pair) : 0);
		rows = index + aligned16((u64)tokens * each * 4);
	}
};

__device__ __forceinline__ u64 pack_host(const RowCarry &c, const Batch &b, const Places &at, u32 call,
										 const PortLink &l, char *out) {
	const Dispatch &a = c.of;
	u32 lane = threadIdx.x & 31, me = a.group.rank, peer = l.channel.peer, topk = a.shape.topk;
	bool route = (b.flags & ROUTE) != 0, move = (b.flags & MOVE) != 0, all = (l.role & KEEPS_OURS) != 0;
	if (threadIdx.x == 0) write_header(out, make_uint4(a.tokens, a.free, call, 0), a.tokens);
	if (!all) return sizeof(PortHeader);
	u32 host = at.host(peer), words = COUNTS + a.shape.local;
	HostBox box(c, b, l.part, a.tokens, at.size(peer));
	for (u32 r = 0; box.counts != 0 && r < a.group.ranks; r++) {
		if (at.host(r) != host) continue;
		u32 *to = (u32 *)(out + sizeof(PortHeader)) + at.member(r) * words;
		for (u32 i = threadIdx.x; i < words; i += blockDim.x) to[i] = load_relaxed_sys4(b.own + count_at(a, 3, r, i));
	}
	for (u32 j = threadIdx.x / 32; j < box.tokens; j += blockDim.x / 32) {
		u32 t = l.part + j * c.ports.parts, e = 0, row = 0, member = EMPTY;
		u64 i = (u64)t * topk + lane;
		if (lane < topk) e = selection(a, b, i);
		if (route && lane < topk) {
			uint2 record = load_relaxed_sys8(b.own + record_at(a, b, me, i));
			*(uint2 *)(out + box.records + ((u64)j * topk + lane) * sizeof(Pair)) = record;
		}
		if (e != 0 && at.host(rank_of(a.shape, e - 1)) == host) member = at.member(rank_of(a.shape, e - 1));
		if (move && __any_sync(0xFFFFFFFFu, member != EMPTY)) {
			row = next_row(lane);
			copy_row(out + box.rows + (u64)(row - 1) * a.slot_bytes, b.own + slot_at(a, b, me, t), a.slot_bytes, lane);
		}
		u32 *index = (u32 *)(out + box.index) + (u64)j * box.each;
		for (u32 w = 0; w < box.each - 1; w++) {
			u32 wants = __reduce_or_sync(0xFFFFFFFFu, member / 32 == w ? 1u << member % 32 : 0);
			if (lane == 0) index[1 + w] = wants;
		}
		if (lane == 0) index[0] = row;
	}
	__syncthreads();
	return box.rows + (u64)*row_counter() * a.slot_bytes;
}

// fan_out stores a slot in the windows of some of 32 members: lane i knows the window of the i-th. A warp does.
__device__ __forceinline__ void fan_out(char *window, u32 wants, u64 slot, const char *from, u32 bytes, u32 lane) {
	constexpr u32 FLIGHT = 4;
	for (u32 at = 0; at < bytes; at += FLIGHT * UNIT) {
		u32 here = at + lane * 16;
		uint4 v[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (here + j * UNIT < bytes) v[j] = load_relaxed_sys16(from + here + j * UNIT);
		}
		for (u32 rest = wants; rest != 0; rest &= rest - 1) {
			char *to = (char *)__shfl_sync(0xFFFFFFFFu, (u64)window, __ffs((int)rest) - 1) + slot;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (here + j * UNIT < bytes) store16(to + here + j * UNIT, v[j]);
			}
		}
	}
}

__device__ __forceinline__ u64 told_word(const Ports &p, const Group &g, u32 src, u32 part, bool stored) {
	return p.told + ((u64)(stored ? g.ranks : 0) * p.parts + (u64)src * p.parts + part) * 4;
}

// land_host lands what a rank that this one keeps for has sent, at all members.
__device__ __forceinline__ bool land_host(const RowCarry &c, const Batch &b, const Places &at, Wait &w, u32 call,
										  const PortLink &l, const char *in) {
	const Dispatch &a = c.of;
	u32 lane = threadIdx.x & 31, src = l.channel.peer, topk = a.shape.topk, members = at.size(a.group.rank);
	bool route = (b.flags & ROUTE) != 0, move = (b.flags & MOVE) != 0;
	PortHeader h;
	if (!read_header(w, in, src, call, a.shape.capacity, h)) return false;
	if ((l.role & KEEPS_THEIRS) == 0) return true;
	HostBox box(c, b, l.part, h.tokens, members);
	u32 words = COUNTS + a.shape.local;
	for (u32 i = threadIdx.x; i < box.counts; i += blockDim.x)
		store_relaxed_sys4(a.group.window[at.near(i / words)] + count_at(a, b.turn, src, i % words),
						   load_relaxed_sys4(in + sizeof(PortHeader) + 4 * i));
	for (u32 first = 0; first < members; first += 32) {
		char *window = first + lane < members ? a.group.window[at.near(first + lane)] : nullptr;
		for (u32 j = threadIdx.x / 32; j < box.tokens; j += blockDim.x / 32) {
			u32 t = l.part + j * c.ports.parts;
			const char *index = in + box.index + (u64)j * box.each * 4;
			if (route && lane < topk) {
				uint2 record = load_relaxed_sys8(in + box.records + ((u64)j * topk + lane) * sizeof(Pair));
				for (u32 m = first; m < min(members, first + 32); m++)
					store_relaxed_sys8(a.group.window[at.near(m)] + record_at(a, b, src, (u64)t * topk + lane), record);
			}
			u32 row = load_relaxed_sys4(index), wants = load_relaxed_sys4(index + 4 * (1 + first / 32));
			if (move && row != 0)
				fan_out(window, wants, slot_at(a, b, src, t), in + box.rows + (u64)(row - 1) * a.slot_bytes,
						a.slot_bytes, lane);
		}
	}
	u32 blocks = c.ports.blocks;
	for (u32 i = threadIdx.x; l.part == 0 && i < members; i += blockDim.x)
		store_relaxed_sys16(a.group.window[at.near(i)] + opening_at(a.group, a.heads, b.turn, src), h.opening);
	for (u32 i = threadIdx.x; l.part == 0 && move && i < members * blocks; i += blockDim.x)
		store_relaxed_sys4(a.group.window[at.near(i / blocks)] + a.arrived + ((u64)src * blocks + i % blocks) * 4,
						   (u32)b.epoch + 1);
	__syncthreads();
	for (u32 i = threadIdx.x; i < members; i += blockDim.x) {
		fence_sys();
		store_relaxed_sys4(a.group.window[at.near(i)] + told_word(c.ports, a.group, src, l.part, true),
						   (u32)b.epoch + 1);
	}
	return true;
}

// Pending are links of this block whose boxes have not come: bit i is link first + i * gridDim.x. One thread has it.
struct Pending {
	u32 first, links;

	__device__ __forceinline__ u32 link(u32 i) const { return first + i * gridDim.x; }

	// next waits for any of them, and gives which has come, + 1; or 0, if there are no more or with w.over.
	__device__ __forceinline__ u32 next(Wait &w, const Ports &p, u32 &inbox) {
		while (links != 0 && !w.over) {
			for (u32 rest = links; rest != 0; rest &= rest - 1) {
				u32 i = (u32)__ffs((int)rest) - 1;
				inbox = p.come(w, p.links[link(i)]);
				if (inbox != 0) links &= ~(1u << i);
				if (inbox != 0 || w.over) return inbox != 0 ? 1 + link(i) : 0;
			}
			w.more(p.links[link((u32)__ffs((int)links) - 1)].channel.peer, 1, 0);
		}
		return 0;
	}
};

// land_any lands what comes on this block's links, in the order in which it comes: no source waits for another.
__device__ __forceinline__ bool land_any(const RowCarry &c, const Batch &b, const Places &at, Wait &w, u32 call) {
	__shared__ u32 found, inbox; // a link, + 1; which of its inboxes, + 1
	const Ports &p = c.ports;
	const Group &g = c.of.group;
	u32 members = at.size(g.rank);
	for (u32 first = blockIdx.x; first < p.count; first += 32 * gridDim.x) {
		Pending pending{first, 0};
		for (u32 i = 0; i < 32 && pending.link(i) < p.count; i++) {
			const PortLink &l = p.links[pending.link(i)];
			if (l.role == 0 || holds(b.mask, l.channel.peer)) continue;
			pending.links |= 1u << i;
			for (u32 m = threadIdx.x; (l.role & KEEPS_THEIRS) != 0 && m < members; m += blockDim.x)
				store_relaxed_sys4(g.window[at.near(m)] + told_word(p, g, l.channel.peer, l.part, false),
								   (u32)b.epoch + 1);
		}
		u64 begun = nanoseconds();
		for (;;) {
			if (threadIdx.x == 0) found = pending.next(w, p, inbox);
			__syncthreads();
			if (found == 0) break;
			const PortLink &l = p.links[found - 1];
			if (threadIdx.x == 0 && g.waits != nullptr && l.part == 0)
				atomicAdd(&g.waits[l.channel.peer], nanoseconds() - begun);
			if (!land_host(c, b, at, w, call, l, p.memory + l.in + (inbox - 1) * p.box)) return false;
			__syncthreads(); // all know which it was
		}
		if (__syncthreads_or(w.over) != 0) return false;
	}
	return true;
}

// await_kept waits until all that other ranks keep for this host is here.
__device__ __forceinline__ void await_kept(const RowCarry &c, const Batch &b, const Places &at, Wait &w) {
	const Ports &p = c.ports;
	const Group &g = c.of.group;
	u32 epoch = (u32)b.epoch + 1;
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < g.ranks * p.parts; i += gridDim.x * blockDim.x) {
		u32 src = i / p.parts, part = i % p.parts, keeper = at.keeper(src);
		if (keeper == EMPTY || keeper == g.rank) continue;
		const char *looks = b.own + told_word(p, g, src, part, false), *stored = b.own + told_word(p, g, src, part, true);
		u64 begun = nanoseconds();
		bool longer = false; // the keeper names a source that is late, before this rank names the keeper
		for (u32 v; (int)((v = load_acquire_sys4(stored)) - epoch) < 0;) {
			bool looked = (int)(load_relaxed_sys4(looks) - epoch) >= 0;
			if (!w.more(looked ? src : keeper, epoch, v)) return;
			if (longer || w.start == 0 || (w.polls & 63) != 0 || nanoseconds() - w.start < w.state->timeout / 2) continue;
			w.start += w.state->timeout / 8;
			longer = true;
		}
		if (g.waits != nullptr && part == 0) atomicAdd(&g.waits[src], nanoseconds() - begun);
	}
}

} // namespace weft

namespace weft::ports {

__global__ void __launch_bounds__(512, 1) carry_once(const __grid_constant__ RowCarry c) {
	const Dispatch &a = c.of;
	wait_for_previous();
	Count count = *count_of(a.state, 0);
	if (a.state->stopped != 0) return; // the launches beside this one say so
	Batch b = batch_of(a, count);
	Wait w(a.group, a.state, (b.flags & MOVE) != 0 ? OP_DISPATCH : OP_PREPARE, b.epoch + 1);
	u32 call = rows_tag(a, b);
	Places at{c.ports.places, a.group.ranks};
	for (u32 i = blockIdx.x; (b.flags & SEND) != 0 && i < c.ports.count; i += gridDim.x) {
		PortLink &l = c.ports.links[i];
		if (l.role == 0 || holds(b.mask, l.channel.peer)) continue;
		if (threadIdx.x == 0) {
			c.ports.empty(w, l);
			*row_counter() = 0;
		}
		__syncthreads();
		u64 bytes = pack_host(c, b, at, call, l, c.ports.memory + l.out);
		__syncthreads();
		if (threadIdx.x == 0) c.ports.send(w, l, bytes);
	}
	if ((b.flags & RECEIVE) != 0 && land_any(c, b, at, w, call)) await_kept(c, b, at, w);
}

} // namespace weft::ports
