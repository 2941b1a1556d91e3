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

// signal_end signals to an end, whose peer has a word there; sent counts the signals.
__device__ __forceinline__ void signal_end(char *word, u32 peer, u64 *sent, bool relaxed) {
	if (word == nullptr) return; // the peer has no other end
	if ((peer & SHARED_SIGNALS) != 0) {
		if (!relaxed) fence_sys();
		add_relaxed_sys_u64(word, 1);
	} else if (relaxed) {
		store_relaxed_sys_u64(word, ++*sent);
	} else {
		store_release_sys_u64(word, ++*sent);
	}
}

constexpr u32 NO_LOOP = ~0u;

// Block is a block as one of its threads knows it. BEYOND: of a plan that may reach other hosts, or ranks by a switch.
template <bool PACKETS, bool BEYOND> struct Block {
	const uint4 *code;
	const u64 *operands; // addresses: for each end that the block uses its peer's word and its own, then operations'
	u64 *counts;		 // for each such end: signals sent, signals awaited
	u64 epoch;
	u32 flag;  // of this launch's packets
	u32 at;	   // the next operation
	bool over; // a wait has ended in vain

	// the windows of a pipeline, which ends at loop_to
	u32 loop_from, loop_to, iteration, iterations;
	u64 window;

	__device__ __forceinline__ char *word(u32 i) const { return (char *)operands[i]; }

	// meet lets the block's threads meet. False: one has waited in vain, and all end.
	__device__ __forceinline__ bool meet() const { return __syncthreads_or(over) == 0; }

	// ---- Channels. The thread of an end's number is the only one that touches its counts.

	__device__ __forceinline__ const u32 *peers() const { return (const u32 *)code; }

	template <class F> __device__ __forceinline__ void each(const Plan &a, F f) const {
		const u32 *mask = (const u32 *)(code + at + 1);
		for (u32 i = threadIdx.x; i < a.uses; i += blockDim.x) {
			if ((mask[i / 32] >> i % 32 & 1) != 0) f(i);
		}
	}

	__device__ __forceinline__ void signal(const Plan &a, bool relaxed) const {
		each(a, [&](u32 i) { signal_end(word(2 * i), peers()[2 * i], counts + 2 * i, relaxed); });
	}

	__device__ __forceinline__ void await(const Plan &a, u32 site) {
		each(a, [&](u32 i) {
			const char *word = this->word(2 * i + 1);
			u32 peer = peers()[2 * i];
			u32 want = (peer & SHARED_WAITS) != 0 ? atomic_add_gpu4(a.awaited + peers()[2 * i + 1], 1) + 1
												  : (u32)++counts[2 * i + 1];
			peer &= ~(SHARED_SIGNALS | SHARED_WAITS);
			if (!over) over = !poll_signals(a.group, a.state, site, epoch, peer, word, want);
			WEFT_TRACED(if (!over) Trace(a.group, a.state, epoch).arrived(peer);)
		});
	}

	// ---- Blocks of this rank.

	__device__ __forceinline__ bool barrier(const Plan &a, u32 number, u32 blocks, u32 site) {
		if (!meet()) return false;
		if (threadIdx.x == 0) over = !meet_blocks(a.group, a.state, site, epoch, a.barriers + 2 * number, blocks);
		return meet();
	}

	// Semaphores: each entry is the semaphore's number and its first value.
	__device__ __forceinline__ void release(const Plan &a, u32 count) const {
		const uint2 *entry = (const uint2 *)(code + at + 1);
		for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
			fence_gpu();
			atomic_add_gpu4(a.semaphores + entry[i].x, 1);
		}
	}

	__device__ __forceinline__ void acquire(const Plan &a, u32 count, u32 site) {
		const uint2 *entry = (const uint2 *)(code + at + 1);
		for (u32 i = threadIdx.x; i < count && !over; i += blockDim.x) {
			over = !take_one(a.group, a.state, site, epoch, a.semaphores + entry[i].x, entry[i].y);
		}
	}

	// ---- Data.

	// part is the bytes [from, to) of each of an operation's operands that this block moves now.
	__device__ __forceinline__ void part(const Plan &a, const Data &d, bool uncut, u64 &from, u64 &to) const {
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
		if (loop_to != NO_LOOP && !uncut) {
			from = min(from + iteration * window, to);
			to = min(from + window, to);
		}
	}

	// move runs an operation on data.
	__device__ __forceinline__ void move(const Plan &a, const Head &h, const Data &d) {
		u64 from, to;
		part(a, d, h.has(UNCUT), from, to);
		if (BEYOND && h.has(FROM_ALL | TO_ALL) && a.switches != 0 && a.whole != 0 &&
			by_switch(a, code + at, operands, from, to))
			return;
		if (a.whole != 0) {
			over = !move_many<PACKETS, true>(a, code + at, operands + 2 * a.uses, epoch, flag, from, to);
		} else {
			over = !move_many<PACKETS, false>(a, code + at, operands + 2 * a.uses, epoch, flag, from, to);
		}
	}

	// reach runs an operation of ports to other hosts.
	__device__ __forceinline__ void reach(const Plan &a, const Head &h, const Data &d) {
		if (over) return;
		u64 from = 0, to = 0;
		if (h.kind() == PUSH || h.kind() == LAND) part(a, d, h.has(UNCUT), from, to);
		over = !far(a, code + at, operands, epoch, flag, from, to);
	}

	// ---- The program.

	// may_be_short says whether the next operation may be one that move_short runs.
	__device__ __forceinline__ bool may_be_short(const Plan &a) const {
		u32 kind = ((const Head *)(code + at))->kind();
		return kind >= PAIRS && kind <= FOLD && a.whole != 0 && a.shared != 0 && !over && loop_to == NO_LOOP;
	}

	// step runs an operation, whatever it is. False: the program has ended, or a wait has ended in vain.
	__device__ __forceinline__ bool step(const Plan &a) {
		if (at == loop_to) {
			if (++iteration < iterations) {
				at = loop_from;
			} else {
				loop_to = NO_LOOP;
				return true;
			}
		}
		Head h = *(const Head *)(code + at);
		Data d = *(const Data *)(code + at + 1); // if the operation is on data
		u32 length = h.length;
		switch (h.kind()) {
		case END: return false;
		case NOP:
			if (!meet()) return false;
			break;
		case MEET:
			if (!barrier(a, d.chunks, h.count, h.site)) return false;
			break;
		case ACQUIRE: acquire(a, h.count, h.site); break;
		case RELEASE:
			if (!over) release(a, h.count);
			break;
		case SIGNAL:
			if (h.has(BEHIND) && !meet()) return false;
			if (!over) signal(a, h.has(RELAXED));
			break;
		case WAIT: await(a, h.site); break;
		case LOOP: {
			const uint4 w = code[at + 1];
			window = (u64)w.y << 32 | w.x;
			iterations = (u32)((w.z * a.chunk + window - 1) / window);
			iteration = 0;
			loop_from = at + 2;
			loop_to = loop_from + h.count;
			length = 2;
			break;
		}
		case PAIRS:
		case RECEIVE:
		case FOLD:
			if (!over) move(a, h, d);
			break;
		default:
			if (BEYOND) {
				// Behind what all threads have stored, or what any has pushed.
				if ((h.kind() == PUSH || h.kind() == FLUSH) && !meet()) return false;
				reach(a, h, d);
				if (h.kind() == ARRIVE && !meet()) return false;
			}
		}
		at += length;
		return true;
	}
};

