// Slots: how small and middling operands travel. A rank stores its vectors of 16 bytes in slots at its
// peers. A vector in a slot says itself that it is there, so nothing needs a fence or a counter.
//
//	lane.cuh       the arguments that all kernels have, and the constants of a program
//	encodings.cuh  how a vector stands in a slot, and how a receiver sees that it is there
//	operands.cuh   the caller's memory as vectors
//	peers.cuh      the live ranks, their windows, and a vector for each of them
//	operation.cuh  the operation under way: it begins, clears slots, and counts itself
//	arrivals.cuh   a thread's looks at its slots, and what it takes from them
//
// The window has three turns of slots, which the lane's operations use in turn. All are ones, which is "empty", in the
// beginning. Slots of a turn stand by source, then by vector:
//
//	turn 0   | rank 0: slot_bytes | rank 1: slot_bytes | ...     slot_bytes depend on the operation
//	turn 1   | ...
//
// An operation that ends leaves its turn empty again, or notes how much of it is not, and the next operation
// empties that.
//
// Ordering. Invariant: a turn is empty when the first peer stores into it. A peer stores into the turn of
// operation e in operation e+3 for the first time, or e-3. It began e+3 after it ended e+2. If e+2 was
// full (every rank had a word of every other), it had a word of this rank's there, which this rank sent after its
// operation e+1 ended, and that is the one that cleared the turn. If it was not full, the peer waits until this rank
// has begun e+2: await_begun.
#pragma once
#include "arrivals.cuh"
