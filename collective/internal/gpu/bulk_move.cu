// Moves of inputs that lie in windows: an all-gather, an all-to-all or a gather. A rank reads what it gets from
// every rank where it lies. From Hopper on, a block's warps carry it by bulk copies, so that few SMs fill
// the links.
//
// Bulk copies move multiples of 16 bytes between addresses that are such. What is before the first of them,
// and behind the last, goes by threads; if a part's places in input and output differ modulo 16, all of it
// does.
#include "bulk.cuh"
#include "direct.cuh"

namespace weft {

// Go: bulkMoveArgs.
struct BulkMove {
	Lane lane;
	Direct direct;
	u64 part_bytes;
	u64 in_step;  // from a rank's part of an input to the next one's; 0: all get the whole
	u32 unit;	  // what all addresses are multiples of
	u32 chunk;	  // that a warp carries at a time
	int receiver; // the only one, or -1
	u32 zero;
	char *out; // this rank's: a part a rank
	char *ins[MOST_RANKS];
	Group group;
};

static_assert(sizeof(BulkMove) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

// Pulled is what this rank gets from another.
struct Pulled {
	char *from, *to;
	u64 bytes;
	bool moves; // it is not there already

	__device__ __forceinline__ Pulled(const BulkMove &a, const Live &live, u32 rank)
		: from(a.ins[rank] + a.group.rank * a.in_step), to(a.out + rank * a.part_bytes), bytes(a.part_bytes),
		  moves(holds(live.set, rank) && from != to) {}
};

__device__ __forceinline__ void move_by_threads(const Collective &c, char *from, char *to, u64 bytes, u32 unit) {
	Part in(Operand{from, bytes, unit, 0}), out(Operand{to, bytes, unit, 0});
	u32 vectors = in.vectors();
	for (u32 base = c.at; base < vectors; base += FLYING * c.step)
		fly<FLYING>(
			base, c.step, vectors, [&](u32 i) { return in.load(i); }, [&](u32 i, uint4 v) { out.store(i, v); });
}

namespace collective {

__global__ void __launch_bounds__(CARRIERS, 4) bulk_move(const __grid_constant__ BulkMove a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Meeting meeting(g, a.lane, live, a.direct, c.o.epoch);
	if (!meeting.begin(c)) return;
	bool receives = a.receiver < 0 || (u32)a.receiver == g.rank;
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(128) char buffers[];
	__shared__ u64 arrived[CARRIERS / 32];
	u32 warp = threadIdx.x / 32;
	Carrier carrier(buffers, arrived, a.chunk, warp, threadIdx.x & 31);
	fence_async(); // other ranks stored what is read
	__syncwarp();
	// Warps take chunks of a rank's part in turn, rank after rank, so that all links are busy from the beginning;
	// ranks begin with different ones.
	u64 chunks = (a.part_bytes + a.chunk - 1) / a.chunk;
	for (u64 k = c.at / 32; receives && k < chunks * g.ranks; k += c.step / 32) {
		Pulled p(a, live, (g.rank + (u32)(k % g.ranks)) % g.ranks);
		Body body(p.from, p.to, p.bytes);
		u64 at = k / g.ranks * a.chunk;
		if (!p.moves || at >= body.bytes) continue;
		u32 bytes = (u32)min((u64)a.chunk, body.bytes - at);
		carrier.fetch(p.from + body.head + at, bytes);
		carrier.await();
		carrier.store(p.to + body.head + at, bytes);
		carrier.commit();
	}
	for (u32 r = 0; receives && r < g.ranks; r++) {
		Pulled p(a, live, r);
		if (!p.moves) continue;
		Body body(p.from, p.to, p.bytes);
		u64 moved = body.head + body.bytes;
		if (body.bytes == 0) {
			move_by_threads(c, p.from, p.to, p.bytes, a.unit);
		} else {
			move_by_threads(c, p.from, p.to, body.head, 1);
			move_by_threads(c, p.from + moved, p.to + moved, p.bytes - moved, 1);
		}
	}
	carrier.finish();
#else
	for (u32 r = 0; receives && r < g.ranks; r++) {
		Pulled p(a, live, r);
		if (p.moves) move_by_threads(c, p.from, p.to, p.bytes, a.unit);
	}
#endif
	meeting.end(false);
	let_next_start();
}

} // namespace collective
} // namespace weft
