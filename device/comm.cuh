// A communicator as a kernel sees it, and how the operations of a lane are counted.
//
// A lane is a sequence of operations that all ranks make in the same order. An operation is one
// kernel, or two if it is sent and received apart, always with the same number of blocks. Each block
// counts the lane's operations for itself: it reads its count at the start and raises it at the end.
// So a kernel may be captured once and replayed any number of times, and no block waits for another
// block of its own grid.
#pragma once
#include "ranks.cuh"
#include "trace.cuh"

namespace weft {

// Record is the record of a wait that timed out, in host memory. Go: device.Record.
struct Record {
	u32 state, op; // op: the number of the operation, which the lane's owner names
	u64 epoch;
	int rank, peer;
	u32 cause, lane; // lane: Group.lane of the kernel that waited
	u64 expected, seen;
	u64 reserved[2];
};

enum { RECORD_EMPTY = 0, RECORD_WRITTEN = 1 };
enum { CAUSE_TIMEOUT = 1, CAUSE_ABORT = 2, CAUSE_STOPPED = 3, CAUSE_MISMATCH = 4 };

// Group is a communicator as a kernel sees it. Its windows come last: a struct of arguments that ends
// with a Group differs between domains in its length alone. Go: device.Group.
struct Group {
	const u64 *abort; // waits end when it is not 0
	Record *record;
	// In this GPU's memory: 0 until a wait writes the record. Atomic operations on host memory do not
	// work everywhere.
	u32 *claim;
	u64 *waits; // [ranks]: for how many nanoseconds each rank was waited for; or null
	u32 ranks, rank;
	u32 lane, zero;			 // lane: its number, for records
	char *window[MAX_RANKS]; // each rank's part of one window, at an address that this GPU reaches
};

// WIDER is by how many bytes arguments that end with a Group are longer than the host's, which have room
// for 72 ranks (Go: device.MaxRanks).
constexpr u64 WIDER = ((u64)MAX_RANKS - 72) * sizeof(char *); // modulo 2^64

// State is the state of a lane, which its operations share, in this GPU's memory. Counts follow it:
// one a block, for each lane. The host writes it when nothing runs. Go: device.State.
struct State {
	u64 masked[2]; // the ranks that are left out: mask
	u64 timeout;   // of a wait, in nanoseconds
	u32 stopped;   // a wait timed out: nothing runs until the host restarts the lane
	u32 trace;	   // 0, or how the ring of a traced lane is laid out: trace.cuh

	__device__ __forceinline__ RankSet mask() const {
		RankSet s;
#pragma unroll
		for (u32 i = 0; i < RANK_WORDS; i++) s.word[i] = masked[i];
		return s;
	}
};

// Count is a block's counters. Go: device.Count.
struct Count {
	u64 epoch; // operations that have ended
	u32 turn;  // epoch modulo 3
	u32 left;  // what the last of them left to the next: the owner's
};

__device__ __forceinline__ Count *count_of(State *s, u32 block) { return (Count *)(s + 1) + block; }

// turn_before is the turn of the operation before that of a turn.
__device__ __forceinline__ u32 turn_before(u32 turn) { return turn == 0 ? 2 : turn - 1; }

// report leaves a record, if there is none yet.
__device__ __forceinline__ void report(const Group &g, u32 op, u64 epoch, u32 peer, u32 cause, u64 expected, u64 seen) {
	Record *r = g.record;
	if (atomic_cas_gpu4(g.claim, 0, 1) != 0) return;
	r->op = op;
	r->epoch = epoch;
	r->rank = (int)g.rank;
	r->peer = (int)peer;
	r->cause = cause;
	r->lane = g.lane;
	r->expected = expected;
	r->seen = seen;
	store_release_sys4(&r->state, RECORD_WRITTEN);
}

// refuse replaces the work of an operation when the State is stopped. So a replay is reported too
// after the failure itself is over.
__device__ __forceinline__ void refuse(const Group &g, u32 op, u64 epoch) {
	if (blockIdx.x == 0 && threadIdx.x == 0) report(g, op, epoch, g.rank, CAUSE_STOPPED, 0, 0);
}

// leave is the last thing that all threads of a block do. It counts the operation, if the operation
// ends here. first is the lane's first Count.
__device__ __forceinline__ void leave(State *s, u64 epoch, u32 turn, bool ends, u32 first = 0) {
	__syncthreads(); // all have read the count
	if (threadIdx.x == 0 && ends) *count_of(s, first + blockIdx.x) = {epoch + 1, turn == 2 ? 0 : turn + 1, 0};
}

// Operation is the operation that is under way, as a thread knows it.
struct Operation {
	RankSet mask;
	u64 epoch; // its number: 1 for the lane's first
	u32 turn;  // of three
	char *own; // this rank's part of the window
	WEFT_TRACED(Trace trace; bool received = false;) // received: the operation has begun in a kernel that sent

