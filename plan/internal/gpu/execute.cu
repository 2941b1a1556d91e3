// Runs a communication plan: every block runs its own program, operation by operation. doc.go has the layout of
// programs and memory, and says why it is right.
//
// Nothing but a nop, a barrier and what goes through a port lets the threads of a block meet. Vector u of an
// operation is that of thread u mod blockDim.x, in plain operations and in packets alike, so a thread sees what
// it wrote itself.
#include "fold.cuh"
#include "unaligned.cuh"
#include "wait.cuh"

namespace weft {

namespace plan {

constexpr u32 MOST_RANKS = 72; // Go: device.MaxRanks
constexpr u32 THREADS = 512;   // of a block, at most: as many as have 128 registers each. Go: mostThreads

// Plan is the parameter. Go: planArgs.
struct Plan {
	State *state;
	const char *program;	// this rank's: `stride` bytes a block
	char *blocks;			// of this GPU, for each block: its Own, and what does not fit into shared memory
	u32 *barriers;			// of this GPU: two words each, the blocks that have come, and the turn
	u32 *semaphores;		// of this GPU: by how much each is more than its first value
	u32 *awaited;			// of this GPU: for each end of a channel that several blocks wait on, its waits
	u64 inbound, begun;		// in the window: a word for each end, its signals; a word for each rank, its last meeting
	u64 data, packets;		// in the window: scratch
	u64 data_half, packets_half; // how far its second halves are; or 0
	u64 chunk, units;		// bytes of a chunk, and how many units of the plan's alignment
	u32 align;				// bytes of that unit
	u32 stride, own_stride; // bytes of a block
	u32 operands, vectors;	// of a program: addresses, and what follows them, in vectors
	u32 uses;				// ends of channels that a block uses
	u32 shared;				// programs are in shared memory
	u32 whole;				// every address and length is a multiple of 16 bytes; else:
	u32 unit;				// of which power of two
	u32 zero;
	char *in[MOST_RANKS];  // every rank's operands, of those that this rank reaches
	char *out[MOST_RANKS];
	Group group;
};
static_assert(sizeof(Plan) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

// Own is what a block keeps from launch to launch. Two words follow it for each end that it uses: the signals that
// it sent there, and those that it waited for.
struct Own {
	u64 chunk; // of the last launch
	u64 zero;
};

// The kinds of operations, and their flags. Go: the constants of program.go.
enum { END, NOP, MEET, ACQUIRE, RELEASE, SIGNAL, WAIT, PAIRS, RECEIVE, FOLD, LOOP };
enum { RELAXED = 1, BEHIND = 2, SEND = 4, UNCUT = 8, EARLY = 16 };

// Where an address is, in an entry of a program.
enum { INPUT, OUTPUT, DATA, PACKETS, INBOUND, NOWHERE };

constexpr u32 SHARED_SIGNALS = 1u << 30, SHARED_WAITS = 1u << 31; // of an end's peer: several blocks use it

// Head begins every operation. Go: head.
struct alignas(16) Head {
	u32 what; // kind, flags, reduction: 8 bits each
	u32 site; // the operation's number, for records
	u32 length;	 // in vectors
	u32 count;	 // of what follows
};

// Data follows the head of an operation on data. Go: data.
struct alignas(16) Data {
	u32 chunks;
	u32 group;			// the block's position, and the size of the group above it: 16 bits each
	u32 first;			// its first operand, behind the ends: sources, then sinks
	u32 sources, sinks; // how many
	u32 packets;		// of the sources, the first so many are packets; of the sinks all but so many: 16 bits each
	u32 zero[2];
};

__device__ __forceinline__ uint4 load(const Plan &a, const char *p, u64 rest) {
	u32 n = rest >= 16 ? 16 : (u32)rest;
	return load_slowly(p, n, min(a.unit, greatest_unit(n)));
}

__device__ __forceinline__ void store(const Plan &a, char *p, u64 rest, uint4 v) {
	u32 n = rest >= 16 ? 16 : (u32)rest;
	store_slowly(p, n, min(a.unit, greatest_unit(n)), v);
}

// Packet is a vector of packets: a word of data and a flag in each 8 bytes.
struct Packet {
	ulonglong2 low, high;

	__device__ __forceinline__ bool there(u32 flag) const {
		return (u32)(low.x >> 32) == flag && (u32)(low.y >> 32) == flag && (u32)(high.x >> 32) == flag &&
			   (u32)(high.y >> 32) == flag;
	}
	__device__ __forceinline__ uint4 value() const {
		return make_uint4((u32)low.x, (u32)low.y, (u32)high.x, (u32)high.y);
	}
};

__device__ __forceinline__ Packet look(const char *p) {
	return {load_relaxed_sys_u64x2(p), load_relaxed_sys_u64x2(p + 16)};
}

// look_slowly looks at `words` packets of a vector, which may be fewer than four. What is not there is.
__device__ __noinline__ Packet look_slowly(const char *p, u32 words, u32 flag) {
	u64 w[4];
	for (u32 i = 0; i < 4; i++) w[i] = i < words ? load_relaxed_sys_u64(p + 8 * i) : (u64)flag << 32;
	return {{w[0], w[1]}, {w[2], w[3]}};
}

__device__ __forceinline__ void send(char *p, u32 flag, uint4 v) {
	u64 up = (u64)flag << 32;
	store_relaxed_sys_u64x2(p, {up | v.x, up | v.y});
	store_relaxed_sys_u64x2(p + 16, {up | v.z, up | v.w});
}

__device__ __noinline__ void send_slowly(char *p, u32 words, u32 flag, uint4 v) {
	u64 up = (u64)flag << 32;
	u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		if (i < words) store_relaxed_sys_u64(p + 8 * i, up | w[i]);
	}
}

// poll looks until a vector of packets is there. False: the wait is over. It is a function of its own, so that waits
// that end at once take few instructions and registers.
__device__ __noinline__ bool poll(const Group &g, State *state, u32 site, u64 epoch, u32 peer, const char *p,
								  u32 words, u32 flag) {
	Wait w(g, state, site, epoch);
	for (u32 i = 0; i < words; i++) {
		u64 v = load_relaxed_sys_u64(p + 8 * i);
		while ((u32)(v >> 32) != flag && w.more(peer, flag, v >> 32)) v = load_relaxed_sys_u64(p + 8 * i);
		if (w.over) return false;
	}
	return true;
}

constexpr u32 FLIGHT = 4; // vectors of a thread that are on their way together

__device__ bool move_slowly(const Plan &a, const uint4 *code, const u64 *operands, u64 epoch, u32 flag, u32 at,
							u64 from, u64 to);

// Block is a block as one of its threads knows it.
struct Block {
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

