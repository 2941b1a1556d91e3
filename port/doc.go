// Package port has MSCCL++'s port channels: this rank, or a kernel of it, pushes a trigger, and a proxy writes
// to the peer through package fabric.
//
//	proxy, err := port.New(port.Options{}, domain) // or several domains: rails
//	memory, err := proxy.Register(bytes, epoch)
//	// ... the ranks exchange proxy.Card() and memory.Card() by a bootstrap ...
//	peer, err := proxy.Connect(ctx, rank, card)
//	remote, err := peer.Memory(memoryCard)
//	c, err := peer.Channel(port.ChannelOptions{Signal: 3}, remote, memory)
//	c.PutWithSignal(ctx, dst, src, n) // the peer's c.Wait(ctx) returns, and sees the bytes
//	c.Flush(ctx)                      // the source may change
//
// # Data flow
//
// A pusher puts a trigger of 32 bytes into a ring: what to do, from which offset of which memory of this rank, to
// which of the peer's. The proxy, one goroutine, takes up to 32 triggers from a ring, posts what they ask
// for, polls the fabric once, and tells who waits for a flush. It waits for nothing. What the
// fabric does not take stays in the channel's lane, 64 triggers long, and then in the ring, where
// pushers wait for room. So a peer that has gone silent stops its own channels; others stop only when
// its triggers fill its lane and the ring.
//
// # Memory layout
//
// A ring is a power of two of slots, and a head and a tail that only grow. A slot has four words. The top bit of each
// is the parity of the slot's lap, 1 in the first. The other 63 bits hold the trigger: 16 bits name the
// channel and 15 each memory; offsets have 48, sizes 40, values 64.
//
// # Why a slot is whole
//
// A pusher claims a slot by raising the head, and only when the tail says that there is room. Then it stores the
// slot's words, in any order. Invariant: a word whose parity is that of the lap was stored by the lap's
// pusher, since the word before it has the other parity and was taken before the tail let the pusher in.
// So a slot is whole when all four parities are right. Nothing is cleared, a ring of zeros is
// empty, and no value is taken for emptiness: MSCCL++'s 16-byte triggers of zeros are never seen. A
// pusher that gives up while it waits has claimed nothing, and leaves no hole.
//
// # Order
//
// What is pushed to one channel takes effect in the order in which it was pushed. A signal is the fabric's, behind the
// data on their own rail: see package fabric. It counts how often the peer signalled, in a word with one
// writer. A channel keeps to one rail, which its signal's number chooses, unless it spreads. Then a put of
// [Options].Spread bytes or more is divided among the rails, each signal goes over every rail, and a
// signal has come when it has come on all of them. No order between rails is needed.
//
// An AtomicAdd is executed by the peer's processor, behind what its rail carried before. A channel that
// spreads has none, since it would overtake what other rails carry.
//
// # Kernels
//
// Each GPU has a ring of its own: see [Proxy.Kernels]. Slots and tail lie in pinned memory of the host, the head in
// the GPU's, since atomic operations of GPUs on host memory do not work everywhere. Before a trigger's
// words goes a fence of system scope, so the proxy sees what the kernel stored before it pushed, and what a peer
// writes after a signal comes behind what the kernel has read. A flush has no fence: port.cuh says why.
//
// The proxy writes a line for each channel, in pinned memory too: how many signals have come, and up to which
// position of the ring flushes are over. Its top bit says that the channel has failed. A kernel's waits end at the
// deadline of its State, by the abort word, or by that bit.
//
// A put reads its source by the fabric's means. Where the fabric reaches host memory alone, the source and the
// destination are pinned memory of the host.
//
// # Sleep
//
// The proxy polls for [Options].Spin without anything to do, then sleeps until this process pushes again. The domain's
// own goroutine moves it meanwhile. While kernels may push, or something is underway, it naps for 50 us at most.
// Wait polls the domain by itself, and needs no proxy.
//
// # Failures
//
// Arguments are refused before anything is pushed: bounds, memories of others, words at odd addresses. What a
// trigger says is checked once more when it is posted. The first write that fails, a peer that takes nothing
// for [Options].Timeout, [Proxy.Abort] and a peer that package fabric has given up end the channel: what it
// has underway is dropped, for a hole in the stream cannot be mended, and all calls return the
// cause, with the peer's rank. Calls end with their context, too, or after Timeout; that leaves the
// channel as it was.
//
// Ranks that go on without another one give their memories new keys, by [Proxy.Settle], [Proxy.Renew], [Proxy.Take]
// and [Proxy.Resume]: what the lost rank still sends lands in none. Channels stay what they are.
//
// # Cost
//
// A push costs one compare-and-swap and four stores, the proxy one load of each word. The floor is the trip of
// the slot's cache line, 60 to 200 ns, and what the fabric costs. BenchmarkTrigger measures a signal from its push
// until a third party sees it, on a network without delay.
package port
