// Package ep is expert parallelism: it takes the tokens of a mixture-of-experts layer to the ranks
// that hold their experts, and brings the experts' outputs home.
//
// # The model
//
// A [Handle] is made once for a [Spec]: shapes, layout, reduction, payload. Then, for
// every batch,
//
//	Prepare   turns routing (the experts that each token selects, and their weights) into a [Routing]: for every
//	          (token, selection) the rank and the row where it goes, and for this rank the rows that come
//	Dispatch  moves the tokens' rows there
//	Combine   brings the experts' rows home and sums them, weighted or not
//
// and for training DispatchBackward and CombineBackward, which are the same two moves with roles
// exchanged. A Routing may be used for any number of moves, and gets other weights by a Dispatch
// that brings them, or at home alone by [Handle.Weigh]. Inference, whose routing is used once, has
// a Dispatch prepare on the way: it is given the selections in place of a Routing. What dispatches and what combines
// can be cut in two: send now, receive later.
//
// # Engines
//
// What moves the rows of a handle follows from its communicator: the host engine between ranks on
// the host, the GPU engine between ranks that are bound to GPUs. A Handle keeps what they share:
// the Spec, where rows stand, what arguments must look like. The sections below are about the host
// engine.
//
// On GPUs an operation is one kernel on the caller's stream (two, if it is cut in two), which
// pushes rows and waits for its peers on the device; it can be captured in a graph and replayed.
// The operations of one handle must follow each other in stream order on every rank. Errors show in
// [weft.Comm.Wait], [weft.Comm.Err] and the next call. A call that is refused has not been made:
// the rank may make it again. Operands are in memory that the rank's GPU reaches, which nobody
// looks at: a kernel that follows an address of the host's loses the context, and where it can
// follow one, Go's collector does not know that it does: use memory that was allocated for GPUs.
// Rows and outputs begin on multiples of 16 bytes; selections that are no expert count as none. A
// token must not select an expert twice: the host engine refuses that, and GPUs do not look. There
// counts, rows and sums are then wrong, on whatever rank and also in later operations, until
// SetMask, or the operation ends at its deadline. Put -1 for the second and add its weight to the
// first. Ranks that make different calls, or go by different Routings, are told so where the
// kernels meet. docs/design/gpu-engine.md has the whole design.
//
// Layouts whose number of rows follows from the routing, and those whose capacity can overflow,
// give every row its place before it leaves: Prepare is an exchange of its own there, and
// a Dispatch that prepares two kernels. With HostCounts Prepare waits for the counts, which a capture
// cannot; with DeviceCounts nothing waits.
//
// What has arrived lies in memory of the handle's, until Release. [Handle.CopyReceived] copies it
// to memory of the caller's, and only the rows that are there.
//
// Where tokens go can be counted without a handle: by [CountRouting] on the host, by a [TokenCounter] on
// a GPU.
//
// # Streams
//
// An operation on GPUs is enqueued in the stream that it is given, and does not wait for it. With
// nil it goes into the communicator's own stream, and the call returns when it has ended there. To
// have it beside what another stream computes, name the communicator's own stream, or one of the
// caller's, and order the two by events:
//
//	own := comm.Device().Stream()
//	made.Record(compute); own.WaitEvent(made) // what is enqueued in compute by now comes before
//	received, err := handle.Dispatch(ctx, weft.StreamOf(own), ep.DispatchArgs{TopK: topk, Weights: weights, Rows: x})
//	arrived.Record(own)
//	...                                       // what is enqueued in compute here runs beside it
//	compute.WaitEvent(arrived)                // and from here on after it
//
// So it is in captures too, of which the first of these lines makes the other stream a part, and
// the last brings it back. Operands are borrowed until arrived has passed. A stream keeps its
// order: two handles whose operations ranks enqueue in different orders need a stream each (a
// driver has 8 hardware queues for streams unless CUDA_DEVICE_MAX_CONNECTIONS says up to 32, and
// streams in one queue wait for each other). The communicator's own has the greatest priority; a
// stream of the caller's for exchanges should have it as well ([cuda.StreamOptions]), or their
// kernels wait, and with them peers, until others have made room.
//
// # Data flow on the host
//
// Each rank has a board in shared memory that it alone writes: a counter of the operations that it
// has entered, one of those whose operands it has finished reading, a notice of where its operand
// lies, and its routing. To enter an operation a rank fills in its notice and publishes the
// operation's epoch; then it reads the boards of the others. Rows move by being pulled: the
// receiver of a dispatch copies them from the source's memory into their final places, the home of
// a combine reads the experts' rows where they are and sums them in registers. So a rank writes no
// memory but its own, which is why a rank that was stopped, masked and woken again cannot harm
// those who went on without it.
//
// # Memory
//
// A handle's windows are: the board; a pool for received rows (Live tensors at their largest); a
// stage for operands that lie in no window; partial sums; and a number per row for the gradients of
// weights. The large ones are address space until they are touched.
//
// A place of the pool knows the batch that it holds, on either engine: its Routing and its
// generation. What takes expert rows compares them, by the address of the rows, and refuses rows
// that were released.
//
// # Ordering
//
// Epochs count the operations of one handle and are the same on all ranks. Notices and routing
// alternate between two places by the epoch's parity: who has finished epoch n has seen everyone
// enter n, so everyone has left n-1, and what n-1 used may be overwritten in n+1. This holds
// because every rank enters every epoch, with or without rows to move. An operand is borrowed until
// everyone has published that they are done with the epoch: operations on operands in windows wait
// for that before they return; the staging windows are asked for it when they are next used.
//
// A rank that the others leave out while it is inside an operation reads what they write without
// it. The abort word, which they set before they go on, is what it looks at when it has read
// everything: it then returns an error instead of what it has read.
//
// # Refusals
//
// What is wrong with one rank's arguments is put on its notice instead of an operand. All ranks
// then return an error that names that rank, nothing has moved, and the next operation works. The
// same goes for ranks that call different operations, or one operation by different Routings: a
// notice says which call it is, and names the Routing by the epoch of its Prepare, generation and
// all. What of the space of Specs is not supported is decided by one list of rules, from which the
// table of what is supported is generated too; what a Spec's numbers may be, and what fits into the
// address space, is checked beside it.
//
// # Numbers
//
// Exact reductions are fp32 fused multiply-adds, k ascending, from +0 (or from the fp32 sum of the
// biases), rounded once. Partial ones are the same per rank, rounded to the row's type, then fp32
// adds in rank order, or in that of the token's last selections there, rounded once. Rows are
// ordered by source rank, then token. All of it is bit-identical from run to run, for any number of
// goroutines, and on every instruction set.
//
// # Floor
//
// A dispatch reads T rows and writes S, where S counts selections (or tokens and ranks); a combine
// reads S and writes T. No copy is made between. For one token the floor is one cache line's trip
// for the epoch, plus the rows at the speed of the nearest cache that holds them.
package ep