	__device__ __forceinline__ Wait wait(u32 site) const { return Wait(a.group, a.state, site, epoch); }
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
			if (over) return;
			Wait w = wait(site);
			peer &= ~(SHARED_SIGNALS | SHARED_WAITS);
			u64 seen = load_acquire_sys_u64(word);
			// The lower half of a count wraps, and no launch waits for 2^31 signals.
			while ((int)((u32)seen - want) < 0 && w.more(peer, want, seen)) seen = load_acquire_sys_u64(word);
			over = w.over;
		});
	}

	// ---- Blocks of this rank.

	// local waits until there() holds, which another block of this rank brings about: a quarter longer than blocks wait
	// for other ranks, so that the error names the rank that is late and not this one.
	template <class F> __device__ __forceinline__ void local(u32 site, F there) {
		u64 begun = 0, looked = 0;
		for (u32 polls = 1; !there(); polls++) {
			if ((polls & 63) != 0) continue;
			u64 now = nanoseconds();
			if (begun == 0) begun = now;
			u64 waited = now - begun;
			bool looks = waited >> 20 != looked;
			looked = waited >> 20;
			over = gave_up(a.group, a.state, site, epoch, waited - waited / 5, looks, a.group.rank, 1, 0);
			if (over) return;
		}
	}

	// barrier waits until so many blocks have come. The last one begins the next turn.
	__device__ __forceinline__ bool barrier(u32 number, u32 blocks, u32 site) {
		if (!meet()) return false;
		if (threadIdx.x == 0) {
			u32 *come = a.barriers + 2 * number, *turn = come + 1;
			u32 now = load_relaxed_gpu4(turn);
			fence_gpu();
			if (atomic_add_gpu4(come, 1) == blocks - 1) {
				fence_gpu();
				store_relaxed_gpu4(come, 0);
				fence_gpu();
				store_relaxed_gpu4(turn, now + 1);
			} else {
				local(site, [&] { return load_relaxed_gpu4(turn) != now; });
			}
			fence_gpu();
		}
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
			u32 *p = a.semaphores + entry[i].x, first = entry[i].y;
			local(site, [&] {
				u32 more = load_relaxed_gpu4(p);
				return (int)(first + more) > 0 && atomic_cas_gpu4(p, more, more - 1) == more;
			});
			fence_gpu();
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

	// pairs copies each source to its own sink, which is one of packets or not.
	template <bool WHOLE, bool PACKET> __device__ __forceinline__ void pairs(const Data &d, u64 from, u64 to) const {
		u64 step = (u64)blockDim.x * 16;
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
			char *sink = at(d.first + 1);
			for (u64 i = from + threadIdx.x * 16; i < to; i += FLIGHT * step) {
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (i + j * step < to) v[j] = take<WHOLE>(source + i + j * step, to - i - j * step);
				}
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (i + j * step < to) move(sink, i + j * step, v[j]);
				}
			}
			return;
		}
		for (u64 i = from + threadIdx.x * 16; i < to; i += step) {
			for (u32 k = 0; k < d.sources; k += FLIGHT) {
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < d.sources) v[j] = take<WHOLE>(at(d.first + k + j) + i, to - i);
				}
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < d.sources) move(at(d.first + d.sources + k + j), i, v[j]);
				}
			}
		}
	}

	// await waits for a vector of packets that was looked at. False: in vain.
	template <bool WHOLE> __device__ __forceinline__ bool await(Packet &v, const char *p, u64 rest, u32 site, u32 peer) {
		if (__builtin_expect(v.there(flag), 1)) return true;
		over = !poll(a.group, a.state, site, epoch, peer, p, words(rest), flag);
		v = see<WHOLE>(p, rest);
		return !over;
	}

	// receive copies the packets of each source to its own sink. writers are the ranks that send them.
	template <bool WHOLE> __device__ __forceinline__ void receive(const Data &d, u64 from, u64 to, u32 site,
																  const u32 *writers) {
		u64 step = (u64)blockDim.x * 16;
		for (u64 i = from + threadIdx.x * 16; i < to; i += step) {
			u64 rest = to - i;
			for (u32 k = 0; k < d.sources; k += FLIGHT) {
				Packet v[FLIGHT];
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < d.sources) v[j] = see<WHOLE>(at(d.first + k + j) + 2 * i, rest);
				}
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j >= d.sources) continue;
					if (!await<WHOLE>(v[j], at(d.first + k + j) + 2 * i, rest, site + k + j, writers[k + j])) return;
					put<WHOLE>(at(d.first + d.sources + k + j) + i, rest, v[j].value());
				}
			}
		}
	}

	// fold reduces all sources, in their order, and stores the result in every sink. writers are the ranks that send
	// the packets among the sources.
	template <bool WHOLE> __device__ __forceinline__ void fold(const Data &d, u64 from, u64 to, u32 op, bool early,
															   u32 site, const u32 *writers) {
		u64 step = (u64)blockDim.x * 16;
		u32 packets = d.packets & 0xFFFF, plain = d.packets >> 16, sinks = d.first + d.sources;
		Fold f(How{op, 0, 0, nullptr}, 0);
		for (u64 i = from + threadIdx.x * 16; i < to; i += step) {
			u64 rest = to - i;
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
			for (u32 k = 0; k < packets; k += FLIGHT) {
				Packet v[FLIGHT];
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < packets) v[j] = see<WHOLE>(at(d.first + k + j) + 2 * i, rest);
				}
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j >= packets) continue;
					if (!await<WHOLE>(v[j], at(d.first + k + j) + 2 * i, rest, site, writers[k + j])) return;
					add(k + j, v[j].value());
				}
			}
			u32 k = packets;
			if (early) add(k++, mine);
			for (; k < d.sources; k += FLIGHT) {
				uint4 v[FLIGHT];
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < d.sources) v[j] = take<WHOLE>(at(d.first + k + j) + i, rest);
				}
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (k + j < d.sources) add(k + j, v[j]);
				}
			}
			if (d.sources > 1) result = f.result();
			for (k = 0; k < plain; k++) put<WHOLE>(at(sinks + k) + i, rest, result);
			for (k = plain; k < d.sinks; k++) put_packet<WHOLE>(at(sinks + k) + 2 * i, rest, result);
		}
	}

	// data runs an operation on data.
	template <bool WHOLE> __device__ __forceinline__ void data(u32 at, const Head &h, const Data &d, u64 from, u64 to) {
		u32 kind = h.what & 0xFF, flags = h.what >> 8 & 0xFF;
		const u32 *writers = (const u32 *)(code + at + 3);
		if (kind == FOLD) {
			fold<WHOLE>(d, from, to, h.what >> 16, (flags & EARLY) != 0, h.site, writers);
		} else if (kind == RECEIVE) {
			receive<WHOLE>(d, from, to, h.site, writers);
		} else if ((flags & SEND) != 0) {
			pairs<WHOLE, true>(d, from, to);
		} else {
			pairs<WHOLE, false>(d, from, to);
		}
	}

	__device__ __forceinline__ void move(u32 at, const Head &h) {
		Data d = *(const Data *)(code + at + 1);
		d.first += 2 * a.uses;
		u64 from, to;
		part(d, (h.what >> 8 & UNCUT) != 0, from, to);
		if (a.whole != 0) {
			data<true>(at, h, d, from, to);
		} else {
			over = move_slowly(a, code, operands, epoch, flag, at, from, to);
		}
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
				if (!over) move(at, h);
			}
			at += kind == LOOP ? 2 : h.length;
		}
	}
};

