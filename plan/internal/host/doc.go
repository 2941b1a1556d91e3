// Package host runs plans on ranks that share memory.
//
// # Data flow
//
// A rank's blocks take turns on the goroutine that calls: each runs its operations until one must wait, and then the
// next one goes on. So barriers, semaphores and nops are numbers of the rank, a rank takes one processor however many
// blocks it has, and ranks wait for each other only. When no block can go on, the rank waits for all of them at once.
//
//	round    ranks compare the launch, and say where their operands lie (package engine/host)
//	scratch  grows, or becomes zeros, if it must; then ranks meet once more
//	stage    operands that peers reach and that lie in no window are copied; then ranks meet once more
//	blocks   run
//	stage    results are copied back
//
// An operation of a port is done by the rank itself when it is pushed: a transfer has read its source and reached
// its destination before the next operation, and there is nothing to flush. Operations of switches are loops over the
// members, in their order.
//
// # Memory
//
// A plan has a window with a counter for each channel end of the rank, which the peer's end writes. They count signals
// of all launches. Scratch is another window, and grows to the largest message.
//
// # Order
//
// A signal publishes a counter, which releases all that the rank has written; a wait acquires it. A packet is a store
// of its data and its flag together. The round in which a launch begins orders all that any rank did in the launch
// before: so launches of different plans and sizes follow each other at will, and a second half of scratch is not
// needed.
//
// The flag of a launch is the number of its round. Where the number's upper half changes, which the next generation
// of the communicator and four thousand million rounds do, scratch is allocated anew, and is zeros.
//
// # Floor
//
// A launch costs the round beside what the plan does: one trip of a cache line each way.
package host
