// Package host is what operations between ranks that share memory have in common: how ranks meet,
// how a refusal reaches all of them, and how one finds the operands of another. Packages collective
// and ep are made of it.
//
// # Data flow
//
// Every rank writes its own memory only, and reads everyone's. An owner (a group, say) has a window;
// a rank's part of it is its [Pad]:
//
//	slot 0..3   the number of a round, the call, 40 bytes of payload: one cache line each, 128 bytes
//	            apart
//	ring        longer payloads
//
// Ranks talk in [Rounds], which all of them number alike. In a round a rank puts its payload in the
// ring, or in the slot if it is short; publishes the round's number in the slot; waits until it sees
// that number in everyone's slot; and reads their payloads. The first round of an operation also
// carries the call, packed in a word. All ranks compare the same words: ranks that make different
// calls all return [weft.ErrMismatch]. A rank whose arguments are wrong says so in its slot, in
// place of a call ([Rounds.Refuse]), and all return that.
//
// # Order
//
// The number is published with a store that releases everything before it, and read with a load that
// acquires. A rank may publish one round ahead of what it has read: it fills its slot for round s
// once it has read all of round s-2. So to publish s is to say "I have read s-2", and a rank that is
// about to fill the slot for round s, having read s-2 of everyone, knows that everyone has read s-4.
// That is the round whose slot it takes: four slots need no other flow control, three would.
//
// Payloads of the three rounds between may still be read. No payload is longer than a share of the
// ring, an eighth of it, so the next one never reaches them. Numbers only grow ([channel.Sequence]):
// after a failure they go on from the communicator's next generation, above all that was published
// before.
//
// # Operands
//
// An [OperandRef] says where an operand stands: in which window, at which offset, how far apart its
// rows are. Operands that lie in no window are copied to a [Stage] first. A stage may be written
// again when all peers have finished what last used it. That is asked when it is needed, and not
// when the operation ends.
//
// # Floor
//
// One trip of a cache line from core to core, and taking the line back before it is written again.
package host
