// A user's algorithm: the one parameter that its kernel has, and the call under way. Such a kernel runs
// beside the library's own in a group of collectives, which launches it:
//
//	#include "weft.cuh"
//	using namespace weft;
//
//	extern "C" __global__ void mine(const __grid_constant__ AlgorithmArgs a) {
//		Call c(a);
//		if (!c.begun) return;
//		... c.to(peer).put(...), c.signal(peer), c.wait_for(peer), c.barrier() ...
//		c.end();
//	}
//
// All ranks launch it for the same call, with as many blocks and threads. A thread that reached
// c.begun reaches c.end(), whatever it waited for in vain: the end counts the operation, and the next
// call of a rank whose kernel did not count it would take old data for new.
#pragma once
#include "channel.cuh"
#include "ops.cuh"

namespace weft {

constexpr u32 VALUES = 8; // that a launch hook may set, and the most extras. Go: device.Values

// AlgorithmArgs are the parameter of the kernel. Go: device.AlgorithmArgs.
struct AlgorithmArgs {
	State *state;
	const char *in; // this rank's operands, aligned as their elements are; null where it has none
	char *out;
	const char *scalar;		// of a pre-multiplied sum, in this GPU's memory; or null
	u64 scalar_bits;		// the scalar itself otherwise
	u64 count, bytes;		// of a part: elements and bytes
	u64 scratch;			// offset in the window of memory that all ranks reach
	u64 scratch_bytes;		// of each rank
	char *local;			// memory of this GPU alone
	u64 local_bytes;		//
	u64 signals;			// offset in the window of what Call signals by
	u64 values[VALUES];		// the launch hook's, or zeros
	char *extras[VALUES];	// in the order in which the algorithm names them
	u32 collective, dtype;	// the numbers of package collective and of weft.DType
	u32 op, root;			// the number of weft.Op
	char *ins[72];			// every rank's operands, of a symmetric call that has them in windows; else nulls
	char *outs[72];			// (Go: device.MaxRanks)
	u32 counts, record;		// blocks that a launch has at most; the operation's number in records
	Group group;
};

// The numbers of dtype; those of op are in ops.cuh.
enum {
	BFLOAT16 = 1, FLOAT16, FLOAT32, FLOAT64, FLOAT8_E4M3, FLOAT8_E5M2, UE8M0, INT8, INT16, INT32, INT64, UINT8, UINT16,
	UINT32, UINT64, BOOL
};

constexpr u32 PHASES = 8; // of an operation, in each of which a block may signal each peer once

// Call is the call under way, as a thread knows it. It opens the operation: the lane's epoch is read here, and
// raised by end.
struct Call {
	const AlgorithmArgs &args;
	Operation operation;
	bool begun; // false: an earlier wait ended in vain, and nothing runs until the host has begun anew
	u64 epoch;	// the operation's number, the same on every rank: 1 for the first
	Wait wait;	// of all waits of this thread: with deadline, abort word and the name of the peer that did not come
	RankSet peers; // the ranks that take part, but for this one. Never touch a window of another
	u32 live;	   // how many take part, with this one

	__device__ __forceinline__ Call(const AlgorithmArgs &a)
		: args(a), begun(open()), epoch(operation.epoch), wait(a.group, a.state, a.record, operation.epoch) {
		RankSet all = all_ranks(a.group) & ~operation.mask;
		peers = all & ~RankSet::one(a.group.rank);
		live = all.count();
	}

	__device__ __forceinline__ u32 rank() const { return args.group.rank; }
	__device__ __forceinline__ u32 ranks() const { return args.group.ranks; }

	// others goes through the peers, from the one after this rank on:
	// for (Round r = c.others(); r.more();) { u32 peer = r.next(); ... }
	__device__ __forceinline__ Round others() const { return Round(peers, rank(), ranks()); }

	// to is the way to a peer. Offsets are those of the window: args.scratch and what follows.
	__device__ __forceinline__ Channel to(u32 peer) const { return Channel(args.group, peer); }

