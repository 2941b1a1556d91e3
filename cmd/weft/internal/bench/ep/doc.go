// Package ep measures expert parallelism, on the host and on GPUs, by package timing.
//
// # What is timed
//
//	dispatch  from new top-k ids to received rows: Prepare, on the host apart, and Dispatch
//	prepare   the first part of that, apart
//	combine   Combine: from the experts' rows to the tokens' sums
//
// Routings are drawn before the first iteration and used in turn. The experts are the
// identity and take no time.
//
// # What is checked
//
// On the host all warm-up iterations and some of the timed ones, on GPUs every way of timing, are
// checked byte by byte against expectations that use nothing of the library. The index of each row
// follows from all ranks' routing, which every rank can draw; its content follows from its source
// and token; sums are recomputed in exact fp32 arithmetic in the order that the contract fixes.
// Outputs are poisoned first, or operands made anew, and experts then scale their rows by powers of
// two, so that rows of different experts differ.
package ep