// move_slowly is Block::move of operands, or lengths, that are no whole vectors. It says whether a wait ended in vain.
__device__ __noinline__ bool move_slowly(const Plan &a, const uint4 *code, const u64 *operands, u64 epoch, u32 flag,
										 u32 at, u64 from, u64 to) {
	Block b = {a, code, operands, nullptr, epoch, flag, false, 0, 0, 0, 0, 0};
	Data d = *(const Data *)(code + at + 1);
	d.first += 2 * a.uses;
	b.data<false>(at, *(const Head *)(code + at), d, from, to);
	return b.over;
}

// address is where an entry of a program points, in launches of odd numbers.
__device__ __forceinline__ u64 address(const Plan &a, u64 entry) {
	u32 index = (u32)entry, where = entry >> 32 & 0xFF, rank = (u32)(entry >> 40);
	if (where == NOWHERE) return 0;
	char *base = where == INPUT ? a.in[rank] : where == OUTPUT ? a.out[rank] : a.group.window[rank];
	if (where == INBOUND) return (u64)base + a.inbound + (u64)index * 8;
	if (where == DATA) base += a.data;
	if (where == PACKETS) base += a.packets + index * a.chunk;
	return (u64)base + index * a.chunk;
}

// half is how much further it points in launches of even numbers.
__device__ __forceinline__ u64 half(const Plan &a, u64 entry) {
	u32 where = entry >> 32 & 0xFF;
	return where == DATA ? a.data_half : where == PACKETS ? a.packets_half : 0;
}

