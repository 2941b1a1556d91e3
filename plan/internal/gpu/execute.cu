// Runs a communication plan: every block runs its own program, operation by operation. doc.go has the layout of
// programs and memory, and says why it is right.
//
// Nothing but a nop, a barrier and what goes through a port, or has come through one, lets the threads of a block meet.
#include "far.cuh"
#include "switch.cuh"

namespace weft {

namespace plan {

// Waits that do not end at once are functions of their own, so that others take few instructions and registers. They
// are false if the wait is over.

// poll_signals looks until as many signals have come. The lower half of a count wraps, and no launch waits for 2^31.
__device__ __noinline__ bool poll_signals(const Group &g, State *state, u32 site, u64 epoch, u32 peer,
										  const char *word, u32 want) {
	Wait w(g, state, site, epoch);
	u64 seen = load_acquire_sys_u64(word);
	while ((int)((u32)seen - want) < 0 && w.more(peer, want, seen)) seen = load_acquire_sys_u64(word);
	return !w.over;
}

// poll_local looks until there() holds, which another block of this rank brings about: a quarter longer than blocks
// wait for other ranks, so that the error names the rank that is late and not this one.
template <class F> __device__ __forceinline__ bool poll_local(const Group &g, State *state, u32 site, u64 epoch,
															  F there) {
	u64 begun = 0, looked = 0;
	for (u32 polls = 1; !there(); polls++) {
		if ((polls & 63) != 0) continue;
		u64 now = nanoseconds();
		if (begun == 0) begun = now;
		u64 waited = now - begun;
		bool looks = waited >> 20 != looked;
		looked = waited >> 20;
		if (gave_up(g, state, site, epoch, waited - waited / 5, looks, g.rank, 1, 0)) return false;
	}
	return true;
}

// meet_blocks waits until so many blocks have come to a barrier: a count of them, and the turn behind it, which the
// last one begins.
__device__ __noinline__ bool meet_blocks(const Group &g, State *state, u32 site, u64 epoch, u32 *come, u32 blocks) {
	u32 *turn = come + 1, now = load_relaxed_gpu4(turn);
	fence_gpu();
	bool met = true;
	if (atomic_add_gpu4(come, 1) == blocks - 1) {
		fence_gpu();
		store_relaxed_gpu4(come, 0);
		fence_gpu();
		store_relaxed_gpu4(turn, now + 1);
	} else {
		met = poll_local(g, state, site, epoch, [&] { return load_relaxed_gpu4(turn) != now; });
	}
	fence_gpu();
	return met;
}

// take_one takes one of a semaphore, whose word says by how much it is more than at first.
__device__ __noinline__ bool take_one(const Group &g, State *state, u32 site, u64 epoch, u32 *word, u32 first) {
	bool taken = poll_local(g, state, site, epoch, [&] {
		u32 more = load_relaxed_gpu4(word);
		return (int)(first + more) > 0 && atomic_cas_gpu4(word, more, more - 1) == more;
	});
	fence_gpu();
	return taken;
}

// Block is a block as one of its threads knows it. BEYOND: of a plan that may reach other hosts, or ranks by a switch.
template <bool PACKETS, bool BEYOND> struct Block {
	const Plan &a;
	const uint4 *code;
	const u64 *operands; // addresses: for each end that the block uses its peer's word and its own, then operations'
	u64 *counts;		 // for each such end: signals sent, signals awaited
	u64 epoch;
	u32 flag;  // of this launch's packets
	bool over; // a wait has ended in vain

	// the windows of a pipeline
	u32 loop_from, loop_to, iteration, iterations;
	u64 window;

	__device__ __forceinline__ char *at(u32 i) const { return (char *)operands[i]; }

	// meet lets the block's threads meet. False: one has waited in vain, and all end.
	__device__ __forceinline__ bool meet() const { return __syncthreads_or(over) == 0; }

	// ---- Channels. The thread of an end's number is the only one that touches its counts.

	__device__ __forceinline__ const u32 *peers() const { return (const u32 *)code; }

	template <class F> __device__ __forceinline__ void each(u32 at, F f) const {
		const u32 *mask = (const u32 *)(code + at + 1);
		for (u32 i = threadIdx.x; i < a.uses; i += blockDim.x) {
			if ((mask[i / 32] >> i % 32 & 1) != 0) f(i);
		}
	}

	__device__ __forceinline__ void signal(u32 at, bool relaxed) const {
		each(at, [&](u32 i) {
			char *word = this->at(2 * i);
			if (word == nullptr) return; // the peer has no other end
			if ((peers()[2 * i] & SHARED_SIGNALS) != 0) {
				if (!relaxed) fence_sys();
				return add_relaxed_sys_u64(word, 1);
			}
			u64 sent = ++counts[2 * i];
			if (relaxed) {
				store_relaxed_sys_u64(word, sent);
			} else {
				store_release_sys_u64(word, sent);
			}
		});
	}

	__device__ __forceinline__ void await(u32 at, u32 site) {
		each(at, [&](u32 i) {
			const char *word = this->at(2 * i + 1);
			u32 peer = peers()[2 * i];
			u32 want = (peer & SHARED_WAITS) != 0 ? atomic_add_gpu4(a.awaited + peers()[2 * i + 1], 1) + 1
												  : (u32)++counts[2 * i + 1];
			peer &= ~(SHARED_SIGNALS | SHARED_WAITS);
			if (!over) over = !poll_signals(a.group, a.state, site, epoch, peer, word, want);
		});
	}

	// ---- Blocks of this rank.

	__device__ __forceinline__ bool barrier(u32 number, u32 blocks, u32 site) {
		if (!meet()) return false;
		if (threadIdx.x == 0) over = !meet_blocks(a.group, a.state, site, epoch, a.barriers + 2 * number, blocks);
		return meet();
	}

	// Semaphores: each entry is the semaphore's number and its first value.
	__device__ __forceinline__ void release(u32 at, u32 count) const {
		const uint2 *entry = (const uint2 *)(code + at + 1);
		for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
			fence_gpu();
			atomic_add_gpu4(a.semaphores + entry[i].x, 1);
		}
	}