constexpr u32 ENDED = ~0u; // where a program is that has ended

// Quick runs what takes few instructions. Where a plan has packets it calls no function, so nothing leaves registers: a
// warp leaves the program to Block when its packets do not come soon, and at what is no data. Else it calls what waits
// for signals that do not come soon, and all warps leave at the same operation.
template <bool PACKETS> struct Quick {
	const Plan &a;
	const uint4 *code;
	const u64 *words; // addresses: for each end its peer's word and its own
	u64 *counts;
	Mover<PACKETS> m;
	bool over; // a wait has ended in vain

	__device__ __forceinline__ const u32 *peers() const { return (const u32 *)code; }

	// run runs a program from an operation on. It gives that which it leaves, or ENDED.
	__device__ __forceinline__ u32 run(u32 at) {
		for (;;) {
			Head h = *(const Head *)(code + at);
			Data d = *(const Data *)(code + at + 1); // if the operation is on data
			if (h.kind() >= PAIRS && h.kind() <= FOLD) {
				if (!move(h, d)) return at;
			} else if (h.kind() == END) {
				return ENDED;
			} else if (PACKETS) {
				return at;
			} else if (h.kind() == NOP) {
				if (__syncthreads_or(over) != 0) return ENDED;
			} else if (h.kind() == SIGNAL && !h.has(BEHIND)) {
				if (u32 i = m.me; i < a.uses && (d.chunks >> i & 1) != 0 && !over) {
					signal_end((char *)words[2 * i], peers()[2 * i], counts + 2 * i, h.has(RELAXED));
				}
			} else if (h.kind() == WAIT) {
				if (u32 i = m.me; i < a.uses && (d.chunks >> i & 1) != 0) await(i, h.site);
			} else {
				return at;
			}
			at += h.length;
		}
	}

	// move runs an operation on data. False: it is Block's.
	__device__ __forceinline__ bool move(const Head &h, const Data &d) const {
		Part p(Sizes(a), h, d, m.me);
		if (PACKETS) { // lanes stay together
			if (!p.is_short) return false;
			u32 lanes = __ballot_sync(WARP, p.has());
			bool done = !p.has() || m.one(h, d, p.at(), lanes);
			return __all_sync(WARP, done) != 0;
		}
		if (!p.is_short && (!p.sums || h.kind() == PAIRS && d.sources != 1)) return false;
		if (over) return true;
		if (!p.is_short) {
			m.add(d, p.from, p.to);
		} else if (p.has()) {
			m.one(h, d, p.at(), 0);
		}
		return true;
	}

	WEFT_TRACED(__device__ __forceinline__ void note_arrived(u32 peer) const {
		Trace(a.group, a.state, m.epoch).arrived(peer);
	})

	// await waits for the next signal of an end.
	__device__ __forceinline__ void await(u32 i, u32 site) {
		u32 peer = peers()[2 * i], shared = peer & SHARED_WAITS;
		u32 want = shared != 0 ? atomic_add_gpu4(a.awaited + peers()[2 * i + 1], 1) + 1 : (u32)++counts[2 * i + 1];
		const char *word = (const char *)words[2 * i + 1];
#pragma unroll 1
		for (u32 tries = 0; tries < TRIES; tries++) {
			if ((int)((u32)load_acquire_sys_u64(word) - want) >= 0) {
				WEFT_TRACED(note_arrived(peer & ~(SHARED_SIGNALS | SHARED_WAITS));)
				return;
			}
		}
		peer &= ~(SHARED_SIGNALS | SHARED_WAITS);
		if (!over) over = !poll_signals(a.group, a.state, site, m.epoch, peer, word, want);
		WEFT_TRACED(if (!over) note_arrived(peer);)
	}
};

