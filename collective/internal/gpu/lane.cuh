// What all kernels of collectives have: the Lane, the first of their arguments, and the constants that a program is
// compiled with.
#pragma once
#include "flags.cuh"

#ifndef WEFT_ENCODING
#define WEFT_ENCODING 1 // 1 words, 2 doubles, 3 pairs
#endif
#ifndef WEFT_RANKS
#define WEFT_RANKS 0
#endif
#ifndef WEFT_EXACT
#define WEFT_EXACT 0 // 1: what arrives has the bits of what was sent
#endif

namespace weft {

constexpr u32 RANKS = WEFT_RANKS; // of the communicator, or 0: any number

// THREADS are those of a block, at most: as many as have registers on an SM. Go: threads.
constexpr u32 THREADS = RANKS == 1 || RANKS == 2 ? 768 : 512;

// AHEAD is how many vectors a thread has sent when it waits for its first: what it does with those that
// arrive takes place while others are on the way.
#ifndef WEFT_AHEAD
#define WEFT_AHEAD 3
#endif
constexpr u32 AHEAD = WEFT_AHEAD;

// Lane is what kernels of all collectives have. Go: lane.
struct Lane {
	State *state;
	char *own;			   // this rank's part of the window
	u64 slots, turn_bytes; // in the window
	u64 cleared;		   // in the window: where the slots are that are made ones again: slots, but for loopback
	u64 sides;			   // in the window: a side word for each 16 bytes of slots
	u64 heard;			   // in the window: [ranks] words of 8 bytes: the last operation that each said it began
	u32 counts;			   // of blocks: those beyond the launch's count with it
	u32 clear;			   // the operation clears what it has read; else the next does
	u32 op;				   // the operation's number, for records
	u32 plain;			   // the operation has its plain form: plain.cuh
};

} // namespace weft
