// Package host has the parts of operations between ranks that share memory, and between such on several hosts: how
// ranks meet, how a refusal reaches all of them, and how a rank finds the operands of another. Package collective and
// the host engine of package ep use it.
//
// # Data flow
//
// Invariant: a rank writes its own memory only. An owner (a group, say) has a window; a rank's part of
// it is its pad:
//
//	header 0..3   the number of a round, the call, 40 bytes of payload: one cache line each, 128 bytes
//	              apart
//	left          the round that opened the last operation that the rank has left
//	ring          longer payloads
//	own           what the owner uses itself
//
// Ranks talk in [Rounds], which all of them number alike. In a round a rank puts its payload into the
// header, or into the ring if it is long; publishes the round's number in the header; waits until it
// sees that number in the headers of all ranks; and reads their payloads.
//
// The round that opens an operation also carries the call, packed in a word. All ranks compare the
// same words, so ranks that make different calls all return [weft.ErrMismatch]. A second word, the choice,
// is compared in the same way: it says how to do the call. A rank whose
// arguments are wrong says so in place of a call ([Rounds.Refuse]), and all ranks return that.
//
//	begin    Begin
//	say      Fill or PutOperands, then Open; or Refuse
//	meet     AwaitCalls
//	read     Payload; Operand and Resolve
//	leave    Leave, if peers wait for it by AwaitLeft or Stage.Claim; or one more round
//
// An operation in two calls ends the first one behind Open, and begins the second one with Begin: if
// ranks were masked between them, Last is no longer the round that Open returned.
//
// # Order
//
// The number is published with a store that releases everything before it, and read with a load that
// acquires. A rank fills its header for round s when it has read all of round s-2. So to publish s is
// to say "I have read s-2", and a rank that fills the header for round s, having read s-2 of every
// rank, knows that every rank has read s-4. That is the round whose header it takes: four headers need
// no other flow control, three would.
//
// Payloads of the three rounds between may still be read. No payload is longer than a share of the
// ring, an eighth of it, so the next one never reaches them.
//
// Numbers only grow ([channel.Sequence]): after a failure they go on from the communicator's next
// generation, above all that was published before. Nothing is reset.
//
// # Between hosts
//
// What a rank publishes, package mirror shows each other host: the header, and the payload or the part of it that the
// host's ranks need ([Rounds.Limit]). One rank of that host, the keeper, has the mirror; all of its host read it. So
// payloads cross the network once for each host, and ranks read a round in the same way, wherever it comes from.
//
// Invariant: who publishes round s has read s-2 of all ranks, by mirrors too; so the argument above holds for each
// mirror's headers and ring. What a rank sends must stay until it has left: [Rounds.Await] of round s also waits
// until the writes of round s-2 have completed, and a rank fills its header for s when it has awaited s-2.
//
// Nobody moves a mirror but its keeper, in waits. It waits for each round that the ranks of its host wait for, so
// none of them waits in vain, unless the keeper stands still. A rank therefore shows how far it has come
// ([channel.Waiter.Say]), and a wait that ends at its deadline blames the keeper for what that has not passed on.
// [Rounds.Await] does not return before all that this rank says is with the fabric.
//
// [Rounds.Show] adds ranges of the own bytes to a round. [Rounds.Ship] sends parts of other windows, with a counter of
// the own bytes that says how far they have come: rounds do not wait for these, [Rounds.AwaitTold] does.
//
// After SetMask keepers are chosen anew, and each rank's mirrors begin with what is said then: all numbers are higher.
//
// # Operands
//
// An [OperandRef] says where an operand lies: in which window, at which offset, how far apart its rows
// are. A header has room for two. Operands that lie in no window are copied to a [Stage] first. A
// stage may be written again when all peers have left the operation that last used it. The next
// operation to use it asks for that, and not the end of the last one.
//
// # Floor
//
// One trip of a cache line from core to core, and taking the line back before it is written again.
package host
