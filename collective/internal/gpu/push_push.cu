// All-reduce by pushes alone, for large operands of any place: links carry more when no rank reads over them.
// Ranks push each share of the vectors to its owner, in pieces, through staging memory. The owner reduces a piece
// in rank order and pushes the result to every output, where those lie in windows; else through staging memory again.
//
// A block has every gridDim-th piece of each share, on all ranks, and meets its likes alone. It has crews:
//
//	senders     send piece j of every share but this rank's, and say so: `sent`
//	reducers    await `sent` of all others, reduce piece j of this rank's share and push the result: `got`
//	collectors  await `got` of all others, and take piece j of the other shares from staging memory: `taken`
//
// Crews go through the pieces each at its own pace, so links are busy while one of them waits or fences.
// A counter is the operation's number, in the upper bits, and pieces. So it only grows, and needs no reset.
//
// Staging memory has DEPTH places for each block and pair of ranks, which pieces use in turn.
// Invariant: a place has been read when a rank writes into it. The first DEPTH pieces come when all ranks have begun
// the operation, and thus ended the one before. A sender of piece j has awaited `got` of piece j-DEPTH, whose row the
// owner has then read. A reducer of piece j has awaited `taken` of piece j-DEPTH, likewise. Senders wait for reducers
// of earlier pieces alone, reducers for senders of the same piece and collectors of earlier ones, collectors for
// reducers of the same piece. So no ranks wait in a circle.
//
// An owner reduces a piece when every rank has sent it, and thus read its input of it. So the operation may be in
// place.
#include "push.cuh"

namespace weft {

namespace collective {

__device__ __forceinline__ bool send_pieces(const Pusher &p) {
	for (u32 j = 0; j < p.turns; j++) {
		if (j >= DEPTH && !p.await(p.a.got, p.live.others, j + 1 - DEPTH)) return false;
		p.send(j);
		p.tell(p.a.sent, j + 1, true);
	}
	return true;
}

__device__ __forceinline__ bool reduce_pieces(const Pusher &p) {
	for (u32 j = 0; j < p.turns; j++) {
		bool there = p.reached(p.a.sent, p.live.others, j + 1);
		if (!p.direct && j >= DEPTH) there &= p.reached(p.a.taken, p.live.others, j + 1 - DEPTH);
		if (!p.crew.all(there)) return false;
		p.reduce(j);
		p.tell(p.a.got, j + 1, !p.direct); // results in outputs are seen at the operation's end
	}
	return true;
}

__device__ __forceinline__ bool collect_pieces(const Pusher &p) {
	for (u32 j = 0; j < p.turns; j++) {
		if (!p.await(p.a.got, p.live.others, j + 1)) return false;
		p.collect(j);
		p.tell(p.a.taken, j + 1, false);
	}
	return true;
}

__global__ void __launch_bounds__(PUSH_THREADS, 1) push_push(const __grid_constant__ Push a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Meeting meeting(g, a.lane, live, a.direct, c.o.epoch);
	if (!meeting.begin(c)) return;
	bool direct = a.outs[g.rank] != nullptr;
	u32 senders = direct ? PUSH_THREADS / 2 : PUSH_THREADS / 4, collectors = direct ? 0 : PUSH_THREADS / 4;
	u32 reducers = PUSH_THREADS - senders - collectors;
	bool done;
	if (threadIdx.x < senders) {
		done = send_pieces(Pusher(a, live, Crew(1, 0, senders), c.o.epoch));
	} else if (threadIdx.x < senders + reducers) {
		done = reduce_pieces(Pusher(a, live, Crew(2, senders, reducers), c.o.epoch));
	} else {
		done = collect_pieces(Pusher(a, live, Crew(3, senders + reducers, collectors), c.o.epoch));
	}
	if (!__syncthreads_and(done)) return;
	if (direct) meeting.end();
	let_next_start();
}

} // namespace collective
} // namespace weft
