// Package weft moves tensors between the ranks of a machine-learning job: expert parallelism
// (package ep) and collectives (package collective), on GPUs and on the host.
//
// A rank is a process or a goroutine. It calls [Join] and gets a [Comm]. The environment (torchrun,
// Slurm, Open MPI, MPICH, Kubernetes or "weft run") or a bootstrap ([WithBootstrap]) says where the
// other ranks are. From the Comm a rank allocates [Window]s, symmetric memory that every rank maps,
// and makes the objects that exchange data: ep.NewHandle, collective.New.
//
// # Failure
//
// Every wait ends: with the data, at the context's end, at the communicator's deadline, or when a
// rank dies. The error is a [*PeerError] that names the rank and the operation. It is sticky until
// the survivors call [Comm.SetMask] to continue without that rank.
//
// # GPUs
//
// [WithGPU] or [WithDevice] binds every rank to a GPU; several ranks may share one. [Comm.Alloc]
// then makes windows of device memory, and [Comm.RegisterDevice] makes them of the caller's device
// memory. [Window.PeerPointer] is the address at which a rank's GPU reaches a peer's segment:
// kernels store there, without the host. Each rank maps all segments for its own GPU.
//
// Between processes a segment is shared as a descriptor of virtual memory, over the sockets that
// carry the host's windows. On GPUs without virtual memory, and for the caller's plain allocations,
// it is shared as a cudaIpc handle. Ranks of one process map each other's allocations.
//
// A GPU does not order its stores for other GPUs by itself: kernels follow data with a system-wide
// fence, or carry the flag inside the data. Package device has both. Operations enqueue on the
// caller's stream ([StreamOf]) and return; [Comm.Wait] waits and returns failures.
//
// Waits on the device end as those on the host do. A kernel that waits polls the abort word of its
// rank, a word of host memory ([Operations.AbortWord]) that any rank's host can set. At the deadline
// it writes a record ([Operations.WaitRecord]). The next operation, [Comm.Err] and [Comm.Wait] turn
// the record into the same error as a host's wait, here and on the other ranks. Kernels that wait
// for peers must have all their blocks resident: package engine/gpu reserves room for them.
//
// # Ownership
//
// Operations borrow tensors and never keep them; on a GPU they are borrowed until the stream has
// passed. Windows belong to the Comm that made them, and stay mapped until every rank has closed
// them. Nothing that Weft makes has a name in a file system, so a killed process leaves nothing
// behind.
package weft