// move_short runs operations in a row that are short, behind one that was not, and gives where it ends. Each lane is
// for itself. It is given sizes: to read them from the arguments takes long in a function.
template <bool PACKETS>
__device__ __noinline__ u32 move_short(const Plan &a, Sizes z, const uint4 *code, const u64 *operands, u32 flag,
									   u32 at) {
	const Mover<PACKETS> m = {a, operands, 0, flag, threadIdx.x};
	for (;;) {
		Head h = *(const Head *)(code + at);
		Data d = *(const Data *)(code + at + 1);
		Part p(z, h, d, threadIdx.x);
		if (!p.is_short || p.has() && !m.one(h, d, p.at(), 0)) return at;
		at += h.length;
	}
}

// Opening is the operation with which a block begins, if its sources are read with what the launch before left: a
// thread's vector of each is on the way while the block finds out which launch this is.
template <bool PACKETS> struct Opening {
	Head h;
	Data d;
	Part part;
	char *p[FLIGHT];
	uint4 v[FLIGHT];

	// The operation's head is at code.
	__device__ __forceinline__ Opening(const Plan &a, const uint4 *code, const u64 *operands, u32 me)
		: h(*(const Head *)code), d(*(const Data *)(code + 1)), part(Sizes(a), h, d, me) {
		part.is_short = part.is_short && h.has(FIRST) && a.shared != 0 && a.whole != 0;
		if (part.is_short) Mover<PACKETS>{a, operands, 0, 0, me}.some(p, d.first);
	}

	__device__ __forceinline__ void read() {
		if (part.is_short && part.has()) Mover<PACKETS>::read(v, p, d.sources, part.at());
	}

	// send ends the operation. It gives how long that is in the program.
	__device__ __forceinline__ u32 send(const Mover<PACKETS> &m) {
		if (!part.is_short) return 0;
		if (part.has()) m.pair_one(h, d, v, part.at());
		return h.length;
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

// place makes the addresses of a program that is not in shared memory.
__device__ __noinline__ void place(const Plan &a, const u64 *entries, u64 *operands, bool second) {
	for (u32 i = threadIdx.x; i < a.operands; i += blockDim.x) {
		operands[i] = address(a, entries[i]) + (second ? half(a, entries[i]) : 0);
	}
}

__device__ __noinline__ void refuse_launch(const Group &g, u64 epoch) { refuse(g, 0, epoch); }

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
	u64 *kept = (u64 *)(own + 1);
	u64 *near = (u64 *)room + 2 * a.uses; // operands in shared memory, and behind them the program
	uint4 *copy = (uint4 *)(near + a.operands);
	// The thread, as what calls no function knows it: the compiler would keep threadIdx.x in memory, for functions.
	u32 me = __shfl_sync(WARP, threadIdx.x, threadIdx.x & 31), first = (a.uses + 1) / 2;

	// The launch before may still run, so of this GPU's memory only the program is read.
	u64 entry = me < a.operands ? entries[me] : (u64)NOWHERE << 32;
	uint4 vector = code[min(me, a.vectors - 1)];
	touch(&a, sizeof(Plan) - sizeof(Group) - sizeof a.in - sizeof a.out);
	if (a.shared != 0) {
		if (me < a.vectors) copy[me] = vector;
		for (u32 i = me + blockDim.x; i < a.vectors; i += blockDim.x) copy[i] = code[i];
	}
	if (a.shared != 0) {
		for (u32 i = me; i < a.operands; i += blockDim.x) near[i] = address(a, i == me ? entry : entries[i]);
	}
	u64 further = half(a, entry);
	__syncthreads();
	Opening<PACKETS> opening(a, (a.shared != 0 ? copy : code) + first, near + 2 * a.uses, me);

	// What follows waits for memory only once: all that is read is asked for before any of it is looked at.
	wait_for_previous();
	if (a.early != 0) let_next_start();
	u64 before = own->chunk, epoch = count_of(a.state, blockIdx.x)->epoch + 1;
	u32 stopped = a.state->stopped;
	ulonglong2 count = make_ulonglong2(0, 0);
	if (a.shared != 0 && me < a.uses) count = ((const ulonglong2 *)kept)[me];
	opening.read();
	if (__builtin_expect(stopped != 0, 0)) return refuse_launch(a.group, epoch);
	WEFT_TRACED(if (me == 0) Trace(a.group, a.state, epoch).begin(0);)
	u32 flag = flag_of(epoch);
	bool second = (epoch & 1) == 0, same = before == a.chunk || before == 0; // chunks of one size
	if (a.shared != 0) {
		if (second && further != 0) near[me] += further;
		for (u32 i = me + blockDim.x; second && i < a.operands; i += blockDim.x) near[i] += half(a, entries[i]);
		if (me < a.uses) ((ulonglong2 *)room)[me] = count;
		for (u32 i = me + blockDim.x; i < a.uses; i += blockDim.x) {
			((ulonglong2 *)room)[i] = ((const ulonglong2 *)kept)[i];
		}
	}
	__syncthreads();
	Mover<PACKETS> m = {a, near + 2 * a.uses, epoch, flag, me};
	u32 at = first;
	if (same) at += opening.send(m);
	if (me == 0) { // all have read the block's count
		own->chunk = a.chunk;
		*count_of(a.state, blockIdx.x) = {epoch, 0, 0}; // plans have no turns
	}
	bool over = false;
	if (same && a.whole != 0 && a.shared != 0 && a.uses <= 32) {
		Quick<PACKETS> quick = {a, copy, near, (u64 *)room, m, false};
		at = quick.run(at);
		over = quick.over;
	}
	if (at != ENDED && (same || meet_ranks(a, epoch))) {
		Block<PACKETS, BEYOND> b = {code, kept + 2 * a.uses, kept, epoch, flag, at, over, 0, NO_LOOP, 0, 0, 0};
		if (a.shared != 0) {
			b.code = copy, b.operands = near, b.counts = (u64 *)room;
		} else {
			place(a, entries, kept + 2 * a.uses, second);
			__syncthreads();
		}
		while (b.step(a)) {
			if (!b.may_be_short(a)) continue;
			b.at = move_short<PACKETS>(a, Sizes(a), b.code, b.operands + 2 * a.uses, b.flag, b.at);
		}
	}
	WEFT_TRACED(__syncthreads(); if (me == 0) Trace(a.group, a.state, epoch).at(SITE_END);)
	if (BEYOND && a.streams != nullptr && blockIdx.x < a.own && threadIdx.x == 0) atomic_add_gpu4(a.ended, 1);
	if (a.early == 0) {
		__syncthreads(); // no thread waits any more
		let_next_start();
	}
	for (u32 i = threadIdx.x; a.shared != 0 && i < a.uses; i += blockDim.x) { // those that are this thread's
		((ulonglong2 *)kept)[i] = ((const ulonglong2 *)room)[i];
	}
}

} // namespace plan
} // namespace weft
