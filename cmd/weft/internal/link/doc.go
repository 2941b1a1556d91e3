// Package link measures what the links between the GPUs of a process carry, and what the smallest
// operations on them cost: the floors that operations of this library are compared with, in the
// same run and on the same machine.
//
// [Measure] makes a rank of each GPU, by package timing, and a lane of engine/gpu, which owns the
// memory. Its window holds what the GPU sends, a slot for what arrives from each GPU, and words to
// signal with. Every measurement is a graph of one operation many times over. A gate in front of
// the graph keeps the GPUs until every host thread has enqueued everything, so that they begin
// together and the host's part is not in the time. What counts is the slowest GPU of each replay,
// and the median over replays.
//
// What arrives is checked: words are functions of the sender, the measurement and the place,
// receivers' slots are cleared before, and kernels compare every word after the first replay and
// again after the last. Loads are checked by the sum of all words. Of bulk loads only the first
// replay sums, since summing would be timed. Of bulk stores, which send from a few chunks in shared
// memory, only the first 16 bytes of each chunk tell its place.
//
// Invariant: a GPU clears or checks its memory only between two meetings of all ranks, so nothing
// is written there meanwhile. Kernels are launched beside the lane, which counts no operation:
// nothing of a measurement is left for the next one to go by.
//
// Measure sets nothing on a GPU and uses no multicast. Its kernels wait with a deadline and end
// when the context does.
package link
