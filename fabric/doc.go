// Package fabric writes into the memory of ranks on other hosts. It drives libfabric, which it opens at
// run time without cgo: RDMA cards by efa, cxi and verbs, everything else by tcp.
//
// # Data flow
//
// Each rank opens a [Domain], registers memory as [Region]s and sends the cards of both to its peers by
// a bootstrap. Connecting gives a [Peer]. From there on four calls carry everything:
//
//	p.Write(ctx, remote, 0, region, 0, n) // bytes into the peer's region
//	p.Signal(ctx, 3)                      // the peer's q.Await(ctx, 3, 1) returns, and sees the bytes
//	p.Add(ctx, remote, 64, 1)             // an atomic add to a word of the peer's region
//	p.Flush(ctx)                          // the source may change, adds have taken effect
//
// Write, Signal and Add return when the fabric has taken them. Nothing is received by a call: bytes
// land in the region, signals in words that Await looks at.
//
// # Memory layout
//
// Beside its regions a domain has a board, of which each source rank has a part: a word for each
// signal, a word that nothing reads, and 64 requests of 64 bytes. Behind the parts lies a line for each
// write that may be underway, from which this rank's own small writes are sent. Words of signals have
// one writer, and only grow.
//
// # How a signal comes behind its bytes
//
// Where writes are ordered and an aligned word lands whole, a signal is one write: of its new value,
// into its word. A byte stream may end in the middle of a word, and a reader would see a value that was
// never sent. There a signal is 32 bits that a write brings to the peer's completion queue: its source,
// the signal, and a count of such. The peer's domain adds one to the word when they come out. Any write
// may bring them: [Peer.TryWriteSignal] sends bytes and their signal in one message.
//
// Such a write completes as soon as its source may change; the peer need not answer it, which halves the
// time of a signal through a socket. A connection that ends may thus lose a signal without an error, and
// libfabric connects again. So the domain sends a notice 50 ms after a signal that nothing followed, and
// [Peer.Flush] sends one, too. It says how many signals there were. A peer that misses some gives the
// source up, and tells it to do the same.
//
// Where writes come in any order a signal is a request, which the peer's domain executes. A request is a write
// of its own, with 32 bits for the queue that say its source and number. It says what to do, and how many
// of its source's writes it covers. On ordered networks, where only adds are requests, that is none, because
// they have landed. Elsewhere every write brings its number to the queue. The peer executes requests in
// their order, each when all writes with lower numbers than it covers have arrived.
//
// Invariant: the write's number comes out of the queue after its bytes have landed; the domain marks it,
// and publishes the signal with an atomic store only when the prefix of marks reaches what the request
// covers. Hence who loads the new value sees the bytes of every write before it, whatever overtook what.
// A count of arrivals would not do: a later write may arrive before a covered one.
//
// A source has at most 64 requests in a board. The peer answers with the number that it has executed, at
// once after an add and else for every sixteenth. Where writes come in any order, so many are underway
// at most as the peer can tell apart; the source asks for an answer when half of them are.
//
// Only one answer is underway, so none overtakes another; one that would count backwards is ignored. A
// slot is written again when its request was executed and its own write has completed, since a network
// may place the bytes of a write twice before.
//
// # Adds
//
// Networks' own atomics are no use: EFA has none, others execute them in software at the target, and
// those of cards are not atomic with the processor's. So an add is a request, too, executed by an
// atomic add of the target's processor. Words that peers add to are the host's; what is added to on a
// GPU needs a service on that GPU.
//
// # Progress
//
// libfabric moves when it is called. A goroutine of the domain calls it while no other one does, and
// sleeps on its descriptor where it has one. A call that waits polls by itself, for [Options].Spin
// without anything new, then sleeps on the same descriptor. The lock of the domain is held around each
// call into the library, as it asks for, and let go between polls.
//
// # Failures
//
// Every wait ends: with its context, after [Options].Timeout, when the peer has failed, or when the
// domain is closed. The first write to a peer that fails is the end of that peer ([ErrLost]). Later
// writes might pass, since libfabric connects again without a word, but what failed left a hole that
// no number tells. Networks keep silent about a host that stopped; who notices it calls [Peer.Fail].
//
// Keys keep late writes out of memory that is used anew. [Region.Renew] closes a region and makes a key
// that never was, of the epoch where the owner picks keys. So providers that do not look at keys are
// refused, which [Open] finds out by trying.
//
// # Trust
//
// libfabric proves no secret: tcp talks to whoever finds its port. Where the owner picks keys they are
// encrypted numbers, which a stranger cannot guess, so its writes touch nothing. Where writes bring 8
// bytes to the queue, half of them are a password of the domain, and what comes without it is ignored.
// Cards have keys and password, and travel where only the job's ranks read. Nothing is encrypted on the
// wire: the network between hosts must be one whose machines are trusted.
//
// # Cost
//
// A call into libfabric costs 26 ns more than from C, and none of the calls above allocates. The floor
// is the network's: "weft bench fabric" prints it beside. Over tcp of libfabric 2.5 a write completes
// in the time in which a bare connection carries 8 bytes there and back.
package fabric