	__device__ __forceinline__ void acquire(u32 at, u32 count, u32 site) {
		const uint2 *entry = (const uint2 *)(code + at + 1);
		for (u32 i = threadIdx.x; i < count && !over; i += blockDim.x) {
			over = !take_one(a.group, a.state, site, epoch, a.semaphores + entry[i].x, entry[i].y);
		}
	}

	// ---- Data.

	// part is the bytes [from, to) of each of an operation's operands that this block moves now.
	__device__ __forceinline__ void part(const Data &d, bool uncut, u64 &from, u64 &to) const {
		from = 0, to = d.chunks * a.chunk;
		if (d.group != 0) {
			u32 id = d.group & 0xFFFF, size = d.group >> 16;
			u64 units = d.chunks * a.units, q, r;
			if (units >> 32 == 0) {
				q = (u32)units / size, r = (u32)units % size;
			} else {
				q = units / size, r = units % size;
			}
			from = (id * q + min((u64)id, r)) * a.align;
			to = ((id + 1) * q + min((u64)id + 1, r)) * a.align;
		}
		if (loop_to != 0 && !uncut) {
			from = min(from + iteration * window, to);
			to = min(from + window, to);
		}
	}

	__device__ __forceinline__ void move(u32 at, const Head &h) {
		Data d = *(const Data *)(code + at + 1);
		u64 from, to;
		part(d, (h.what >> 8 & UNCUT) != 0, from, to);
		if (BEYOND && (h.what >> 8 & (FROM_ALL | TO_ALL)) != 0 && a.switches != 0 && a.whole != 0 &&
			by_switch(a, code + at, operands, from, to))
			return;
		if (a.whole == 0) {
			over = !move_slowly<PACKETS>(a, code + at, operands, epoch, flag, from, to);
			return;
		}
		d.first += 2 * a.uses;
		Mover<PACKETS> m = {a, operands, epoch, flag, false};
		m.template run<true>(code + at, h, d, from, to);
		over = m.over;
	}

