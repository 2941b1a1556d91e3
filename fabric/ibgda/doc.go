// Package ibgda sets up network cards for kernels that drive them (GPU-initiated RDMA: header device/nic.cuh), and
// decides whether kernels do so or push triggers to a proxy on the host (package port).
//
//	way, err := ibgda.Choose(os.Getenv, func(name string) (err error) {
//		card, err = ibgda.Open(context, name)
//		return err
//	}, log)
//	region, err := card.RegisterHost(memory)
//	queue, err := card.NewQueue(16)
//	// ... ranks bring each other card.Address(), queue.Number(), and the region's address and key ...
//	err = queue.Connect(theirs, number)
//	// ... and meet; then kernels have queue.Kernel().
//
// # The choice
//
// [Choose] reads two variables of the environment:
//
//	MSCCLPP_EP_USE_IBGDA  a boolean: kernels drive a card, if one can be driven; else the proxy does, and the log
//	                      says so
//	WEFT_NIC              "software": kernels drive a card made of Go, package fabric/softnic. Else the name of a
//	                      card, as mlx5_0: that one is driven, or it is an error
//
// Ranks must agree on the way: whoever chooses compares it with the peers' before anything is set up.
//
// # Bring-up
//
//	libibverbs, libmlx5    opened at run time; the machine's cards, those near the GPU first
//	port and address       a link; on Ethernet an address of RoCE v2, IPv4 before IPv6; on InfiniBand a LID
//	queue pair             made by the library, in the host's memory; libmlx5 says where its parts lie
//	pages                  queues and records are pinned for the GPU, and the doorbell's page is mapped to it
//	memory                 registered, that of a GPU by a dma-buf where it gives one
//	connection             RESET, INIT, RTR, RTS, by what the ranks have brought each other
//
// Each step that a machine refuses is an error of one sentence, which names the way out where there is one. [Open]
// takes all steps but the last two once, and gives the queue pair back, so that the choice is known to work.
//
// # What has run
//
// All of it against libraries made of C (package fabric/verbstest), whose queue pairs package softnic serves, with
// kernels on emulated GPUs. No card was at hand: none has been set up by this package.
//
// # Cost
//
// Nothing here is on the path of an operation. Opening a card takes some milliseconds.
package ibgda
