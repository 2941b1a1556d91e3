// Package collective is the collectives of a communicator, between ranks that share memory and between
// GPUs: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, gather, scatter and
// barrier.
//
//	group, err := collective.New(ctx, comm, collective.Options{})
//	...
//	err = group.AllReduce(ctx, nil, weft.TensorOf(out), weft.TensorOf(in), weft.Sum)
//
// Results are the same bits on every rank, in every run, by every algorithm: elements are reduced
// in rank order, in fp32 or wider, and rounded once (see [Group.AllReduce]).
//
// # Data flow
//
// Ranks talk in rounds: package engine/host says how, and why four headers a rank need no other flow
// control. The call that ranks compare is collective, type, count, reduction and root, packed in one
// word. The ring has Options.Scratch bytes.
//
// Small operands are the payload of the round that opens an operation (the eager algorithms). Before
// large ones ranks use it to tell each other where their operands are. Peers read those in windows
// where they lie; others are staged in the ring step by step.
//
// # Failure
//
// Waits end with the communicator's waits: at the deadline, with the context, when a rank dies. The
// survivors mask the rank and go on with the same group.
//
// # Cost
//
// The floor of a small operation is one trip of a cache line from core to core, and taking the line
// back before it is written again.
//
// The floor of a large one is its passes over S bytes. A staged all-reduce makes two to stage and
// n+1 to reduce on each of n ranks; beyond two ranks each reduces its chunk only, which makes five
// however many there are. One of them reads what another core has just written, which is the
// slowest: it goes at the speed at which lines pass between cores. Operands in windows need 2 + 1/n
// + 2(n-1)/n passes, and no staging.
//
// Two things decide whether that is reached. Writing a line that another core still holds means
// taking it back first, several times slower than writing one that no core holds; so the ring is
// larger than two second-level caches and is written from front to back. And between cores that
// share no cache taking lines back is far slower than writing to memory, whatever the ring; so
// every rank watches how fast it writes and goes past the caches where that is better (pace.go).
// Results of 8 MiB and more always do: they would only displace what is still to be read.
//
// "make bench" measures the floors of a machine and the operations against them;
// docs/benchmarks/README.md has figures, each with its machine and command.
//
// # Adding an algorithm
//
// An [Algorithm] is a value in a file of its own: a name, what it supports, and a function in terms
// of rounds. List it in the registry (algorithm.go) and in the tuning table (tuning.go), which is
// the same on every rank and asked with nothing but what ranks agree on; the tests then run it
// against the plain loop, and kill every rank between its rounds. A collective is a constant, its
// name, a method of Group and at least one algorithm that supports everything.
package collective
