// What a launch gets, and what its blocks' programs consist of: doc.go has their layout.
#pragma once
#include "fold.cuh"
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

constexpr u32 FLIGHT = 4;		  // vectors of a thread that are on their way together
constexpr u32 TRIES = 64;		  // a thread looks so often at packets, or a signal, before it waits by the clock
constexpr u32 WARP = 0xFFFFFFFFu; // all lanes

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

} // namespace plan
} // namespace weft
