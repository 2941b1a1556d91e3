// Package weft carries tensors between the ranks of a machine-learning job: expert parallelism (package ep), collectives (package collective), on
// GPUs and without them.
//
// A rank is a process or a goroutine. It calls [Join] and gets a [Comm]; the environment says where the other ranks are (torchrun, Slurm, Open MPI, MPICH, Kubernetes or
// "weft run"), or a [github.com/weftgo/weft/bootstrap.Bootstrap] given by [WithBootstrap] does. From the Comm it allocates [Window]s, symmetric memory that every rank maps, and makes the
// objects that exchange data: ep.NewHandle, collective.New.
//
// # Failure
//
// Every wait ends: with the data, at the context's end, at the communicator's deadline, or when a rank dies. The error is a [*PeerError] that names the rank and the
// operation. It is sticky until the survivors call [Comm.SetMask] to go on without that rank.
//
// # Ownership
//
// Tensors are borrowed by operations and never kept. Windows belong to the Comm that made them and are mapped until every rank has let go. Nothing
// that Weft makes has a name in a file system, so nothing is left behind by a process that is killed.
package weft
