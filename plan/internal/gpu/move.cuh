// How an operation's data moves.
#pragma once
#include "fold.cuh"
#include "unaligned.cuh"
#include "wait.cuh"

namespace weft {

namespace plan {

constexpr u32 MOST_RANKS = 72; // Go: device.MaxRanks
constexpr u32 THREADS = 512;   // of a block, at most: as many as have 128 registers each. Go: mostThreads

struct Stream; // far.cuh

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
	u32 switches;			// 1: they store to all ranks at once; 2: they add up, too
	u32 own;				// blocks of the plan; those behind them land what comes from other hosts
	u32 early;				// there is room for the next kernel while this one runs
	Stream *streams;		// to and from ranks of other hosts, in this GPU's memory
	u32 *ended;				// of this GPU: how often blocks of the plan have ended
	char *outbox, *inbox;	// in pinned memory: what goes to other hosts, and what comes from there
	u64 outbox_at;			// how far the outbox is behind the inbox, where the memory begins
	char *all_in, *all_out, *all_window; // multicast addresses of what all ranks have in one place; or 0
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
enum { ADMIT = LOOP + 1, PUSH, FLUSH, BEGIN, ARRIVE, LAND }; // far.cuh
enum { RELAXED = 1, BEHIND = 2, SEND = 4, UNCUT = 8, EARLY = 16, FROM_ALL = 32, TO_ALL = 64, FIRST = 128 };

// Where an address is, in an entry of a program.
enum { INPUT, OUTPUT, DATA, PACKETS, INBOUND, OUTBOX, INBOX, ALL_INPUTS, ALL_OUTPUTS, ALL_DATA, NOWHERE };

constexpr u32 SHARED_SIGNALS = 1u << 30, SHARED_WAITS = 1u << 31; // of an end's peer: several blocks use it

// Head begins every operation. Go: head.
struct alignas(16) Head {
	u32 what; // kind, flags, reduction: 8 bits each
	u32 site; // the operation's number, for records
	u32 length;	 // in vectors
	u32 count;	 // of what follows

	__device__ __forceinline__ u32 kind() const { return what & 0xFF; }
	__device__ __forceinline__ bool has(u32 flags) const { return (what >> 8 & flags) != 0; }
	__device__ __forceinline__ u32 reduction() const { return what >> 16; }
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

