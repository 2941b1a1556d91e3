// Package weft carries tensors between the ranks of a machine-learning job: expert parallelism
// (package ep), collectives (package collective), on GPUs and without them.
//
// A rank is a process or a goroutine. It calls [Join] and gets a [Comm]; the environment says where
// the other ranks are (torchrun, Slurm, Open MPI, MPICH, Kubernetes or "weft run"), or a
// [github.com/weftgo/weft/bootstrap.Bootstrap] given by [WithBootstrap] does. From the Comm it
// allocates [Window]s, symmetric memory that every rank maps, and makes the objects that exchange
// data: ep.NewHandle, collective.New.
//
// # Failure
//
// Every wait ends: with the data, at the context's end, at the communicator's deadline, or when a
// rank dies. The error is a [*PeerError] that names the rank and the operation. It is sticky until
// the survivors call [Comm.SetMask] to go on without that rank.
//
// # GPUs
//
// [WithGPU] or [WithDevice] binds every rank to a GPU, one each or several to one. [Comm.Alloc]
// then makes windows of device memory, [Comm.RegisterDevice] makes them of the caller's, and
// [Window.PeerPointer] is where a rank's own GPU finds another's part: kernels store there, and
// what they store arrives without the host. Between processes the memory travels as descriptors of
// virtual memory, over the sockets that carry the host's windows; on GPUs without virtual memory,
// and for plain allocations of the caller's, as handles of cudaIpc. Ranks of one process map each
// other's allocations. Each rank maps all parts for its own GPU.
//
// A GPU does not order its stores for others by itself: kernels follow data with a fence for the
// whole system, or carry the flag inside the data. Package device has the means. Streams are
// the caller's ([StreamOf]); operations enqueue and return, and [Comm.Wait] waits and tells of
// failures.
//
// Waits on the device end as those on the host do. A kernel that waits looks at the abort word of
// its rank, a word of the host's memory at [Operations.AbortWord], which any rank's host can set. At
// the deadline it leaves a record at [Operations.WaitRecord], which the next operation, [Comm.Err] and
// [Comm.Wait] turn into the error of a host's wait, here and on the other ranks. Kernels that wait
// for peers must run as a whole: package engine/gpu keeps the account.
//
// # Ownership
//
// Tensors are borrowed by operations and never kept, on a GPU until the stream has passed. Windows
// belong to the Comm that made them and are mapped until every rank has let go. Nothing that Weft
// makes has a name in a file system, so nothing is left behind by a process that is killed.
package weft