// flag_of is the flag of a launch's packets: never 0, which is what nobody has written.
__device__ __forceinline__ u32 flag_of(u64 epoch) {
	u64 n = (epoch >> 32) + (u32)epoch; // epoch modulo 2^32 - 1, but for the last steps
	n = (n >> 32) + (u32)n;
	return n >= 0xFFFFFFFFu ? 1 : (u32)n + 1;
}

// meet_ranks lets all ranks have ended what was before. Where chunks have another size than in the launch before, they
// lie elsewhere, and what orders accesses of two launches to the same chunk says nothing.
__device__ __noinline__ bool meet_ranks(const Plan &a, u64 epoch) {
	const Group &g = a.group;
	bool over = false;
	for (u32 r = threadIdx.x; r < g.ranks && blockIdx.x == 0; r += blockDim.x) {
		if (r != g.rank) store_release_sys_u64(g.window[r] + a.begun + g.rank * 8, epoch);
	}
	for (u32 r = threadIdx.x; r < g.ranks && !over; r += blockDim.x) {
		if (r == g.rank) continue;
		const char *word = g.window[g.rank] + a.begun + r * 8;
		Wait w(g, a.state, 0, epoch);
		u64 seen = load_acquire_sys_u64(word);
		while (seen < epoch && w.more(r, epoch, seen)) seen = load_acquire_sys_u64(word);
		over = w.over;
	}
	return __syncthreads_or(over) == 0;
}

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
		Block b = {a, code, operands, counts, o.epoch, flag_of(o.epoch), false, 0, 0, 0, 0, 0};
		b.run((a.uses + 1) / 2);
	}
	let_next_start();
	for (u32 i = me; a.shared != 0 && i < a.uses; i += blockDim.x) { // those that are this thread's
		((ulonglong2 *)kept)[i] = ((const ulonglong2 *)counts)[i];
	}
	if (me == 0) own->chunk = a.chunk;
	o.end(a.state);
}

} // namespace plan
} // namespace weft
