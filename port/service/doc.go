// Package service gives the ranks of a communicator channels to each other, through one interface: memory channels
// where a rank maps the peer's memory, port channels of package port everywhere else.
//
//	s, err := service.New(ctx, comm, service.Options{}) // collective
//	m, err := s.Register(ctx, bytes)                    // collective, each rank its own memory
//	c, err := s.Connect(ctx, peer, service.ChannelOptions{}, m, m) // on both ranks
//	c.PutWithSignal(ctx, to, from, n)                   // the peer's c.Wait(ctx) returns, and sees the bytes
//	c.Flush(ctx)                                        // the source may change
//
// Ranks that have means of their own to tell each other things need no collective call for a memory or a channel:
// [Service.Expose], [Memory.Card] and [Service.Import] are for memories, [Service.Open] for channels.
//
// # Data flow
//
// [New] opens a domain of package fabric for each rail, and a proxy over them. The cards of proxies and memories go
// through the communicator. Two ranks that connect make a first connection of the fabric, if they have none, and
// exchange a hello: what kind of channel each asks for, and whether it maps the other's memory. So both make the same
// kind, or both refuse.
//
// Where all ranks map a window of the communicator, that has the words of memory channels' signals, and hellos
// between such ranks need no fabric. A machine without libfabric then has memory channels.
//
// Services with [Options].Shared have one domain and one proxy, opened by the first of a communicator and closed by
// the last: each has signals of its own, which are used once. Rows of expert parallelism and plans on GPUs go by such
// services.
//
// # Memory layout
//
// A window, or plain memory that is registered, has a board of two hellos from each rank and two to each. The window
// also has, before that, a counter for each channel of each peer. Hellos alternate between their two places: a rank
// that has the peer's hello knows that its own one before was read.
//
// # Which kind
//
// A memory that lies in a window of the communicator is mapped by all peers of the host. A channel between two ranks
// is a memory channel if each maps the destination that the peer has given; a source may lie anywhere. A memory
// channel copies, so its put is over when it returns. A port channel reads its source until it is flushed.
//
// # Failures
//
// Waits are the communicator's. They end by its deadline and by [weft.Comm.Abort], and name the rank that died. A call
// that its own context ends leaves the channel as it was, and aborts nothing. After [weft.Comm.SetMask] the channels
// between the ranks that remain go on; what is asked of one to a masked rank fails. A connection that the network has
// lost is [weft.ErrDied] of the peer.
//
// Between hosts SetMask ends the connections to ranks that are gone and gives all memories new keys, so that what
// such a rank still sends lands in none of them. Cards from before are as good as new ones. A memory that is no window
// stays where it is: of a write that was landing at that moment the provider may finish a piece.
//
// # Kernels
//
// [Channel.Kernel] is a port channel as kernels take it: see package port. The memories are then pinned memory of the
// host. Memory of a GPU is refused, as the fabric does not reach it.
package service
