// Package ep is expert parallelism: it takes the tokens of a mixture-of-experts layer to the ranks
// that hold their experts, and brings the experts' outputs home.
//
// # The model
//
// A [Handle] is made once for a [Spec]: shapes, layout, reduction, payload. Then, for every batch,
//
//	Prepare   exchanges the selections (the experts of each token, and their weights) and returns a
//	          [Routing]: the rank and the row that each selection goes to, and the rows that arrive
//	Dispatch  moves the tokens' rows there
//	Combine   brings the experts' rows home and sums them, weighted or not
//
// For training, DispatchBackward and CombineBackward are the same two moves with roles exchanged. A
// Routing serves any number of moves. A Dispatch that brings weights replaces the Routing's weights
// everywhere; [Handle.SetWeights] replaces them at home only. Inference uses a routing once: there a
// Dispatch takes the selections in place of a Routing, and prepares on the way. Dispatch and
// Combine also exist as two phases: send now, receive later.
//
// # Engines
//
// The communicator decides which engine moves the rows of a handle: the host engine between ranks
// on the host, the GPU engine between ranks that are bound to GPUs. The sections Data flow, Memory,
// Ordering and Refusals below describe the host engine.
//
// On GPUs an operation launches one kernel on the caller's stream. It launches two in split phases,
// and for a Dispatch in direct mode that prepares. A kernel pushes rows and waits for its peers on
// the device. It can be captured in a graph and replayed. On every rank the operations of one
// handle must follow each other in stream order. Errors show in [weft.Comm.Wait], [weft.Comm.Err]
// and the next call. A refused call has enqueued nothing, and the rank may make it again.
//
// Rules for operands on GPUs, which are not checked:
//
//   - They lie in memory that was allocated for GPUs. A kernel that follows an address of the host
//     destroys the CUDA context; where the GPU can reach host memory, Go's collector does not know
//     of the access.
//   - A token selects an expert at most once. The host engine refuses a duplicate; on GPUs counts,
//     rows and sums are then wrong, on any rank and in later operations too, until SetMask, or the
//     operation ends at its deadline. Put -1 for the second selection and add its weight to the
//     first.
//   - A selection that is no expert counts as none.
//
// Rows and outputs begin on multiples of 16 bytes; this is checked. Kernels find ranks that make
// different calls or use different Routings, and report a mismatch. docs/design/gpu-engine.md has
// the whole design.
//
// Between hosts, and wherever a rank does not map another's memory (WEFT_NO_PEER=1), rows of up to 512 tokens
// go to far ranks through port channels (package port), if the layout is expert-major or rank-major, nothing can
// overflow and sums are not by host. An operation is then three kernels, which store what is sent, carry it, and
// receive. After a SetMask graphs are captured anew, and gradients of weights and of a combine take a new routing.
// Memory for these gradients is made by the first call of one, which a capture refuses: call it once before.
//
// In all other cases the stream hands the operation to a goroutine of the host, and the host engine makes it on
// host memory: see Between hosts below. Rows that exist go there and back over PCIe. Results are bit by bit those
// of one host, either way.
//
// In direct mode the final row of every selection is known before a row leaves. Packed layouts, and
// handles whose capacity can overflow, are in direct mode: there Prepare is an exchange of its own.
// With HostCounts Prepare waits for the counts, which a capture cannot do; with DeviceCounts the
// host does not wait.
//
// Received rows lie in the handle's memory until Release. [Handle.CopyReceived] copies the rows
// that exist to the caller's memory.
//
// [CountRouting] on the host and a [TokenCounter] on a GPU count where tokens go without a handle.
//
// # Streams
//
// A call on GPUs enqueues an operation in the given stream and returns. With a nil stream it
// enqueues in the communicator's own stream and returns when the operation has ended. To run an
// operation beside the work of another stream, name the communicator's own stream or another one,
// and order the two by events:
//
//	own := comm.Device().Stream()
//	made.Record(compute); own.WaitEvent(made) // work enqueued in compute so far comes before
//	received, err := handle.Dispatch(ctx, weft.StreamOf(own), ep.DispatchArgs{TopK: topk, Weights: weights, Rows: x})
//	arrived.Record(own)
//	...                                       // work enqueued in compute here runs beside it
//	compute.WaitEvent(arrived)                // and from here on after it
//
// The same lines work in a capture: the first makes the other stream part of it, and the last joins
// it again. Operands are borrowed until the event arrived has passed.
//
// A stream keeps its order, so two handles whose operations ranks enqueue in different orders need
// one stream each. (A driver has 8 hardware queues for streams, or up to 32 by
// CUDA_DEVICE_MAX_CONNECTIONS; streams in one queue wait for each other.) The communicator's own
// stream has the greatest priority. Give it to the caller's streams for exchanges as well
// ([cuda.StreamOptions]): else their kernels, and with them the peers, wait until other kernels
// have left the SMs.
//
// # Data flow on the host
//
// Each rank has a signal pad in shared memory that it alone writes. It holds headers that say which
// operation the rank has entered and where its operands lie, a counter of the operations whose
// operands it has finished reading, and its routing metadata. Package engine/host has the first two.
// To enter an operation a rank writes a header and publishes the operation's number. Then it reads
// the pads of the others.
//
// Receivers pull rows: the receiver of a dispatch copies them from the source's memory into their
// final rows, and the home of a combine reads the experts' rows in place and sums them in
// registers. A rank thus writes no memory but its own. Therefore a rank that was stopped, masked
// and woken again cannot harm the ranks that continued without it.
//
// # Between hosts
//
// Ranks of other hosts cannot map a rank's memory, so the host engine writes to them by package fabric. What
// crosses the network is what one host needs of another, once:
//
//	prepare   counts, and the records for the host's ranks, with the round, by the mirrors of package engine/host
//	dispatch  each token's row, once for each other host that has an expert for it, to the keeper of this rank's
//	          mirror there; its host's ranks map the keeper's window and pull from it as from a source
//	combine   rows or sums, from the rank that has them to the home itself; partial-by-host sends one sum for each
//	          token and host, which a rank there makes of the rows of all its host's ranks, where they lie
//
// A window has a landing for each rank of other hosts, as large as the worst case: rows by their token's number, sums
// by their number among those of the same sender. So nothing is counted before rows leave, no ring stalls,
// and a rank that was left out writes late into its own landing alone. Rows leave from windows where they lie, in
// chunks of 256 KiB at least; tokens that follow each other go in one write.
//
// Why the order is right: a chunk is followed on its way by a line of its sender's mirror with the value of a counter,
// the round and the number of chunks, so who sees the value sees the rows. A rank writes into a landing in round n
// when it has seen all ranks open a round behind the one in which it wrote there last: they have left that. A
// keeper waits for all rows that it keeps, since nobody else looks for them.
//
// After SetMask what was not begun is dropped, and ranks wait until all else has landed. Then the keepers are chosen
// anew.
//
// Bytes that a rank sends to other hosts, beside 176 bytes at most for each chunk, and for each round and host:
//
//	prepare            4 E + 8 R for each host, and (8 + 6 k) rounded for each (token, rank) there
//	dispatch           tokens x hosts that have an expert for them, x (row + scales)
//	combine, exact     selections of other hosts' tokens here x output row
//	combine, partial   (token, rank) pairs of other hosts' tokens here x output row
//	partial-by-host    tokens of the homes that this rank sums for x output row, or x 4 hidden with sums of fp32
//	dispatch backward  as combine; and 4 for each selection, with gradients of weights
//	combine backward   as dispatch, of output rows; and the same
//
// The floor is these bytes at the network's speed, one way through it, and for the last chunk a copy inside the host.
//
// # Memory
//
// A handle's windows are: the signal pad; a pool of Live buffers for received rows; a staging
// buffer for operands that lie in no window; partial sums; and a number per row for the gradients
// of weights. The large ones are address space until a rank touches them.
//
// A receive buffer knows the batch that it holds, on either engine: its Routing and its generation.
// An operation that reads expert rows compares them, by the address of the rows, and refuses rows
// that were released.
//
// # Ordering
//
// Invariant: every rank enters every operation, with or without rows to move, as one round of package
// engine/host. Operations of one handle have the same numbers on all ranks. A rank that has finished
// operation n has seen every rank enter n, so every rank has left n-1. Routing metadata therefore
// alternates between two buffers: operation n+1 may overwrite that of n-1.
//
// An operand is borrowed until every rank has published that it is done with the epoch. Operations
// on operands in windows wait for that before they return. Operations that stage wait for it when
// they next use the staging buffer.
//
// A rank that the others mask while it is inside an operation may read data that they write without
// it. They set its abort word before they go on. The rank reads that word after all data, and
// returns an error instead of the data.
//
// # Refusals
//
// If a rank's arguments are wrong, it publishes the refusal in its header in place of an operand.
// All ranks then return an error that names that rank; nothing has moved, and the next operation
// works. Ranks that call different operations, or one operation by different Routings, get an error
// too: a header names the call and the Routing, the latter by the number of its Prepare, generation
// included.
//
// Handles of GPUs of several hosts that go by the host engine find such things when the stream comes to the
// operation. But for an overflow that is the communicator's failure then, in the same words.
//
// One list of rules says which Specs are not supported; the table of what is supported is generated
// from it. The ranges of a Spec's numbers and the size of the address space are checked beside it.
//
// # Numbers
//
// Exact reductions are fp32 fused multiply-adds, k ascending, from +0 (or from the fp32 sum of the
// biases), rounded once. Partial ones do the same on each rank and round to the row's type; then
// the home adds in fp32, in rank order or in that of the token's last selections on each rank, and
// rounds once. Partial-by-host sums a host's rows in one go, ranks ascending, and rounds once, or with sums of fp32
// not; the home adds hosts in their order. The first three give the same bits however ranks are spread over hosts.
//
// Rows are ordered by source rank, then token. Results are bit-identical from run to run, for any number of
// goroutines, and on every instruction set.
//
// # Floor
//
// A dispatch reads T rows and writes S, where S counts selections (or pairs of token and rank); a
// combine reads S and writes T. There is no copy between. For one token the floor is one cache
// line's trip for the header, plus the rows at the speed of the nearest cache that holds them.
package ep
