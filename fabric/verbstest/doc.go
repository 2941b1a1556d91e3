// Package verbstest is a libibverbs and a libmlx5 for tests: a shared library of C, which the test's C compiler makes,
// with cards that the test describes. Their queue pairs lie in memory as libmlx5 lays them, and package softnic's card
// serves them. So code that sets up queue pairs runs as it does with a card, up to the bytes in memory.
//
//	l := verbstest.New(t) // skips where there is no C compiler; WEFT_LIBIBVERBS now names its folder
//	l.Add(verbstest.Card{Name: "mlx5_0", Link: verbstest.Ethernet, GIDs: []verbstest.GID{{Kind: verbstest.RoCE2, ...}}})
//	l.Fail("ibv_reg_mr", syscall.ENOMEM, 0)
//
// # Data flow
//
// What the library is asked for that concerns the card (memory, queue pairs) it hands to a goroutine of the test, and
// waits for the answer. The goroutine registers memory and connects queue pairs at a [softnic.NIC], which then reads
// entries and writes completions.
//
// # What it checks
//
// Calls in the wrong order or with arguments that libraries and kernel refuse fail in the same way: steps of a queue
// pair with other attributes than they take, an address that leads to no card or to one of another kind, permissions
// that do not exist, objects that are closed before what was made of them. At the end of the test every object must be
// closed, and no entry wrong.
//
// # What it is not
//
// Ranks are of one process. A key is for one kind of use, where cards have one key for all. Queue pairs have registers
// of their own, in pages that they share. It says nothing of speed.
package verbstest
