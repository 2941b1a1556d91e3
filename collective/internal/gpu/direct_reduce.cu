// All-reduce and reduce-scatter of inputs that lie in windows: every rank reads its part of all inputs,
// reduces them in rank order, and stores the result in its own output, or in all outputs, which lie in
// windows then.
//
// A thread reads an element of all inputs before it writes it anywhere, and no other thread of any rank
// does either. So an all-reduce may be in place.
#include "direct.cuh"
#include "fold.cuh"

namespace weft {

// Go: directReduceArgs.
struct DirectReduce {
	Lane lane;
	Direct direct;
	How how;
	u64 bytes;		// of an all-reduce, the whole; else of a part
	u64 part_step;	// of a reduce-scatter: from a rank's part of an input to the next one's; 0: an all-reduce
	u32 unit, zero; // what all addresses are multiples of
	char *out;		// of a reduce-scatter
	char *ins[MOST_RANKS];
	char *outs[MOST_RANKS]; // of an all-reduce
	Group group;
};

static_assert(sizeof(DirectReduce) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace collective {

__global__ void __launch_bounds__(THREADS, RESIDENT) direct_reduce(const __grid_constant__ DirectReduce a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Meeting meeting(g, a.lane, live, a.direct, c.o.epoch);
	meeting.say_ready();
	c.clear(a.lane);
	c.note(a.lane, 0, true);
	if (!meeting.await(meeting.ready)) return;
	u32 ranks = RANKS != 0 ? RANKS : g.ranks;
	u32 first = 0, vectors = (u32)((a.bytes + 15) / 16), end = vectors;
	if (a.part_step == 0) { // this rank's share
		Shares shares(vectors, live);
		first = shares.first(live.own), end = first + shares.size(live.own);
	}
	auto at = [&](char *p) { return Part(Operand{p, a.bytes, a.unit, 0}); };
	for (u32 i = first + c.at; i < end; i += c.step) {
		Fold fold(a.how, live.count);
		bool begun = false;
		for (u32 r0 = 0; r0 < ranks; r0 += FLIGHT) {
			uint4 v[FLIGHT];
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (r0 + j < ranks && holds(live.set, r0 + j)) v[j] = at(a.ins[r0 + j] + g.rank * a.part_step).load(i);
			}
			if (RANKS != 0 && live.all) {
				fold.rows(v);
				break;
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (r0 + j >= ranks || !holds(live.set, r0 + j)) continue;
				if (begun) {
					fold.take(v[j]);
				} else {
					fold.start(v[j]);
				}
				begun = true;
			}
		}
		uint4 sum = fold.result();
		if (a.part_step != 0) {
			at(a.out).store(i, sum);
			continue;
		}
#pragma unroll
		for (u32 k = 0; k < (RANKS != 0 ? RANKS : ranks); k++) {
			u32 r = (g.rank + k) % ranks;
			if (holds(live.set, r)) at(a.outs[r]).store(i, sum);
		}
	}
	meeting.end();
	let_next_start();
}

} // namespace collective
} // namespace weft