	// begin reads the values that every thread needs. False: the State is stopped, and the
	// operation is refused. first is the lane's first Count, op the operation's number for records.
	__device__ __forceinline__ bool begin(const Group &g, State *s, u32 first, u32 op) {
		Count count = *count_of(s, first + blockIdx.x);
		u32 stopped = s->stopped;
		mask = s->mask();
		epoch = count.epoch + 1;
		turn = count.turn;
		own = g.window[g.rank];
		WEFT_TRACED(trace = Trace(g, s, epoch, first);)
		WEFT_TRACED(if (stopped == 0 && !received && threadIdx.x == 0) trace.begin(op);)
		if (stopped != 0) refuse(g, op, epoch);
		return stopped == 0;
	}

	// end is leave of this operation.
	__device__ __forceinline__ void end(State *s, bool ends = true, u32 first = 0) const {
		leave(s, epoch - 1, turn, ends, first);
		WEFT_TRACED(if (ends) trace.first_at(SITE_END);)
	}
};

// touch reads a kernel's arguments, so that they are near when they are needed.
__device__ __forceinline__ void touch(const void *arguments, u32 bytes) {
	u32 sum = 0;
#pragma unroll
	for (u32 i = 0; i < bytes; i += 64) sum += *(const u32 *)((const char *)arguments + i);
	asm volatile("" ::"r"(sum));
}

__device__ __forceinline__ RankSet all_ranks(const Group &g) { return RankSet::first_ranks(g.ranks); }

// next_rank is the i-th rank from the one after this rank on. It goes round.
__device__ __forceinline__ u32 next_rank(const Group &g, u32 i) {
	u32 r = g.rank + 1 + i;
	return r >= g.ranks ? r - g.ranks : r;
}

// Windows holds all ranks' windows in the registers of a warp. A read of a launch's arguments at an
// index that is not a constant takes a few hundred cycles.
struct Windows {
	u64 line[RANK_LINES]; // of the ranks lane, 32 + lane, ...

	__device__ __forceinline__ Windows(const Group &g) {
		u32 lane = threadIdx.x & 31;
#pragma unroll
		for (u32 i = 0; i < RANK_LINES; i++) line[i] = 32 * i + lane < g.ranks ? (u64)g.window[32 * i + lane] : 0;
	}

	// of gives a rank's window. All lanes of the warp ask for the same rank.
	__device__ __forceinline__ char *of(u32 rank) const {
		u64 w = line[RANK_LINES - 1];
#pragma unroll
		for (u32 i = RANK_LINES - 1; i-- > 0;) w = rank < 32 * i + 32 ? line[i] : w;
		return (char *)__shfl_sync(0xFFFFFFFFu, w, rank & 31);
	}

	// each gives every lane of the warp the window of a rank of its own choice.
	__device__ __forceinline__ char *each(u32 rank) const {
		u64 found[RANK_LINES];
#pragma unroll
		for (u32 i = 0; i < RANK_LINES; i++) found[i] = __shfl_sync(0xFFFFFFFFu, line[i], rank & 31);
		u64 w = found[RANK_LINES - 1];
#pragma unroll
		for (u32 i = RANK_LINES - 1; i-- > 0;) w = rank < 32 * i + 32 ? found[i] : w;
		return (char *)w;
	}
};

} // namespace weft
