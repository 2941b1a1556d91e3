// Package synthesis makes plans for a topology: ranks and the links between them. A plan that it makes sends over these
// links alone, the verifier has passed it, and executors run it. Package cost says what a plan takes, and what none
// beats.
//
// # How
//
// A message is divided into chunks. Each chunk travels along a tree of links: from its root to all ranks, or from all
// ranks to its root, added up on the way, or both, for an all-reduce. What one rank wants from one other takes a path.
//
//   - Packing (see packing): chunks choose their trees one after the other, and again, so that no link carries much
//     more than it must. A tree weighs more where links are fuller, and where it is longer. In an all-reduce a chunk
//     chooses its root, too.
//   - Scheduling (see route): a link that is free takes, of the chunks that are there, the one with the longest way
//     before it. This is done several times, with other ties.
//   - Writing (see writer): every link gets a block that sends in that order, and every rank gets blocks that add up.
//     They tell each other by signals, or send packets and need none. Blocks of data may repeat all of it for windows
//     of a chunk, so that long trees are full soon.
//
// An all-reduce may be done in another form, where ranks form hosts: groups of one size, with faster links within than
// between them. Ranks add up a chunk within their host, exchange sums with the ranks of their position, and give
// results to their host. Data crosses between hosts once, and not to a root and back.
//
// [Synthesize] does that for all forms of the collective, for several numbers of chunks, and with more or less weight
// on the length of trees. It makes the best few, runs them on the model, verifies the fastest and gives it. A seed
// decides what is chance: the order in which chunks choose, and ties.
//
// # Floor
//
// The report has the bound beside the time. On switches, rings, two hosts, and each of them without a link, up to 16
// ranks, plans are within a tenth of it: of the diameter at 1 KiB, of the narrowest cut at 256 MiB. A switch with a
// link broken in one direction is that close at 1 MiB, too, for plans of more than 256 KiB send to scratch until
// ranks are known to have begun.
//
// Elsewhere the bound is what no plan beats, and not what one reaches. It is the larger of latency and bandwidth, and
// has neither their sum, nor the second half of packets. An all-reduce takes 1.2 to 1.7 times the bound from 64 KiB to
// 256 KiB on a switch with a broken link, 1.3 to 1.7 times from 64 KiB to 1 MiB on two hosts, and 1.2 times at 1 MiB on
// a line of 5. In the order of ranks it takes 1.4 times the bound where a link of 4 ranks is broken, for the bound
// knows of no order.
//
// The search ends after [Spec.Time] with the best plan so far, and [Report] says so.
//
// # Limits
//
//   - 16 ranks, and 8000 sends.
//   - Packing is a search and proves nothing. A link that can only be used by rare trees may stay idle.
//   - A chunk of an all-reduce has one root, but where hosts exchange sums: that is one form, of packets.
//   - Links are memory channels, and port channels between the hosts that the topology names. What comes through a port
//     is known to the block that waits there, which tells others of its rank: that costs a block for each such link.
//   - Chunks are equal. Where the message divides into none of the numbers that fit a topology, plans are for the next
//     size that does.
//   - A rank has a block for each of its links, and about as many that add up; in windows twice as many.
//   - Partial sums are rounded to the type of elements where ranks pass them on. With [Spec.RankOrder] inputs move
//     as they are, and a sum has the bits of the library's algorithms; that costs bandwidth where ranks have few links.
//   - The model knows links. What blocks, caches and launches take is measured, with weft plan bench.
package synthesis
