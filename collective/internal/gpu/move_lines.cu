// All-gather and all-to-all of any bytes by lines of 128 bytes: 120 of data, and a flag of 8, the number of the
// operation. Eight lanes of a warp store a line, with one instruction, and load it with one.
//
// Invariant, of the hardware and not of PTX: such a line arrives whole. So data that is loaded after its flag was
// seen is there. It takes 16 bytes for 15, where pairs take 32 for 16. Ranks use lines only where that was put to
// the test: Engine.learn.
//
// Slots of lines are ones before and after, as all slots are, so the turn may be any other operation's next.
#include "flags.cuh"
#include "slots.cuh"

namespace weft {

// Go: moveLinesArgs.
struct MoveLines {
	Lane lane;
	Operand in, out;
	u64 part_bytes, slot_bytes;
	u64 in_step, out_step; // from a rank's part to the next one's; in_step of 0: all get the whole
	Group group;
};

static_assert(sizeof(MoveLines) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

constexpr u32 LINE = 128, LINE_DATA = 120, LINES = 4; // LINES: of a warp at a time

// Piece is a lane's part of a line.
struct Piece {
	u64 from; // in the part
	u32 bytes;
	bool flags; // the second half is the flag

	__device__ __forceinline__ Piece(u64 step, u64 part_bytes) : flags((threadIdx.x & 7) == 7) {
		u32 lane = threadIdx.x & 31;
		from = (step * LINES + lane / 8) * LINE_DATA + lane % 8 * 16;
		u64 rest = from < part_bytes ? part_bytes - from : 0;
		bytes = (u32)min(rest, (u64)(flags ? 8 : 16));
	}
	__device__ __forceinline__ uint4 load(const char *part, u32 unit, u64 flag) const {
		uint4 v = load_slowly(part + from, bytes, min(unit, greatest_unit(bytes | 8)));
		if (flags) v.z = (u32)flag, v.w = (u32)(flag >> 32);
		return v;
	}
	__device__ __forceinline__ void store(char *part, u32 unit, uint4 v) const {
		store_slowly(part + from, bytes, min(unit, greatest_unit(bytes | 8)), v);
	}
	// A slot that is empty has a flag of ones.
	__device__ __forceinline__ bool there(uint4 v) const { return !flags || (v.z & v.w) != EMPTY; }
};

// poll_lines waits until a warp's lines from a peer are there, and loads them. It is false in all lanes if they have
// not come.
__device__ __noinline__ bool poll_lines(const Group &g, State *state, u32 op, u64 epoch, u32 peer, const char *slot,
										const Piece &piece, uint4 *v) {
	Wait w(g, state, op, epoch);
	while (__any_sync(0xFFFFFFFFu, !piece.there(load_relaxed_sys16(slot)))) {
		if (__any_sync(0xFFFFFFFFu, !w.more(peer, 0, 0))) return false;
	}
	*v = load_relaxed_sys16(slot);
	return true;
}

namespace collective {

__global__ void __launch_bounds__(THREADS, 1) move_lines(const __grid_constant__ MoveLines a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	u64 steps = (a.part_bytes + LINES * LINE_DATA - 1) / (LINES * LINE_DATA);
	auto slot = [&](u32 src, u64 step) {
		return c.turn + src * a.slot_bytes + step * LINES * LINE + (threadIdx.x & 31) * 16;
	};
	await_begun(g, a.lane, c, wait, live.others);
	for (u64 s = c.at / 32; s < steps; s += c.step / 32) {
		Piece piece(s, a.part_bytes);
		uint4 v = make_uint4(0, 0, 0, 0);
		if (a.in_step == 0) v = piece.load(a.in.at, a.in.unit, c.o.epoch);
		peers.each(live.others, [&](u32 r, char *there) {
			if (a.in_step != 0) v = piece.load(a.in.at + r * a.in_step, a.in.unit, c.o.epoch);
			store_line(there + slot(g.rank, s), v);
		});
	}
	c.clear(a.lane);
	c.note(a.lane, g.ranks * a.slot_bytes, true);
	for (u64 s = c.at / 32; s < steps; s += c.step / 32) {
		Piece piece(s, a.part_bytes);
		auto out = [&](u32 r) { return a.out.at + r * a.out_step; };
		const char *own = a.in.at + g.rank * a.in_step;
		if (own != out(g.rank)) piece.store(out(g.rank), a.out.unit, piece.load(own, a.in.unit, 0));
		peers.each(live.others, [&](u32 r, char *) {
			uint4 v;
			char *from = c.o.own + slot(r, s);
			if (wait.over || !poll_lines(g, a.lane.state, a.lane.op, c.o.epoch, r, from, piece, &v)) {
				wait.over = true;
				return;
			}
			WEFT_TRACED(if (threadIdx.x == 0) c.o.trace.arrived(r);)
			piece.store(out(r), a.out.unit, v);
			if (a.lane.clear != 0) store16(from + (a.lane.cleared - a.lane.slots), empty16());
		});
	}
	let_next_start();
}

} // namespace collective
} // namespace weft
