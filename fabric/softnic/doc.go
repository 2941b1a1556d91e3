// Package softnic is a network card made of Go. It reads send queues of package mlx5's format from memory, as a
// ConnectX does, carries them out, and writes completions. It needs no card and no driver: whoever writes entries,
// a kernel by device/nic.cuh or a host by package mlx5, cannot tell the difference but by its speed.
//
//	nic := softnic.New(softnic.Options{Seed: 1})
//	err := nic.Register(softnic.Region{Key: 7, Address: at, Bytes: memory, Access: softnic.RemoteWrite})
//	queue, err := nic.Connect(0x123, memory)
//	go nic.Serve(ctx)
//	// ... entries, record, register ...
//	if err := nic.Check(); err != nil { t.Error(err) }
//
// # Data flow
//
// The card polls each queue's doorbell register. When it has changed the card reads the doorbell record, then the
// entries that are announced, carries them out in their order, and writes a completion for each signalled one. Keys
// name regions of one table: the card is at both ends of every queue pair. Ranks of one process share a card.
//
// # What it does by seed
//
// Hardware may do much that it seldom does. With a Seed, queues take turns in any order. A write lands in pieces of
// 64 bytes in any order, some of them late, whose sources are read one by one. Completions come late, their last
// word after the others. The card believes the register or the record, and reads entries when they are announced or
// when their turn comes, once or twice. With [Options].Relaxed a write may land behind a later one, as with relaxed
// ordering; with Early a completion comes before its bytes have landed, as it does on networks. Without a Seed all
// is done at once, in order.
//
// # Errors
//
// A wrong key, range or permission, an atomic at an odd address and an entry that no card takes end the queue with
// the completion that a card writes: see [mlx5.Syndrome]. All later entries, signalled or not, complete with
// [mlx5.Flushed]. [Queue.Fail] makes an entry fail, [Queue.Drop] loses rings, [Queue.Kill] takes the peer away and
// [Queue.Stall] stops the queue, which then fills.
//
// # What it checks
//
// A card would not tell of these mistakes, and carry out nonsense: [NIC.Check] does, and the queue stops.
//
//   - a register that names another queue pair, goes back, or announces more than the record does: the record was
//     written too late, or the receive queue's word was written;
//   - a record with more than 16 bits;
//   - more entries outstanding than the queue has room for, by the completions that were read;
//   - an entry with another index or another queue pair: it was not there yet, or was never written;
//   - an entry that changed before its completion was read;
//   - as many unsignalled entries in a row as the queue has room for: nothing would ever complete;
//   - a completion queue that is full, or of which more completions were taken than written.
//
// # Cost
//
// BenchmarkEntries measures what an entry costs. The floor is two cache lines for each entry, the entry and its
// bytes, and one for each completion. With a Seed, late pieces cost most: up to 8192 steps of a queue for one of 16.
//
// # What it is not
//
// Memory shows the last store to a register, and a card sees each: a queue needs a register of its own. Regions are
// the process's memory; it has no receive queue, reads nothing from peers, and takes entries of one block.
package softnic
