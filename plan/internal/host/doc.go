// Package host runs plans on ranks that share memory, and between such on several hosts.
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
// Where each block ends with signals and waits by which every rank hears from all others, these are left out. Each rank
// says once that it has left the launch, and waits until all have: one line that the others read, and not one for each.
//
// The flag of a launch is the number of its round. Where the number's upper half changes, which the next generation
// of the communicator and four thousand million rounds do, scratch is allocated anew, and is zeros.
//
// # Between hosts
//
// A port that leads to a rank of another host goes over package fabric, by the connection that rounds of several hosts
// have; rounds, windows and waits are those of package engine/host. An operation of ports is divided into pushes. What
// the fabric does not take stops the block, not the rank: so a peer that is silent stops nothing but what waits for it.
//
//	transfer   a write from a window of this rank into one of the peer's
//	signal     the fabric's, of a number that the channel has between the two ranks; it comes behind all writes
//	packets    a write into the peer's landing, a line that says which packets they are, and a signal
//	flush      waits until the sources have left
//
// The fabric may deliver bytes in pieces, and in any order. Packets are read without a signal, so they do not land
// where they are read: who waits takes lines of signals that have come, and writes these packets by whole stores.
// A landing is as long as scratch, and has the same places; each transfer of a launch has a line of its own. So nothing
// waits for room.
//
// Invariant: no launch leaves anything underway. It ends when all that this rank pushed has left it and all packets
// for it have come; other data has come before the signals for which it waited. So signals that were consumed are as
// many as have come, and all plans of an engine share their numbers. A plan that leaves signals behind is refused.
//
// After a failure that does not hold. Then the round that opens the first launch of a generation says that all that
// was written before has landed, each rank takes what has come as consumed, and one more round says that all have.
// Launches meet once more where they have made a window, too: an allocation may fail on some ranks alone, and a write
// into a window that a rank does not have would cost the connection.
//
// Operands that ports read or write are used where they lie in windows which all ranks reach, and are copied to the
// stage otherwise. Such windows stay open until the launch has ended on all ranks, and after a failure until all have
// gone on.
//
// # Floor
//
// A launch costs the round beside what the plan does: one trip of a cache line each way. Between hosts that is one way
// through the network, and at the end the completion of the last write.
package host