	// none is there, and has no data.
	__device__ __forceinline__ static Packet none(u32 flag) {
		u64 up = (u64)flag << 32;
		return {{up, up}, {up, up}};
	}
	// there has no branches: a thread looks at several packets, and most of the time all are there or none.
	__device__ __forceinline__ bool there(u32 flag) const {
		return (((u32)(low.x >> 32) ^ flag) | ((u32)(low.y >> 32) ^ flag) | ((u32)(high.x >> 32) ^ flag) |
				((u32)(high.y >> 32) ^ flag)) == 0;
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

// poll looks until vectors of packets are there, at a place behind each of so many addresses. False: the wait is over.
// It is a function of its own, and loops that call it have left off: what is live across a call costs registers where
// nothing waits. Sources that are operations of their own have sites that follow each other: step is 1 then, and
// else 0.
__device__ __noinline__ bool poll(const Group &g, State *state, u32 site, u32 step, u64 epoch, const u32 *writers,
								  u32 flag, const u64 *sources, u32 count, u64 place, u32 words) {
	for (u32 k = 0; k < count; k++) {
		Wait w(g, state, site + step * k, epoch);
		for (u32 i = 0; i < words; i++) {
			const char *p = (const char *)sources[k] + place + 8 * i;
			u64 v = load_relaxed_sys_u64(p);
			while ((u32)(v >> 32) != flag && w.more(writers[k], flag, v >> 32)) v = load_relaxed_sys_u64(p);
			if (w.over) return false;
		}
	}
	return true;
}

constexpr u32 FLIGHT = 4; // vectors of a thread that are on their way together

// TRIES is how often a thread looks at its packets before it waits by the clock.
constexpr u32 TRIES = 64;

// Sizes are those of a launch's chunks.
struct Sizes {
	u64 chunk, units;
	u32 align;

	__device__ __forceinline__ Sizes(const Plan &a) : chunk(a.chunk), units(a.units), align(a.align) {}
};

// Part is the bytes [from, to) of each of an operation's operands that a block moves, where no pipeline cuts them.
struct Part {
	u64 from, to;
	u32 me;		// the thread
	bool sums;	// it adds up, or compares nothing: what a switch may do is not, nor parts of 4 GiB and more
	bool is_short; // and a thread has one vector of it at most

	__device__ __forceinline__ Part(const Sizes &a, const Head &h, const Data &d, u32 me)
		: from(0), to(d.chunks * a.chunk), me(me) {
		sums = h.kind() >= PAIRS && h.kind() <= FOLD && !h.has(FROM_ALL | TO_ALL) &&
			   (h.kind() != FOLD || h.reduction() == SUM || d.sources == 1);
		if (sums && d.group != 0) {
			u64 units = d.chunks * a.units;
			u32 id = d.group & 0xFFFF, size = d.group >> 16, q = (u32)units / size, r = (u32)units % size;
			from = (u64)(id * q + min(id, r)) * a.align;
			to = (u64)((id + 1) * q + min(id + 1, r)) * a.align;
			sums = units >> 32 == 0;
		}
		is_short = sums && to - from <= (u64)blockDim.x * 16;
	}

	// at is the thread's first vector, and has says whether there is one.
	__device__ __forceinline__ u64 at() const { return from + me * 16; }
	__device__ __forceinline__ bool has() const { return at() < to; }
};

constexpr u32 WARP = 0xFFFFFFFFu; // all lanes

// Mover is what threads know of operations on data. Vector u of one is that of thread u mod blockDim.x, in plain
// operations and in packets alike, so a thread sees what it wrote itself. Where a plan has no packets folds have the
// registers that packets take.
template <bool PACKETS> struct Mover {
	const Plan &a;
	const u64 *operands; // addresses, of which operations count theirs from the first
	u64 epoch;
	u32 flag; // of this launch's packets
	u32 me;	  // the thread

	__device__ __forceinline__ char *at(u32 i) const { return (char *)operands[i]; }

	// some gives the addresses of operands from the k-th on. They are read before anything that takes one: each alone
	// would be waited for. Those that are none stand in memory all the same (Go: endVectors).
	__device__ __forceinline__ void some(char *(&p)[FLIGHT], u32 k) const {
		const u64 *from = operands + k;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) p[j] = (char *)from[j];
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

	// arrive looks at vectors of packets, `place` behind the sources from operand k on, of which there are `left`, until
	// all are there. False: they do not come soon. Lanes stay together, unless there are none: then each is for itself.
	template <bool WHOLE> __device__ __forceinline__ bool arrive(Packet (&v)[FLIGHT], u32 k, u32 left, u64 place,
																 u64 rest, u32 lanes = 0) const {
		char *p[FLIGHT];
		some(p, k);
		bool all = false;
#pragma unroll 1
		for (u32 tries = 0; !all && tries < TRIES; tries++) {
			all = true;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				v[j] = Packet::none(flag); // so that nothing has to be kept from try to try
				if (j < left) v[j] = see<WHOLE>(p[j] + place, rest);
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) all &= v[j].there(flag);
		}
		return lanes == 0 ? all : __all_sync(lanes, all) != 0;
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

	// run moves the bytes [from, to) of each operand of an operation, whose head is at code. False: a wait has ended in
	// vain.
	template <bool WHOLE> __device__ __forceinline__ bool run(const uint4 *code, const Head &h, const Data &d, u64 from,
															  u64 to) const {
		u32 op = h.reduction();
		if (h.kind() == PAIRS || !PACKETS && d.sources == 1) {
			if (PACKETS && h.has(SEND)) {
				pairs<WHOLE, true>(d, from, to);
			} else {
				pairs<WHOLE, false>(d, from, to);
			}
			return true;
		}
		if (!PACKETS) {
			if (op == SUM) {
				fold_plain<WHOLE>(d, from, to, SUM);
			} else if (op == MIN) {
				fold_plain<WHOLE>(d, from, to, MIN);
			} else {
				fold_plain<WHOLE>(d, from, to, MAX);
			}
			return true;
		}
		bool early = h.has(EARLY), receives = h.kind() == RECEIVE;
#pragma unroll 1
		for (u64 i = from + me * 16; i < to;) {
			if (receives) {
				i = receive_some<WHOLE>(d, i, to);
			} else if (op == SUM) {
				i = fold_some<WHOLE>(d, i, to, SUM, early);
			} else if (op == MIN) {
				i = fold_some<WHOLE>(d, i, to, MIN, early);
			} else {
				i = fold_some<WHOLE>(d, i, to, MAX, early);
			}
			if (i < to && !await(code, h, d, i, words(to - i))) return false;
		}
		return true;
	}

	// add moves the bytes [from, to) of an operation that has no packets and compares nothing.
	__device__ __forceinline__ void add(const Data &d, u64 from, u64 to) const {
		if (d.sources == 1) {
			pairs<true, false>(d, from, to);
		} else {
			fold_plain<true>(d, from, to, SUM);
		}
	}

	// await waits by the clock until an operation's packets are there, of the vector at i.
	__device__ __forceinline__ bool await(const uint4 *code, const Head &h, const Data &d, u64 i, u32 words) const {
		bool receives = h.kind() == RECEIVE;
		return poll(a.group, a.state, h.site, receives ? 1 : 0, epoch, (const u32 *)(code + 3), flag, operands + d.first,
					receives ? d.sources : d.packets & 0xFFFF, 2 * i, words);
	}

	// ---- An operation of which a thread has one vector takes as long as its instructions, of which these are few.

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

// move_many runs an operation of which threads have many vectors, or vectors that are not WHOLE. False: a wait has
// ended in vain. It is a function of its own, so that it has registers of its own.
template <bool PACKETS, bool WHOLE>
__device__ __noinline__ bool move_many(const Plan &a, const uint4 *code, const u64 *operands, u64 epoch, u32 flag,
									   u64 from, u64 to) {
	Mover<PACKETS> m = {a, operands, epoch, flag, threadIdx.x};
	return m.template run<WHOLE>(code, *(const Head *)code, *(const Data *)(code + 1), from, to);
}

} // namespace plan
} // namespace weft
