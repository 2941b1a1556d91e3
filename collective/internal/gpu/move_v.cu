// Moves of parts of different lengths: all-to-all-v, and all-gather-v. No rank knows all counts, so one
// launch moves all, however much it is.
//
// A source has slots for `stage` vectors in each half of a turn. A part that is longer goes round by
// round, in one half and the other: a rank sends round k of a group of 32 vectors when the receiver has
// given it credit for round k-2. Rounds begin in order, sends before waits, so no ranks wait in a circle.
//
// Every rank sends every other a header: what it sends it, and what it expects of it. So every operation
// is full, with counts of zero, too, and counts that do not match fail on both ranks.
#include "slots.cuh"

namespace weft {

// Go: moveVArgs.
struct MoveV {
	Lane lane;
	Operand in, out;
	u64 stage_bytes; // slots of a source in each half of a turn: whole groups
	u64 credits;	 // in the window: [ranks][groups] of 8 bytes
	// In this GPU's memory: a rank's counts and positions in the input, then those in the output. Null:
	// they are below.
	const u64 *counts[4];
	u32 element, groups;
	Span sends[MOST_RANKS], receives[MOST_RANKS];
	Group group;
};

static_assert(sizeof(MoveV) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace collective {

// The kinds of mismatches, in the upper bits of a record's numbers. Go: mismatch.
constexpr u64 OTHER_SENT = 1ull << 62, OTHER_EXPECTED = 2ull << 62, OWN_COUNTS = 3ull << 62;

constexpr u32 HEADER_BYTES = 16; // of a rank, in the beginning of a turn. Go: headerBytes

// A header has no word of ones: each number is two of 31 bits.
__device__ __forceinline__ uint4 header_of(u64 sent, u64 expected) {
	return make_uint4((u32)sent & 0x7FFFFFFF, (u32)(sent >> 31), (u32)expected & 0x7FFFFFFF, (u32)(expected >> 31));
}
__device__ __forceinline__ u64 sent(uint4 h) { return (u64)h.y << 31 | h.x; }
__device__ __forceinline__ u64 expected(uint4 h) { return (u64)h.w << 31 | h.z; }

// fits says whether a part lies in an operand.
__device__ __forceinline__ bool fits(const Operand &o, const Span &s, u32 element) {
	u64 elements = o.bytes / element;
	return s.count <= elements && s.from <= elements - s.count;
}

struct Spans {
	const MoveV &a;
	const Span *of;
	const Operand &operand;

	__device__ __forceinline__ u64 vectors(u32 r) const { return (of[r].count * a.element + 15) / 16; }
	__device__ __forceinline__ Part part(u32 r) const {
		return Part(operand.at + of[r].from * a.element, of[r].count * a.element);
	}
};

// credit_at is where the credit of a group stands that rank r has given, in the window of the sender.
__device__ __forceinline__ u64 credit_at(const MoveV &a, u32 r, u32 group) {
	return a.credits + ((u64)r * a.groups + group) * 8;
}
__device__ __forceinline__ u64 credit_of(const Collective &c, u64 round) { return c.o.epoch << 24 | (round + 1); }

__global__ void __launch_bounds__(THREADS, 1) move_v(const __grid_constant__ MoveV a) {
	const Group &g = a.group;
	__shared__ Span tables[2][MOST_RANKS];
	Collective c(a.lane);
	u32 mine = threadIdx.x; // a rank, if it is one: the thread's own in what is done once a rank
	bool valid = true;
	if (mine < g.ranks) {
		Span s = a.sends[mine], r = a.receives[mine];
		if (a.counts[0] != nullptr) {
			s = {a.counts[1][mine], a.counts[0][mine]};
			r = {a.counts[3][mine], a.counts[2][mine]};
			valid = fits(a.in, s, a.element) && fits(a.out, r, a.element) && (mine != g.rank || s.count == r.count);
			if (!valid) s.count = 0, r.count = 0;
		}
		tables[0][mine] = s;
		tables[1][mine] = r;
	}
	__syncthreads();
	if (!c.begin(g, a.lane)) return;
	Spans sends = {a, tables[0], a.in}, receives = {a, tables[1], a.out};
	Peers peers(g);
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	u32 lane = threadIdx.x & 31;
	bool meets = blockIdx.x == 0 && mine < g.ranks && holds(live.set, mine);
	await_begun(g, a.lane, c, wait, live.others);
	if (meets && !valid) wait.give_up(g.rank, CAUSE_MISMATCH, OWN_COUNTS | mine, 0);
	if (meets && mine != g.rank) {
		store_relaxed_sys16(g.window[mine] + c.turn + g.rank * HEADER_BYTES,
							header_of(tables[0][mine].count, tables[1][mine].count));
	}
	u64 most = 0; // vectors of the longest part
	for (u32 r = 0; r < g.ranks; r++) {
		if (holds(live.others, r)) most = max(most, max(sends.vectors(r), receives.vectors(r)));
	}
	u32 stage = (u32)(a.stage_bytes / SLOT_BYTES);
	u64 begun = 0, round = 0;
	do {
		u64 half = c.turn + g.ranks * HEADER_BYTES + (round & 1) * g.ranks * a.stage_bytes;
		u32 here = (u32)min(most - begun, (u64)stage);
		for (u32 base = c.at & ~31u; base < here; base += c.step) {
			u64 first = begun + base, i = first + lane;
			if (round >= 2) {
				for (u32 r = lane; r < g.ranks; r += 32) {
					if (!holds(live.others, r) || first >= sends.vectors(r)) continue;
					const char *p = c.o.own + credit_at(a, r, base / 32);
					u64 want = credit_of(c, round - 2), v = load_acquire_sys_u64(p);
					while (v < want && !wait.over && wait.more(r, want, v)) v = load_acquire_sys_u64(p);
				}
				// What the receiver has not read must not be overwritten.
				if (__any_sync(0xFFFFFFFFu, wait.over)) break;
			}
			auto has = [&](u32 r) { return i < sends.vectors(r); };
			auto load = [&](u32 r) { return has(r) ? sends.part(r).load(i) : make_uint4(0, 0, 0, 0); };
			Parts parts;
			parts.fetch(load);
			parts.send(a.lane, peers, live.others, slot_of(half, g.rank, a.stage_bytes, base + lane), has, load);
		}
		if (round == 0) {
			c.clear(a.lane);
			c.note(a.lane, 0, true);
			Part from = sends.part(g.rank), to = receives.part(g.rank);
			for (u64 i = c.at; from.at != to.at && i < sends.vectors(g.rank); i += c.step) to.store(i, from.load(i));
			if (meets && mine != g.rank) {
				char *p = c.o.own + c.turn + mine * HEADER_BYTES;
				uint4 header = await16(wait, mine, p);
				u64 sends_it = tables[0][mine].count, expects = tables[1][mine].count;
				if (!wait.over && sent(header) != expects) {
					wait.give_up(mine, CAUSE_MISMATCH, OTHER_SENT | expects, sent(header));
				} else if (!wait.over && expected(header) != sends_it) {
					wait.give_up(mine, CAUSE_MISMATCH, OTHER_EXPECTED | sends_it, expected(header));
				}
				store16(p, empty16());
			}
		}
		Arrivals arrivals(wait, a.lane, live, c.o.own + half, a.stage_bytes);
		for (u32 base = c.at & ~31u; base < here; base += c.step) {
			u64 first = begun + base, i = first + lane;
			auto comes = [&](u32 r) { return i < receives.vectors(r); };
			arrivals.look(base + lane, live.others, comes);
			arrivals.each(base + lane, live.others, comes, [&](u32 r, uint4 v) { receives.part(r).store(i, v); });
			if (first + 2 * (u64)stage >= most) continue;
			if (__any_sync(0xFFFFFFFFu, wait.over)) break;
			for (u32 r = lane; r < g.ranks; r += 32) {
				if (!holds(live.others, r) || first + 2 * (u64)stage >= receives.vectors(r)) continue;
				fence_sys(); // the slots are ones again before the sender stores into them
				store_relaxed_sys_u64(g.window[r] + credit_at(a, g.rank, base / 32), credit_of(c, round));
			}
		}
		begun += stage;
		round++;
	} while (begun < most && !__any_sync(0xFFFFFFFFu, wait.over));
	let_next_start();
}

} // namespace collective
} // namespace weft
