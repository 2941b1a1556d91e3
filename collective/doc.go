// Package collective is the collectives of a communicator, between ranks that share memory, between hosts and
// between GPUs: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, gather, scatter and
// barrier; and messages between pairs of ranks.
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
// What a collective moves is pieces: n bytes of a sender's input, to a place in a receiver's output, or
// to be reduced there with those of the other ranks. A sender's pieces are the same for all receivers
// (all-reduce, all-gather, broadcast, reduce, gather) or differ (reduce-scatter, all-to-all, scatter).
// On the host these forms carry the pieces of any collective (collective/internal/host):
//
//	eager      the payload of the round that opens the operation
//	pull       receivers read windows, where ranks have told each other that operands lie
//	pipeline   senders stage step by step in the ring, receivers read it
//	two-shot   all-reduce, reduce: each rank reduces a chunk of a step into its ring
//	window     the same of inputs in windows, without staging
//
//	hierarchical, hierarchical-exact: reductions between hosts, in files of their own
//
// A rank writes its own memory only. Thus pulling in place is allowed only where no output overwrites
// what peers read: not in an all-reduce nor an all-to-all, whose pipeline stages a step before it
// overwrites it.
//
// Every rank's payload of the first round of an all-to-all-v is its table of counts, and the data if
// there is little. All ranks compare all tables: so counts that differ are the same error everywhere,
// before anything moves.
//
// # Between hosts
//
// Where ranks are on several hosts, rounds reach all of them: what a rank publishes goes once to each other host, whose
// ranks read it there (engine/host/mirror). Forms that move go as they are. Of a payload a host gets the part that is
// for its ranks, so an all-gather of s bytes a rank sends (H-1)Gs bytes from each of H hosts of G ranks, and an
// all-to-all of parts of s bytes G(H-1)Gs: the least there is.
//
// Floats are summed by host, by every form: a host's inputs in rank order in fp32, rounded to the type; then these
// partials in the order of the hosts in fp32, rounded once more. An average divides before the last rounding.
// Rounding partials adds at most half a unit in the last place of the largest partial for each host. The form
// "hierarchical" does so with the fewest bytes, in two steps of chunks that each rank of a host has one of; up to
// 16 KiB "eager" takes one trip. "hierarchical-exact" keeps partials in fp32 and is for calls that name it.
//
//	all-reduce of S bytes      2S(H-1)/H leave each host; exact: (1+4/size)S(H-1)/H
//	reduce-scatter, parts of s (H-1)Gs
//	reduce                     S, but from the root's host nothing
//
// On two hosts an all-reduce exchanges partials alone, S bytes or, exact, 4S/size, in one trip. The order of integers
// makes no difference; their averages divide the exact sum, for which each host gets all inputs.
//
// Calls of GPUs on several hosts are the host engine's as well, by its algorithms and with its bits. A stream hands
// each to a goroutine of the host, and waits (collective/internal/proxied). They may be captured. Users' algorithms are
// plans alone, which run on the GPUs. Norms, words, users' kernels, and a launch's blocks and threads are refused.
//
// # On GPUs
//
// A group of a communicator on GPUs enqueues kernels, which package collective/internal/gpu describes. Calls
// may be captured in graphs, any number in each, and replayed among others. What a capture needs is made
// before: kernels for the types that are reduced (Options.DTypes), and the first call after SetMask.
//
// # Messages
//
// [Group.Send], [Group.Recv] and [Group.Batch] concern pairs of ranks, and no other rank takes part. The
// ranks of a pair match their messages by order alone. A rank's window has for each peer
//
//	receipt   the number of the last part that this rank has taken from the peer, or of the part in which
//	          it waits for a message, and of which type and length; which of the last 64 messages differed
//	parts     number, fingerprint and 104 bytes, 40 of them in the same cache line: 64 parts up to 16 ranks,
//	          4 from 256 ranks on
//
// and, for all peers together, a pool of 16 chunks of up to 64 KiB. A sender publishes a part; the
// receiver compares the fingerprint with its own, moves the data and publishes the receipt. The data is
// in the part, or in the sender's window, where the receiver reads it, or in chunks.
//
// Invariant: a send ends when its receiver has taken it, or, if it is in its part, waits for it as it is. So
// the operand is the caller's again, a mismatch is an error on both sides of the same call, and ranks that
// wait in a cycle do so at every size.
//
// Order. Parts of a pair are numbered and taken in that order. Part n overwrites part n - 64,
// so the sender first sees that one taken. A receipt is published behind what it says of a message, and a
// sender reads the outcome of a message before it publishes 64 parts more: one bit each is enough.
//
// No message waits for a chunk that a message of another pair keeps. Before the receiver reads a message
// only its first chunk is filled, and only while half of the pool is free; a receiver that reads goes on.
// All messages of a batch are moved in turn, so no order of them, and no cycle of ranks, stops them.
//
// Floor: one trip of a cache line; one copy from a window, two through chunks.
//
// On GPUs a call's messages are one kernel. Both sides tell each other the message when they begin it, and
// wait for that, so the invariant above holds there, too. Each pair of ranks has rings in the receiver's
// memory, beside the staging memory: see [Options].Staging.
//
// # Norms
//
// [Group.AllReduceNorm] goes on with the rows of a sum: it adds a residual, divides each row by its root mean
// square, multiplies it by gamma, and may quantise it. Invariant: each step rounds to the rows' type, as the
// operation alone would, and adds in an order that depends on nothing but the row's length. So its bits are
// those of an all-reduce and the steps behind it, by every algorithm and engine. On the host the steps follow
// an all-reduce of any form. On GPUs a row is a block's, whose threads have the sums in registers as they arrive.
//
// # Words
//
// [Group.AllGatherProgress] raises a word when a chunk of its output has landed, [Group.ReduceScatterReady] reads a
// chunk of its input when its word is raised: a matrix product runs beside either. Progress words count calls and
// are never reset, as several users may read one; a ready word has one user, which makes it 0. Neither needs a
// number of the caller's, so graphs are replayed with the same arguments.
//
// # Asynchrony
//
// [Group.Start] is the one entry that does not wait: its [Work] says whether the call has ended, and how.
// On GPUs a call ends with its place in the stream, which an event marks; events and Works are used again.
// On the host a goroutine of the group, which the first Start begins, runs what was started. A call that
// is not started first waits until that goroutine is idle, and so calls keep their order.
//
// # Algorithms by name
//
// A call may name its algorithm. Ranks compare the names as they compare calls, and refuse one that is
// unknown or does not support the call on every rank, before anything moves.
//
// # Multicast
//
// Where WEFT_MULTICAST is 1 on all ranks when they join, windows on GPUs have addresses that reach all ranks at
// once ([weft.Window.Multicast]). Symmetric all-gathers and broadcasts into such windows may go by them, with the same
// bits. Sums that the switch adds up must be named: all-reduce/relaxed-multicast and others with "relaxed-multicast" in
// their names, of bf16, fp16 and fp32. While a rank is masked nothing goes by multicast, and what names it is refused.
//
// These algorithms were never run on a GPU. They are compiled for Hopper and Blackwell, and tested on emulated GPUs.
//
// # Kernels of your own
//
// A group on GPUs runs users' algorithms beside its own (Options.Algorithms): a [Kernel] in CUDA C++, which each rank
// compiles when the group is made, with the collective, sizes and element types that it is for. Calls find it by
// name, by Options.Force, or by Options.Select; without one of these it runs only if it has a Cost that is less than
// the others'. Ranks compare all that decides about it, so that every rank has the same kernels under the same
// names.
//
// The kernel's parameter has the call, memory that all ranks reach, and the ranks; header weft.cuh of package
// device has put, get, signals, barriers and packets, whose waits all end. The first thing that a kernel makes there, a
// Call, opens the operation, and its end counts it. Hooks make contexts (Prepare, one for each Key) and set arguments
// (Kernel.Launch). examples/own-kernel is the whole of it, in Go, and python/examples/own_kernel.py in Python.
//
// # Choice
//
// Without a name the algorithm that costs least runs, by the machine's table in package tuning; package
// collective/internal/choice has the rules. Invariant: a choice depends on nothing but what all ranks have
// agreed on, in this call or when the group was made. [Choices] prints it. [Group.Algorithm] and [Work.Algorithm] name
// what has run, and so does the communicator's log, once for each algorithm.
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
// A move of S bytes reads and writes each once from windows, and twice from the ring. A reduce-scatter
// from windows reads n parts and writes one; staged it makes two passes more over all parts but the
// rank's own. A reduce on two ranks is the root's n+1 passes; beyond, all-reduce's less the copies of
// the other ranks. An all-to-all-v compares n*n counts on every rank.
//
// Two things decide whether that is reached. Writing a line that another core still holds means
// taking it back first, several times slower than writing one that no core holds; so the ring is
// larger than two second-level caches and is written from front to back. And between cores that
// share no cache taking lines back is far slower than writing to memory, whatever the ring; so
// every rank watches how fast it writes and goes past the caches where that is better (engine/host, pace.go).
// Results of 8 MiB and more always do: they would only displace what is still to be read.
//
// "make bench" measures the floors of a machine and the operations against them;
// docs/benchmarks/README.md has figures, each with its machine and command.
//
// # Adding an algorithm
//
// An [Algorithm] of the host is a form with a collective. A form is a value in a file of its own
// (collective/internal/host): a name, what it supports, and a function in terms of rounds and pieces.
// algorithm.go lists the forms of each collective, and profile shared-memory of package tuning says what each
// takes. The tests then run it against plain loops, and kill every rank between its rounds.
//
// A collective is a constant of package spec with its rules, a method of Group, its pieces (piece.go) and
// its line in the list, with at least one form that supports everything.
package collective
