// Package proxied is the engine of handles whose ranks are on GPUs of several hosts, for batches that are not few
// tokens: a stream hands each operation to a goroutine of the host (package engine/gpu/proxy), which makes it on host
// memory by a host engine ([Host]).
//
// # Data flow
//
//	stream  ... hand-over: waits, and copies what it is told ...
//	proxy       operands -> pinned -> host memory | host engine, between all ranks | results -> pinned -> GPU
//
// The host engine takes a token's row to another host once, and fans it out there. So every layout, reduction,
// gradient and mask is its own, with its very bits. An operand of the GPU goes through two areas of pinned memory, by
// turns: one is filled while the host copies the other. Only rows that exist are copied, of which the host engine's
// routing knows.
//
// What a Routing says lies in the GPU's memory. Its counts are written by every prepare, what it says of rows only
// when a caller asks.
//
// # Few tokens
//
// Handles of few tokens have kernels and port channels between hosts (package ep/internal/gpu). These do not bring
// gradients of combines and of weights. A [Back] does, for their routings: it prepares once more, on the host.
//
// # Order
//
// Operations of a handle have the streams' order, the same on all ranks, and the goroutine makes one at a time. An
// operation that is captured is made anew in each replay, on what its operands hold then.
//
// # Failures
//
// A rank's own arguments are refused when it enqueues. All else is found by the host engine, in its words, and is the
// communicator's failure: that a rank died or is late, that calls differ, that a token selects an expert twice. An
// overflow is returned by the prepare that waits for counts, and fails nothing.
//
// # Cost
//
// Rows cross PCIe once on their way to the host and once from it, also those between GPUs of one host. The host copies
// them into pinned memory and out of it. The floor is the sum of the host engine's, and of these copies.
package proxied
