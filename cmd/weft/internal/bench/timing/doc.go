// Package timing is how operations between ranks are timed, on the host and on GPUs. An [Operation]
// is timed: its owner makes operands, runs it, and compares the results. A new kind of operation is
// measured by making Operations of it; nothing here knows which operations there are.
//
// # The host
//
// A [Host] times rounds of operations that follow each other, by the monotonic clock. A barrier
// stands before each operation and is not timed. Times travel as a [Series] from each rank to the
// command, where the slowest rank of each iteration counts.
//
// # GPUs
//
// [GPUs.Run] makes ranks that are goroutines, each with a [GPU]. A gate keeps the GPUs until every
// host thread has enqueued everything, so that they begin together. [GPU.Measure] times an operation
// in graphs of many, alone in a graph, called without a graph, and with caches emptied before it,
// and has the output checked after each of the first three.
package timing
