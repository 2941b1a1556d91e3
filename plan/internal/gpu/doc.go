// Package gpu runs communication plans on ranks that have GPUs: a launch of a plan is one kernel, whose blocks are
// those of the plan.
//
// # Data flow
//
// The kernel is the same for all plans: it reads what its blocks do. There are two for each type of elements, for plans
// with packets and for those without, and plans that reduce nothing share two. [Engine.Load] encodes a rank's part of
// a plan (program.go) and uploads it. Nothing in it depends on a launch: chunks stand there by number, pipelines as
// loops. The size of a chunk and the addresses of operands are arguments of the kernel, which makes addresses of the
// numbers before its first operation, one a thread. So a plan runs at any size, in graphs as outside, without another
// upload.
//
//	spec.File -> program (bytes, the same for all sizes) -> GPU
//	chunk, operands -> arguments ---------------------------^
//
// A block copies its program into shared memory, if it has at most 32 KiB, and decodes operations there. Warps do not
// wait for each other between operations, except where the plan says so.
//
// A program is run by two loops, which do the same. Quick comes first. It has what takes few instructions: where there
// are packets, operations of which a thread has one vector at most; else sums and copies of any size, signals, waits
// and nops. It keeps all in registers, for memory of a thread's own is as slow as any behind an acquire. Block has
// everything, and takes over where Quick ends: at another operation, at packets that do not come soon, and where
// operands are not aligned, or chunks have another size than in the launch before. It calls functions with registers
// of their own, and goes on to the end.
//
// execute.cu draws how a launch goes through the two, which are quick.cuh and block.cuh.
//
// All that does not depend on the launch is done before the launch before has ended: the program's way into shared
// memory, addresses, and what a block begins with. If that is pairs of at most four sources that have one place in all
// launches, they are read together with the number of the launch.
//
// # The program of a block
//
//	entries   8 bytes each: buffer, rank and chunk of an operand. First come two for each end of a channel that
//	          the block uses: where its signals go, and where the peer's arrive
//	peers     8 bytes for each end: its peer, whether several blocks use it, and its number
//	operations  16 bytes each, and what their kind adds, in multiples of 16 bytes
//
// An operation of the file becomes one of few kinds: copies of pairs, a fold of sources into sinks, signals, waits,
// barriers, semaphores and loops. Sources of a fold are packets or plain, and so are its sinks, so that kind serves
// every fused operation. Neighbours that unpack packets are one operation. Where no other block writes a plain
// source, it is read while packets are on the way.
//
// Signals and waits have a bit for each end that the block uses, and the thread of an end's number serves it: it alone
// touches the counts of that end.
//
// A block runs what ports do itself: all threads copy, and what is pushed behind a transfer goes when all have done so.
// Before a transfer they meet, if one of them may have waited: the file needs no nop there, for one thread pushes. That
// is one of the orders in which a port may work. Operations of switches are loops over the members in rank order.
//
// Where windows have multicast addresses, an operation of a switch that has all ranks stores to them at once, and has
// the switch add up floats (switch.cuh): only where its operands lie at one place on all ranks, and not in an engine
// that is exact, for a switch has an order of its own. Packets go member by member: such a store may come in halves.
//
// # Memory
//
// A plan has a lane of its own: its window and local memory, and a number of the launch that each block counts in this
// GPU's memory. So a captured launch may be replayed, among others, in graphs of any size.
//
//	window  a word for each end: the signals that came there. A word for each rank: its last meeting.
//	        Scratch: plain data and packets, twice if the plan has two halves. Staged operands.
//	local   for each block the size of the last launch's chunks and, for each end, the signals sent and awaited;
//	        barriers, semaphores
//
// Scratch is made for the largest chunk so far. A launch that needs more gets a lane of its own, half as large
// again at least, which serves all that follow; the one before stays for graphs that know it. Packets and plain data
// have memory of their own, for a plan that runs at two sizes could find flags in old data. Only where a plan
// lets them lie in the same bytes, which the verifier calls an error, they do so here.
//
// Packets are those of protocol LL: each 4 bytes of data with a flag of 4, the launch's number modulo 2^32 - 1, and 1.
// A thread moves four together. The packet types LL8 and LL16 have the same bytes, so both run here in one form.
//
// # Between hosts
//
// A port that leads to another host is a channel of package port (streams.go, far.cuh). What a block pushes to a rank
// there is a stream, and has a channel: plans of an engine share these. Data goes through pinned memory, in which each
// push has a place in the outbox of this rank and in the inbox of the other.
//
//	block     copies to the outbox | pushes a trigger: put, and signal behind it
//	proxy     writes to the peer's inbox, and signals
//	landing   a block of the peer's launch: waits for the signal, stores what has come, raises the end's word
//
// A landing block has a program, which stands for the stream's: so what waits for signals or packets does so as on one
// host. Packets cross as data, and become packets where they land. Puts without a signal of the plan land with the next
// one, or with one of their own at the end of a window or of the block.
//
// Invariant: no launch leaves anything underway. It ends when all that was pushed has left, and all that was sent has
// landed. A block pushes into a stream when the landing block has said that it has begun, which is in the same launch:
// so an inbox needs no second half, whatever the size of the launch before. Ranks that meet because of that size are
// those of a host.
//
// While blocks of the plan are in their programs, a landing block waits without end: what it waits for may depend on
// them, and their waits say who is late. From then on it has the deadline, as all waits. In each generation of the
// communicator all channels are made anew, so nothing is taken for what was sent before.
//
// # Operands of peers
//
// A plan may read and write inputs and outputs of other ranks. These lie in windows, at the same place on every
// rank, and are reached there; or in no window on any rank, and the engine copies them to the lane's window before the
// launch and from it after. An operand that some ranks do not have is always copied, for those know no place of it.
// Ranks compare where operands lie the first time that they lie there.
//
// # Order
//
//   - A signal is a release at system scope by the thread that counts it, and a wait acquires. What other threads of
//     the block did before a nop is before it, for nops are barriers of the block. An end's word has one
//     writer: a count that only grows, or, where several blocks signal, an atomic add. A relaxed signal is relaxed only
//     if the block has stored nothing at other ranks since the last other one.
//   - A packet is whole in each 8 bytes that are stored together, so its flag says that its data is there.
//   - Barriers of blocks and semaphores fence at the scope of the GPU on both sides, and a signal behind
//     one is cumulative.
//   - What the verifier knows of launches that follow each other holds for launches of one size. Where the size
//     changes, all ranks tell each other that they have begun, before any of them touches scratch: then
//     all have ended the launch before.
//   - With two halves, those of even launches are the second: they lie where the capacity says, and not
//     the message, so halves of launches of two sizes do not overlap.
//   - Before the launch before has ended, a launch reads nothing but its program and arguments, and writes nothing but
//     shared memory. A block counts a launch when all its threads know the number, for the next launch reads the
//     count when this one has ended.
//   - A launch has at most 512 threads a block, and fewer for small messages, whatever the plan says: vector u of an
//     operation belongs to thread u modulo their number, as the verifier assumes of any number.
//
// # Failure
//
// Every wait ends as those of package device do. It names the plan, the rank, the block and the operation by a number
// that the program has for each, and the peer: of packets the rank that sends them. Waits for blocks of the own
// rank last a quarter longer than waits for peers, so that the error names who is late. Blocks of a plan wait
// for each other, so all are resident: room is taken for a block on each multiprocessor, which plans of an
// engine share, for they take turns. A launch that a rank refuses was not made there, and its peers wait for
// it until the deadline.
//
// A failure may find some ranks with memory or a kernel that others have yet to make. In the first launch of a
// generation ranks compare what they have, and give up what not all have.
//
// The blocks of the next kernel in the stream come while a launch runs, and wait for its end: that saves the time that
// a start takes. They must take nothing that blocks of any rank need to become resident, for the launch may wait for
// those. So a launch lets them come at its beginning only where its own blocks have a second room, of a quarter of the
// GPU at most: then the next kernel finds the shared one empty. Else it does so when no thread waits any more. The
// third launch comes no earlier than the first has ended.
//
// The second room is taken last, and leaves half of what is free: whoever needs room for blocks that wait comes first.
//
// # Floor
//
// The end of the launch before, a load of the launch's number and of what is sent first, a barrier of the block, and
// then what the operations are: of a packet plan of 1 KiB a store, the hop, a poll and a store for each step. Each
// instruction counts, for a warp alone takes four cycles or more for one that needs the one before.
package gpu
