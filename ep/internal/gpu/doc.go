// Package gpu is the GPU engine of expert parallelism: every operation is one kernel on every rank,
// enqueued on the caller's stream. docs/design/gpu-engine.md has the design.
//
// # Kernels
//
// A .cu file is a kernel. The Go file beside it has the mover: the kernel's programs, arguments,
// grid, memory and launches. Rows move in one of two ways:
//
//   - slots (slots_dispatch, slots_combine), for few tokens: rows leave before anything is counted,
//     to a slot whose address follows from source and token. The receiver finds their row on arrival.
//   - direct (direct_row_map, direct_push, direct_pull), for many: a row map computes the final row
//     of every selection. Dispatch stores it there, and the token's home reads it from there.
//
// Far ranks, whose memory is not mapped, are reached through slots: between the launch that sends and the
// one that receives a kernel of ports_dispatch.cuh or ports_combine.cuh carries rows by port channels.
// ports.cuh has the protocol, ports.go the channels. Or ports_hosts.cuh takes rows of a dispatch once to each host,
// where a rank stores them in the windows of all: places.go says which one.
//
// Kernels poll for what peers send: Wait::more of device/wait.cuh is the step between two polls,
// where a wait looks at the deadline and the abort word. gather in slots_sum.cuh awaits rows.
//
// The other kernels serve both: gradients moves gradients, describe says what each row is, copy
// copies what has arrived. token_counts counts where tokens go, for a Counter rather than a handle.
//
// # Composition
//
// A handle is what its movers share (lane, room, ring of receive buffers, routings) and the movers
// that its Spec and its Choice pick from one list, parts. Making one asks all movers, in this order:
//
//	compose   parts            -> movers; which one dispatches, combines
//	load      mover.load       -> one program of all, loaded on every rank
//	fit       mover.want       -> grids that fit the room of every rank, and the lane's counts
//	layout    mover.layout     -> offsets in the window and in this GPU's own memory
//	prepare   mover.prepare    -> launches, and the arguments that no call changes
//	lane      mover.point      -> addresses, again whenever the lane takes other memory
//
// dispatch.go and combine.go have the steps that all movers share: they enter the lane, check
// arguments, ask the dispatcher or the combiner, and finish. A mover begins each call from the
// arguments that no call changes, so nothing of the call before is left. The arguments of a call stay
// until the next one: the second half of an operation reads them.
package gpu