	// reach runs an operation of ports to other hosts.
	__device__ __forceinline__ void reach(u32 at, const Head &h) {
		if (over) return;
		u32 kind = h.what & 0xFF;
		u64 from = 0, to = 0;
		if (kind == PUSH || kind == LAND) part(*(const Data *)(code + at + 1), (h.what >> 8 & UNCUT) != 0, from, to);
		over = !far(a, code + at, operands, epoch, flag, from, to);
	}

	// ---- The program.

	__device__ __forceinline__ void run(u32 first) {
		loop_to = 0;
		for (u32 at = first;;) {
			if (at == loop_to && loop_to != 0) {
				if (++iteration < iterations) {
					at = loop_from;
				} else {
					loop_to = 0;
				}
			}
			Head h = *(const Head *)(code + at);
			u32 kind = h.what & 0xFF, flags = h.what >> 8 & 0xFF;
			switch (kind) {
			case END: return;
			case NOP:
				if (!meet()) return;
				break;
			case MEET: {
				if (!barrier(((const u32 *)(code + at + 1))[0], h.count, h.site)) return;
				break;
			}
			case ACQUIRE: acquire(at, h.count, h.site); break;
			case RELEASE:
				if (!over) release(at, h.count);
				break;
			case SIGNAL:
				if ((flags & BEHIND) != 0 && !meet()) return;
				if (!over) signal(at, (flags & RELAXED) != 0);
				break;
			case WAIT: await(at, h.site); break;
			case LOOP: {
				const uint4 w = code[at + 1];
				window = (u64)w.y << 32 | w.x;
				u64 length = w.z * a.chunk;
				iterations = (u32)((length + window - 1) / window);
				iteration = 0;
				loop_from = at + 2;
				loop_to = loop_from + h.count;
				break;
			}
			default:
				if (BEYOND && kind >= ADMIT) {
					// Behind what all threads have stored, or what any has pushed.
					if ((kind == PUSH || kind == FLUSH) && !meet()) return;
					reach(at, h);
					if (kind == ARRIVE && !meet()) return;
				} else if (!over) {
					move(at, h);
				}
			}
			at += kind == LOOP ? 2 : h.length;
		}
	}
};

// address is where an entry of a program points, in launches of odd numbers.
__device__ __forceinline__ u64 address(const Plan &a, u64 entry) {
	u32 index = (u32)entry, where = entry >> 32 & 0xFF, rank = (u32)(entry >> 40);
	if (where == NOWHERE) return 0;
	char *base = where == INPUT	   ? a.in[rank]
				 : where == OUTPUT ? a.out[rank]
				 : where == OUTBOX ? a.outbox
				 : where == INBOX  ? a.inbox
								   : a.group.window[rank];
	if (where >= ALL_INPUTS) {
		base = where == ALL_INPUTS ? a.all_in : where == ALL_OUTPUTS ? a.all_out : a.all_window;
		if (base == nullptr) return 0;
	}
	if (where == INBOUND) return (u64)base + a.inbound + (u64)index * 8;
	if (where == DATA || where == ALL_DATA) base += a.data;
	if (where == PACKETS) base += a.packets + index * a.chunk;
	return (u64)base + index * a.chunk;
}

// half is how much further it points in launches of even numbers.
__device__ __forceinline__ u64 half(const Plan &a, u64 entry) {
	u32 where = entry >> 32 & 0xFF;
	if (where == PACKETS) return a.packets_half;
	return where == DATA || where == ALL_DATA && a.all_window != nullptr ? a.data_half : 0;
}

// flag_of is the flag of a launch's packets: never 0, which is what nobody has written.
__device__ __forceinline__ u32 flag_of(u64 epoch) {
	u64 n = (epoch >> 32) + (u32)epoch; // epoch modulo 2^32 - 1, but for the last steps
	n = (n >> 32) + (u32)n;
	return n >= 0xFFFFFFFFu ? 1 : (u32)n + 1;
}

// meet_ranks lets all ranks of this host have ended what was before. Where chunks have another size than in the launch
// before, they lie elsewhere, and what orders accesses of two launches to the same chunk says nothing. Ranks of other
// hosts, in whose place this rank's own window stands, touch none of its memory.
__device__ __noinline__ bool meet_ranks(const Plan &a, u64 epoch) {
	const Group &g = a.group;
	bool over = false;
	for (u32 r = threadIdx.x; r < g.ranks && blockIdx.x == 0; r += blockDim.x) {
		if (g.window[r] != g.window[g.rank]) store_release_sys_u64(g.window[r] + a.begun + g.rank * 8, epoch);
	}
	for (u32 r = threadIdx.x; r < g.ranks && !over; r += blockDim.x) {
		if (g.window[r] == g.window[g.rank]) continue;
		const char *word = g.window[g.rank] + a.begun + r * 8;
		Wait w(g, a.state, 0, epoch);
		u64 seen = load_acquire_sys_u64(word);
		while (seen < epoch && w.more(r, epoch, seen)) seen = load_acquire_sys_u64(word);
		over = w.over;
	}
	return __syncthreads_or(over) == 0;
}

// execute is the kernel: of plans that have packets or none, and that reach beyond what ranks map or do not.
template <bool PACKETS, bool BEYOND>
__global__ void __launch_bounds__(THREADS, 1) execute(const __grid_constant__ Plan a) {
	extern __shared__ uint4 room[];
	const char *program = a.program + (u64)blockIdx.x * a.stride;
	const u64 *entries = (const u64 *)program;
	const uint4 *code = (const uint4 *)(program + (u64)a.operands * 8);
	Own *own = (Own *)(a.blocks + (u64)blockIdx.x * a.own_stride);
	u64 *kept = (u64 *)(own + 1), *counts = kept, *operands = kept + 2 * a.uses;
	if (a.shared != 0) {
		counts = (u64 *)room, operands = counts + 2 * a.uses;
		uint4 *copy = (uint4 *)(operands + a.operands);
		for (u32 i = threadIdx.x; i < a.vectors; i += blockDim.x) copy[i] = code[i];
		code = copy;
	}
	// What follows waits for memory only once: all that is read is asked for before any of it is looked at.
	u32 me = threadIdx.x;
	u64 entry = me < a.operands ? entries[me] : (u64)NOWHERE << 32, place = address(a, entry);
	wait_for_previous();
	u64 before = own->chunk;
	ulonglong2 count = make_ulonglong2(0, 0);
	if (a.shared != 0 && me < a.uses) count = ((const ulonglong2 *)kept)[me];
	Operation o;
	if (!o.begin(a.group, a.state, 0, 0)) return;
	bool second = (o.epoch & 1) == 0;
	for (u32 i = me; i < a.operands; i += blockDim.x) {
		if (i != me) entry = entries[i], place = address(a, entry);
		operands[i] = place + (second ? half(a, entry) : 0);
	}
	for (u32 i = me; a.shared != 0 && i < a.uses; i += blockDim.x) {
		if (i != me) count = ((const ulonglong2 *)kept)[i];
		((ulonglong2 *)counts)[i] = count;
	}
	bool met = before == a.chunk || before == 0 || meet_ranks(a, o.epoch);
	__syncthreads();
	if (met) {
		Block<PACKETS, BEYOND> b = {a, code, operands, counts, o.epoch, flag_of(o.epoch), false, 0, 0, 0, 0, 0};
		b.run((a.uses + 1) / 2);
	}
	if (BEYOND && a.streams != nullptr && blockIdx.x < a.own && me == 0) atomic_add_gpu4(a.ended, 1);
	let_next_start();
	for (u32 i = me; a.shared != 0 && i < a.uses; i += blockDim.x) { // those that are this thread's
		((ulonglong2 *)kept)[i] = ((const ulonglong2 *)counts)[i];
	}
	if (me == 0) own->chunk = a.chunk;
	o.end(a.state);
}

} // namespace plan
} // namespace weft
