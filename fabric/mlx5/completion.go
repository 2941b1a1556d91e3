package mlx5

import "fmt"

func (s Syndrome) String() string {
	if text, ok := syndromes[s]; ok {
		return text
	}
	return fmt.Sprintf("syndrome %#x", uint8(s))
}

// Completion is an entry of a completion queue, of a send queue.
type Completion struct {
	Kind     CompletionKind
	Opcode   Opcode // of the entry
	Queue    uint32 // of 24 bits
	Index    uint16 // of the entry; all before it are complete, too
	Syndrome Syndrome
	Vendor   uint8
}

// CompletionError is an entry that failed.
type CompletionError struct {
	Completion
}

func (e *CompletionError) Error() string {
	return fmt.Sprintf("mlx5: entry %#x of queue pair %#x failed: %s (syndrome %#x, vendor's %#x)", e.Index, e.Queue,
		e.Syndrome, uint8(e.Syndrome), e.Vendor)
}

// Err is a *[CompletionError], or nil if the entry did not fail.
func (c Completion) Err() error {
	if c.Kind == KindDone {
		return nil
	}
	return &CompletionError{c}
}

// Owner is the owner bit of completion n of a queue of 2^log, as its writer sets it.
func Owner(n uint64, log uint) uint8 { return uint8(n >> log & 1) }

// Encode writes completion n of a queue of 2^log. The writer of a queue that is read meanwhile stores the word at
// StatusAt last.
func (c *Completion) Encode(to *[CompletionBytes]byte, n uint64, log uint) {
	clear(to[:])
	if c.Kind != KindDone {
		to[VendorAt], to[SyndromeAt] = c.Vendor, byte(c.Syndrome)
	}
	order.PutUint32(to[CompletionQueueAt:], uint32(c.Opcode)<<24|c.Queue&QueueMask)
	order.PutUint16(to[StatusAt:], c.Index)
	to[OwnerAt] = byte(c.Kind)<<4 | Owner(n, log)
}

// DecodeCompletion reads completion n of a queue of 2^log, and reports whether it has been written.
func DecodeCompletion(from *[CompletionBytes]byte, n uint64, log uint) (c Completion, written bool) {
	last := from[OwnerAt]
	if last&1 != Owner(n, log) || CompletionKind(last>>4) == KindNone {
		return Completion{}, false
	}
	queue := order.Uint32(from[CompletionQueueAt:])
	c = Completion{
		Kind: CompletionKind(last >> 4), Opcode: Opcode(queue >> 24), Queue: queue & QueueMask,
		Index: order.Uint16(from[StatusAt:]),
	}
	if c.Kind != KindDone {
		c.Syndrome, c.Vendor = Syndrome(from[SyndromeAt]), from[VendorAt]
	}
	return c, true
}
