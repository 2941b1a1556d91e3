// Package gpu runs collectives between the GPUs of one memory domain: each operation is one kernel a
// rank, or a few one after the other where an operand is larger than the slots.
//
// # Data flow
//
// A rank stores its data in slots in the windows of its peers, and finds theirs in its own. A vector of
// 16 bytes in a slot says itself that it is there, so no fence, no counter and no barrier between blocks
// is on the way (slots.cuh). Reductions add in rank order, in fp32 or wider, and round once (fold.cuh):
// the bits are those of the host's engine, on every rank, for every grid and algorithm. A thread looks at the
// slots of all ranks at once: looks that follow each other would add up. Two-shots and helpers look at one rank's
// after the other's: Looking in arrivals.cuh says why.
//
//	all_reduce_one_shot   every rank sends all to all, and reduces all
//	all_reduce_two_shot   every rank reduces a part, and sends the result to all
//	all_reduce_norm_*     the same by rows: a block has a row, and goes on to add a residual, normalise and
//	                      quantise it. After two shots each rank does so with all rows: it wants them with its
//	                      residual anyway, and to normalise a row costs less than to send it
//	reduce_scatter        every rank reduces its part, of one length or of many; a reduce is that of one rank
//	move                  all-gather, all-to-all, broadcast, gather, scatter
//	move_v                all-gather-v, all-to-all-v: counts of the host or of the GPU
//	all_gather_progress   an all-gather that raises words as chunks land, nearest rank first
//	reduce_scatter_ready  a reduce-scatter that reads chunks when words are raised
//	move_lines            all-gather and all-to-all of any bytes, by lines that arrive whole
//	barrier               words alone
//	message               messages between pairs of ranks: one kernel for all of a call's
//	helpers_broadcast     the root sends each of the others a share, which they send each other
//	helpers_reduce        the others reduce a share each, and send the root the results
//	direct_move           all-gather, all-to-all, broadcast, scatter into outputs in windows: nothing is staged
//	direct_reduce         all-reduce, reduce-scatter, reduce of inputs in windows, which threads read
//	bulk_reduce           the same by bulk copies, on few SMs: pull-push, pull
//	bulk_move             all-gather, all-to-all, gather of inputs in windows, by bulk copies: few-sm, direct
//	engine_copy           all-gather and all-to-all by copy engines, between two barriers
//	push_push             all-reduce by pushes of pieces, through staging memory of its own
//	multicast_move        all-gather and broadcast into outputs that one multicast address reaches
//	multicast_reduce      sums that the switch adds up, in an order of its own: all-reduce in one shot and in two,
//	                      reduce-scatter, reduce; they must be named
//	relaxed_ring          the same, rounded at every hop: its bits are its own, so it must be named
//
// An operation has a general form, for any operands and masks, and a plain one for a sum or a move of few
// aligned vectors, which takes as long as its instructions (plain.cuh). Both store the same in the same
// slots, so ranks need not agree on the form. In the general form a thread sends AHEAD vectors before it
// waits for its first, so that what it does with one takes place while others are on the way.
//
// # Memory
//
// The window of a rank has three turns of slots, all ones when empty, and a word a rank that says which
// operation that rank has begun. A turn belongs to an operation alone: operation e has turn e mod 3, and
// lays it out as its ranks need it. Local memory has the lane's state, and a count for each block with
// what the operation before left in its turn.
//
// Direct operations find the operands of peers in windows, at the places where this rank's lie: the caller
// says that a call is symmetric. Their blocks meet by words of their own, a word a block and rank, before
// they touch a peer's operand and after (direct.cuh). An operand of the root alone is never read or written
// by others, who do not know its place.
//
// Operations by multicast are direct ones of which a store reaches all outputs, or a load all inputs (multicast.cuh).
// Their ranks meet in the same way. No rank is masked: the host asks before it enqueues, and when a rank is masked
// graphs that know of the lane are stopped. What is left of an operand before and behind whole vectors goes as in
// direct operations.
//
// Pieces that are pushed have staging memory and counters of their own, half of the slots' size: what is
// left there is no mark of slots.
//
// Messages have rings of their own, for every pair of ranks in each direction: cells for short messages,
// chunks for long ones. They are laid out with the window, whose size all ranks agree on, since a message
// is no call of all ranks: together a quarter of the size of the staging memory beside it, 16 MiB at most
// (ringsFor).
//
// A user's algorithm has a lane of its own for each of its keys: own.go. Its kernels touch no turn, word or
// count of the group's lane, and the group's none of theirs.
//
// # Order
//
// These invariants hold between any two operations, of any kind, size and grid, in graphs or not:
//
//   - One count: every operation of the group raises the lane's epoch by one on every rank. A launch of
//     few blocks raises the counts of those that it does not have as well.
//   - A turn is all ones before the first word of its operation arrives. The operation clears what it
//     has read, if that is much; else the next one does, while its own data is on the way.
//   - No rank is two operations ahead of a peer that it sends to. Operations in which every rank hears
//     of every other give that by themselves; those that have a root say when they begin, and whatever
//     follows them looks at that before it sends.
//   - In move_v a sender waits for credit as well. All ranks go through rounds in the same order, sends before
//     waits, and all blocks of a launch are resident, so no ranks wait in a circle.
//   - In push_push a block has three places for the pieces of each other rank. Its warps send, reduce or collect, and
//     go on by counters of the block's likes: a place has been read when the fourth piece comes to it.
//   - A thread waits for data of its peers' threads of the same number only, and they sent it before they
//     waited for anything that comes later. So grids need no more than one block at a time. In
//     all_gather_progress the lower half of the blocks sends and waits for no data, and the upper half waits.
//
// Messages are no operations of the lane. They raise no count, use no turn and say nothing of operations, so
// ranks that a call does not name take no part. What stands above holds with any of them in between: it
// rests on what a rank's stream did before and on the words of operations alone, and a message adds to
// neither. Messages have an order of their own (message.cu):
//
//   - Each pair of ranks counts the messages, cells and chunks of each direction, on both sides, in local
//     memory. Both sides cut a message alike, so a cell has the same number on both, whatever calls, graphs
//     and grids the message is in.
//   - A cell, or chunk, is stored where that of a ring's length before stood, once that was read: told by the
//     receiver's next call of the pair, or in the same call behind a fence.
//   - A sender's call ends when its receiver has begun the last message: a rank that only sends stops when
//     its peer does not come, whatever the size.
//   - Every warp of the launch has one way to go, from one rank to another, and all warps are resident. So no
//     way waits for another, and batches may go in circles.
//
// # Room
//
// Kernels wait for peers, so all blocks of a launch are resident on every rank: the group has room for blocks of
// blockCost, each of which fills an SM. A launch has a thread for each vector. It has narrow blocks, on as many SMs
// as there are, until every SM that the group may fill has one, and wider ones beyond: many narrow blocks would be
// as fast, and keep wide ones of other handles, of which a GPU places each where an SM is free, off every SM.
// Every kernel of the library's has at most a block an SM; one of a user's takes room of its own if it has more.
//
// # Floor
//
// A launch, one load, a store and its way to the peer, one poll, and the sum: about 0.5 + 0.6 + 0.8 us.
// What an operation moves goes at the rate of stores to peers, 350 GB/s on a GPU of 2022, and not half
// of that may be lost to the GPU's own memory: loopback measures how much is. A link carries S bytes of a
// broadcast or a reduce with helpers, and (n-1) S of any other.
package gpu
