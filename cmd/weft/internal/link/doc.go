// Package link measures the bandwidth of the links between the GPUs of a process, and the cost of
// the smallest operations on them. They are the floors that this library's operations are compared
// with, in the same run and on the same machine.
//
// [Measure] makes a rank of each GPU, by package timing, and a lane of engine/gpu, which owns the
// memory. Its window holds the data that the GPU sends, a slot for each sender, and signal words.
// Every measurement is a graph of one operation many times over. A gate in front of the graph keeps
// the GPUs until every host thread has enqueued everything, so that they begin together and the
// host's part is not in the time. The result is the slowest GPU of each replay, and the median over
// replays.
//
// Received data are checked: words are functions of the sender, the measurement and the index,
// receivers' slots are cleared before, and kernels compare every word after the first replay and
// again after the last. Loads are checked by the sum of all words. Of bulk loads only the first
// replay sums, since summing would be timed. Bulk stores send from a few chunks in shared memory,
// so only the first 16 bytes of each chunk carry its index.
//
// Rows of tokens go as a dispatch moves them when it knows where they go. Nothing is routed, awaited
// or copied once more, so what a dispatch takes beyond that is its own. Every row says of which token
// it is, and all are checked.
//
// Invariant: a GPU clears or checks its memory only between two meetings of all ranks, so nothing
// is written there meanwhile. Kernels are launched beside the lane and count no operation, so a
// measurement leaves no state for the next one.
//
// Measure sets nothing on a GPU and uses no multicast. Its kernels wait with a deadline and end
// when the context does.
package link
