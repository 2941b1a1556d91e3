// Package verbs opens libibverbs and libmlx5 at run time and sets up queue pairs of NVIDIA's network cards without
// cgo. It posts nothing: who writes entries finds the queues in memory.
//
//	library, err := verbs.Open()
//	cards, err := library.Cards()
//	card, err := library.Open(cards[0].Name)
//	memory, err := card.Register(address, bytes)
//	queue, err := card.NewQueue(16)
//	err = queue.Connect(verbs.Path{Number: theirs, ...})
//	// queue.Send, queue.Completions and the others are addresses for package mlx5's formats.
//
// # Calls
//
// Both libraries export all that is used here. A function that gives a pointer, or -1, has its reason in errno, which
// is a thread's own: such a call and the look at errno are made on one thread. Functions that give a number give the
// reason itself.
//
// # Layouts
//
// abi.go has the structs that are read and written, typed anew from rdma-core 44. The libraries keep their binary
// interface by versions of symbols; structs have only grown at their end since (ibv_port_attr, mlx5dv_obj).
// testdata/abi.c prints what a C compiler makes of the headers, and testdata/abi.txt is that of version 44. A test
// compares the two where headers are installed.
//
// # Memory
//
// Queues, records and registers lie in memory of the library's, until [Queue.Close]. What the library is given is
// read during the call, but for registered memory.
package verbs
