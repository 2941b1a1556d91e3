// Package cost says what a plan would take on a topology: ranks and the links between them. It predicts nothing to the
// microsecond. It ranks plans, counts the bytes of each link, and knows times that no plan can beat.
//
// # Topology
//
// A [Topology] is links, each from one rank to another, with a bandwidth and a latency. A pair of ranks that exchange
// has two. A link of bandwidth 0 is broken: it is not there. Bandwidth is in gigabytes a second, 10^9 bytes, and time
// in microseconds, as in the rest of the library.
//
//	{"ranks": 2, "links": [{"from": 0, "to": 1, "gbps": 50, "us": 1}, {"from": 1, "to": 0, "gbps": 50, "us": 1}]}
//
// # Model
//
// [Model.Of] runs a plan on a machine of blocks and links, event by event in the order of time: a list schedule. Blocks
// run their operations in order.
//
//   - A link moves one message at a time, first come, first served. A message of b bytes takes it for b / bandwidth,
//     and is there one latency later. Packets have twice the bytes of their data.
//   - An operation on data streams: it writes what it has read as it comes, through all its links at once. Its block
//     goes on when its writes are in their links and its reads are there. A read asks first, which takes the latency
//     of the link back.
//   - A port moves data beside its block.
//   - A signal takes the latency of its link, behind what its block, or its port, wrote before. It has no bytes.
//   - An operation on packets begins when all of them are there. Waits, barriers and semaphores take no time of their
//     own.
//   - Ranks without a link reach each other through others, by the path of the least latency: a message takes every
//     link of it, and goes on from one to the next while it arrives. [Cost.Detours] counts those.
//   - A switch channel is reads and writes of each member.
//   - A pipeline has at most 128 windows in each chunk, however small they are.
//   - What blocks do themselves is free, unless [Model] says what an operation and a copy take.
//   - All ranks begin at once, and a launch ends when the last block and the last transfer do.
//
// # Bounds
//
// [BoundOf] knows what no plan beats under this model. Data takes the latencies of its path: the diameter, or the
// root's distance for a broadcast. Each set of ranks must get from the others what the collective wants there, through
// the links that lead into it: the cut. All sets of up to 16 ranks are looked at; of more ranks only single ones, and
// runs of neighbours.
//
// An all-reduce has another bound. Let ranks be divided into k parts: k-1 sends between them come before any part knows
// the sum of an element, and k-1 after. For an all-to-all the lengths of all paths together must fit into all links.
package cost
