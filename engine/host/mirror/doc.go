// Package mirror shows what a rank has written into its part of a window to ranks of other hosts: each has a copy
// of it, its mirror, which package fabric keeps up to date. Package engine/host lets ranks of several hosts talk by it.
//
// # Data flow
//
//	rank p: pad --- bytes -----------------------------> p's mirror, in q's part of the window
//	              \- line: which counter, which value --> q's inbox for p
//	              \- its signal -------------------------> q looks: it takes the line, and publishes the counter
//
// A sender names a [channel.Counter] of its pad, the value that it has published there, the bytes behind the
// counter, and a range of its pad that the value announces. [Mirrors.Send] takes that down and does not wait;
// [Mirrors.Pump] moves it on, and takes what has come. Whoever waits pumps.
//
// An item may have parts of other windows, which its value announces as well: they are written before its line.
//
// # Layout
//
// Each rank's part of the window begins with its pad. Behind it lie an inbox and an outbox, in both of which each
// rank has as many lines, and then the mirrors of the pads of all ranks of other hosts, in rank order. Processes of
// q's host map q's part, so a mirror that q keeps is there for all of them: what is sent to a host crosses the
// network once.
//
//	line   number | taken | counter, bytes | value | up to 128 bytes that go behind the counter
//
// # Why the order is right
//
// A signal covers all writes before it, so q takes a line when the line and the bytes have landed. It copies the
// bytes of the line, and then publishes the counter: who sees the value sees the bytes, as if the sender had
// published it in memory that they share. The fabric writes no word that anyone but q looks at before its signal.
//
// Lines are taken in the order in which they were sent. Each says how many lines of the other direction its sender
// has taken; a line is written anew only when the one before it there was taken, and its write has completed. Two
// lines are left to those that say nothing else, so that neither side waits for the other's room.
//
// # Failures
//
// Pump waits for nothing. A peer that the fabric has given up is told by [Mirrors.Lost]; nothing more is sent to it.
// Nothing that lands late does harm: only p writes what p's mirrors and inboxes have, and values of counters only
// grow. After SetMask places are written anew that no peer may have read. So [Mirrors.Settle] drops what was not begun,
// and waits until all else has landed, which the peers' domains tell by themselves.
//
// # Cost
//
// One message where the fabric sends a line and its signal together, as it does through sockets; else two. One more
// for bytes that do not fit a line. The floor is one way through the network.
//
// docs/benchmarks/fabric.md has both, and what other libraries take.
package mirror
