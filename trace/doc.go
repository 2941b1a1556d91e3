// Package trace records what operations do and when, and says afterwards who waited for whom.
//
// # Data flow
//
//	engines      --Events-->  Writer      --one file a rank-->  Read  -->  Align  -->  Chrome, Summarise
//	of each rank              of the rank                        of all ranks
//
// An engine makes a [Track] for each of its lanes: a sequence of operations that all ranks of a communicator run in
// the same order, such as those of one group. It numbers them alike on every rank (Epoch), and gives the track
// [Event]s: when an operation began, when it had published something for its peers, when it saw what a peer had
// published, when it ended. Package weft makes the [Writer] of a rank that is traced: see weft.WithTrace.
//
// # The file
//
// A file begins with eight bytes, "WEFTTRC1". Records follow, each behind its length and a checksum of four bytes
// each, little-endian. The first byte of a record is its kind: header and track are JSON; events, losses and readings
// of clocks are variable-length integers, as in package encoding/binary. Events of a record differ little from one
// another, and take 5 to 10 bytes each.
//
// The Writer keeps what it is given in memory, and writes it after 200 ms at most, sooner if there is much, and at
// once when it is told to. So a process that is killed loses the last 200 ms, and a reader takes a file up to its last
// whole record. A Writer that is closed ends its file with a record that says so: without it the last events may be
// missing. If the disk cannot follow, events are dropped and counted.
//
// # Clocks
//
// Events have the time of their track's clock. The clock "host" is [Now]: the monotonic clock of the machine, which
// all its processes share. Any other clock has a name of its own, such as "gpu GPU-8c9d...". Anchors are readings of a
// clock beside the time of day (CLOCK_REALTIME), with a bound of the error: the Writer takes those of the host, owners
// of other clocks give theirs by [Writer.Anchor].
//
// [Align] puts all events on one axis, in two steps. Anchors turn each clock's time into the time of day of its host;
// between two anchors it interpolates, so a constant drift costs nothing. Then causality corrects what is left: a rank
// cannot see what a peer published before the peer published it. Let m(a, b) be the least time from a publication on
// clock a to its arrival on clock b, over many operations. If clock x is s(x) ahead, then s(b) - s(a) <= m(a, b). The
// tightest such bound along any path from a to b is D(a, b), a shortest path. The correction of a clock is
//
//	s(b) = (D(r, b) - D(b, r)) / 2,  to within (D(r, b) + D(b, r)) / 2
//
// for a reference clock r. By the triangle inequality these corrections keep every bound: no arrow points backwards.
// Clocks drift between anchors, so bounds are taken over overlapping spans of time, and corrections are interpolated
// between the middles of spans, which keeps the bounds too. Spans start at one second, and are halved where bounds
// contradict each other. What still points backwards is counted: see [Trace].
//
// Anchors of a GPU's clock bound its distance to its host's clock, and take part as such bounds. The times of day of
// two hosts bound nothing. Clocks that nothing connects keep what their anchors say. Clocks that are connected with one
// another and not with the reference are corrected in the same way about the first of them.
//
// # Costs
//
// Where tracing is off an engine has no Writer, and a site is one branch. An event costs a reading of the clock and the
// encoding of its difference to the one before, under a lock that ranks do not share: BenchmarkEvents has both. Nothing
// is written by the goroutine that runs an operation. Reading takes 40 bytes of memory an event, and Align as good as
// nothing beside.
package trace
