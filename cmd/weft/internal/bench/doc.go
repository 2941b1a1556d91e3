// Package bench measures Weft's operations between real rank processes, and checks their results in
// the same run.
//
//	command ── Run(task) ── launch ──┬── rank 0: Serve ── Join, warm up, measure, check
//	                                 ├── rank 1
//	                                 └── ...
//
// A task travels to the ranks in an environment variable; each rank answers with one line on its
// standard output: its timings and its verdict on the results. The command merges them.
//
// Package timing times; packages ep and collective define and check the timed operations; package
// floats rounds without the library. [Join] is measured here.
//
// Each iteration starts with a barrier that is not timed. Then every rank times its
// own call with the monotonic clock, and the iteration counts with the slowest of
// them. With a processor for every rank, the measuring thread is pinned to its own.
//
// # What is counted
//
// Bytes are means over ranks and iterations. The floor of an operation is the time in
// which the machine's processors (as many as ranks, at most) copy cold memory with the
// same number of bytes read and written.
package bench
