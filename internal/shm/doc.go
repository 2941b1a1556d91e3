// Package shm gives the ranks of one host memory that all of them map, and the sockets over which
// the descriptors of that memory travel and over which a rank learns that another is gone.
//
// # Data flow
//
// Each rank calls [Listen] and passes its [Address] to the others by the job's rendezvous. With all
// addresses in hand, every rank calls [Listener.Connect] and gets a [Mesh]: one connection per pair
// of processes' ranks. A window is then made by all ranks together, each creating a [Region] and
// passing it to [Mesh.Exchange]:
//
//	l, err := shm.Listen()
//	addrs := allGather(l.Address())
//	m, err := l.Connect(ctx, rank, addrs, onEvent)
//	own, err := shm.Create("window", size, shm.Options{Populate: true})
//	windows, err := m.Exchange(ctx, 1, own, nil)
//	windows[peer].Bytes()[0] = 1 // rank peer sees it
//
// Data never goes through the mesh. It carries descriptors when windows are made, messages of a few
// bytes when a rank has something to say outside any operation ([Mesh.Send]), and its end.
//
// # Memory
//
// A region is a memfd: it has no name in any file system, and the kernel frees it with its last
// mapping, so kill -9 leaves nothing behind. It is sealed against shrinking and growing before a
// peer sees it, and a peer's region is refused unless it is: the owner of an unsealed file could
// truncate it, and every rank that then reads it would die of SIGBUS. Regions of 2 MiB and more use
// the system's pool of huge pages if it has any left, which is known only once a page is mapped and
// touched; [HugeStatus] says.
//
// Ranks that are goroutines of one process share one mapping by reference count, or, with
// [Mesh.ExchangeMemory], any memory at all.
//
// # Trust
//
// Every process of the network namespace can see and dial abstract sockets. A connection therefore
// counts only when the kernel has confirmed the process and user at its other end, and both sides
// have shown the secrets of the addresses, which only the rendezvous gave them. Frames have a
// version and a limit, and a peer that sends anything else is treated as dead.
//
// # Ordering
//
// Data from one rank to another arrive in order: its regions, its messages, its goodbye. So a
// peer's [Left] or [Died] comes after everything that it had sent, and an exchange that it took
// part in still succeeds. Between different peers there is no order.
//
// A peer's end shows in two ways and the first counts: its socket closes, or its process ends (a
// pidfd). The latter also works if a child that it forked holds the socket open. Either comes when
// the kernel has torn the process down: within 2 ms for a small one, tens of milliseconds and more
// for one that had touched much memory.
//
// # Cost
//
// The floor of forming a mesh is one connection per pair and two packets on it, under 100 us of
// processor time for each pair; of an exchange, one packet to and from each peer and one mmap for
// each peer in another process. Each mesh costs a goroutine and two descriptors for every peer of
// another process, one goroutine for those of its own, and one that watches all processes.
package shm