	// turn is the offset of the operation's half of the scratch memory, of 2: it is written again two operations
	// later. That is safe where every rank receives from every other, or signals it, in each operation.
	__device__ __forceinline__ u64 turn() const { return args.scratch + (epoch & 1) * turn_bytes(); }
	__device__ __forceinline__ u64 turn_bytes() const { return args.scratch_bytes / 2 & ~15ull; }

	// signal tells the block of this number of a peer that the block has come to a phase of the operation,
	// each once and in ascending order. A block that waits for it sees all that the block put before. All
	// threads of the block call it.
	__device__ __forceinline__ void signal(u32 peer, u32 phase = 0) const {
		__syncthreads();
		WEFT_TRACED(if (threadIdx.x == 0 && phase < 2) operation.trace.signalled(phase, peer);)
		if (threadIdx.x == 0) raise(peer, phase);
	}

	// wait_for returns when the block of this number of a peer has come to the phase, or a later one. False: the
	// wait ended without it, on every thread of the block. All threads of the block call it.
	__device__ __forceinline__ bool wait_for(u32 peer, u32 phase = 0) {
		if (threadIdx.x == 0) await(peer, phase);
		return __syncthreads_or(wait.over) == 0;
	}

	// barrier signals all peers, and waits for all: what blocks of this number put before is seen behind it.
	// False: the wait ended without one of them, on every thread of the block. All threads of the block
	// call it.
	__device__ __forceinline__ bool barrier(u32 phase = 0) {
		WEFT_TRACED(if (threadIdx.x == 0 && phase < 2) operation.trace.signalled(phase);)
		__syncthreads();
		for (u32 r = threadIdx.x; r < ranks(); r += blockDim.x)
			if (holds(peers, r)) raise(r, phase);
		for (u32 r = threadIdx.x; r < ranks(); r += blockDim.x)
			if (holds(peers, r)) await(r, phase);
		return __syncthreads_or(wait.over) == 0;
	}

	// fail ends the operation, and with it the communicator's work until ranks were masked: this rank's error
	// says that it differs from a peer's, with two numbers. It is for kernels that find their data wrong.
	__device__ __forceinline__ void fail(u32 peer, u64 expected, u64 seen) {
		wait.give_up(peer, CAUSE_MISMATCH, expected, seen);
	}

	// end is the last thing that every thread does. It counts the operation for all blocks that a launch may have, so
	// that the next one may have more.
	__device__ __forceinline__ void end() const {
		__syncthreads(); // all have read the count
		Count next = {epoch, operation.turn == 2 ? 0 : operation.turn + 1, 0};
		for (u32 b = blockIdx.x + threadIdx.x * gridDim.x; b < args.counts; b += blockDim.x * gridDim.x)
			*count_of(args.state, b) = next;
		WEFT_TRACED(operation.trace.first_at(SITE_END);)
	}

private:
	__device__ __forceinline__ bool open() {
		wait_for_previous();
		return operation.begin(args.group, args.state, 0, args.record);
	}

	// Words of 8 bytes do not wrap, so a phase of an old operation is never taken for one to come.
	__device__ __forceinline__ u64 mark_of(u32 phase) const { return epoch * PHASES + phase; }
	__device__ __forceinline__ u64 signal_at(u32 from) const {
		return args.signals + ((u64)from * args.counts + blockIdx.x) * 8;
	}
	__device__ __forceinline__ void raise(u32 peer, u32 phase) const {
		fence_sys();
		store_relaxed_sys_u64(args.group.window[peer] + signal_at(rank()), mark_of(phase));
	}
	__device__ __forceinline__ void await(u32 peer, u32 phase) {
		const char *word = operation.own + signal_at(peer);
		u64 v = load_acquire_sys_u64(word);
		while (v < mark_of(phase) && !wait.over && wait.more(peer, mark_of(phase), v)) v = load_acquire_sys_u64(word);
		WEFT_TRACED(if (phase < 2 && !wait.over) operation.trace.arrived(peer, phase);)
	}
};

} // namespace weft
