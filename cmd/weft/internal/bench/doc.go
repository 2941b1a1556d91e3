// Package bench measures Weft's operations between real rank processes, and checks
// what they computed in the same run.
//
//	command ── Run(task) ── launch ──┬── rank 0: Serve ── Join, warm up, measure, check
//	                                 ├── rank 1
//	                                 └── ...
//
// A task travels to the ranks in an environment variable; each rank answers with one
// line on its standard output that holds its timings and what it thinks of the
// results. The command merges them.
//
// # What is timed
//
// Each iteration starts with a barrier that is not timed. Then every rank times its
// own call with the monotonic clock, and the iteration counts with the slowest of
// them. With a processor for every rank, the measuring thread is pinned to its own.
//
//	dispatch  Prepare and Dispatch: from new top-k ids to received rows
//	prepare   the first part of that, apart
//	combine   Combine: from the experts' rows to the tokens' sums
//
// Routings are drawn before the first iteration and used in turn. The experts are the
// identity and take no time.
//
// # What is checked
//
// All warm-up iterations, and some of the timed ones, are checked byte by byte
// against expectations that use nothing of the library: where each row must lie
// follows from everyone's routing, which every rank can draw; what it must hold
// follows from its source and token; and sums are recomputed in exact fp32 arithmetic
// in the order that the contract fixes. Outputs are poisoned first, and experts then
// scale their rows by powers of two, so that rows of different experts differ.
//
// # What is counted
//
// Bytes are means over ranks and iterations. The floor of an operation is the time in
// which the machine's processors (as many as ranks, at most) copy cold memory with the
// same number of bytes read and written.
//
// # GPUs
//
// [GPUs] measures expert parallelism between ranks that are goroutines of the command, each
// on a GPU. A gate keeps the GPUs until the host has enqueued everything, so that they begin
// together. Every operation is timed in graphs of many, alone in a graph, by the host's
// clock, and with caches emptied before it. Tokens' or experts' rows are made anew before
// each of the first three, so that what is checked after it, with the same expectations as
// on the host, can only have come by it.
package bench
