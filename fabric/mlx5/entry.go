package mlx5

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrInvalid is wrapped by errors of entries and completions that no card takes or writes.
var ErrInvalid = errors.New("mlx5: invalid")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

func (o Opcode) String() string {
	switch o {
	case Nop:
		return "no operation"
	case Write:
		return "write"
	case WriteImmediate:
		return "write with immediate"
	case CompareSwap:
		return "compare and swap"
	case FetchAdd:
		return "fetch and add"
	case MaskedFetchAdd:
		return "masked fetch and add"
	}
	return fmt.Sprintf("opcode %#x", uint8(o))
}

// atomic reports whether the entry has operands and a result.
func (o Opcode) atomic() bool { return o == CompareSwap || o == FetchAdd || o == MaskedFetchAdd }

// A Range is memory as a card names it.
type Range struct {
	Address uint64
	Bytes   uint32 // at most MaxMessage; 0 in a remote range, whose length follows from the entry
	Key     uint32
}

// Entry is an entry of a send queue, of one block.
type Entry struct {
	Index     uint16
	Opcode    Opcode
	Modifier  uint8
	Queue     uint32 // of 24 bits
	Flags     Flags
	Immediate uint32
	Remote    Range
	// Local is the source of a write, or where the old value of an atomic goes. A write of 0 bytes has no data segment.
	Local Range
	// Inline is the payload of a write, if it lies in the entry: 1 to MaxInline bytes.
	Inline []byte
	// Add is the operand of an addition, or what CompareSwap stores. Compare is what that compares with, or the
	// boundary of a masked addition: its bits are the last of their fields, from which nothing is carried.
	Add, Compare uint64
}

// Width is how many bytes of memory an atomic changes.
func (e *Entry) Width() int {
	if e.Opcode == MaskedFetchAdd && e.Modifier == Masked4 {
		return 4
	}
	return 8
}

// Segments is how many segments the entry has.
func (e *Entry) Segments() int {
	switch {
	case e.Opcode == Nop:
		return 1
	case e.Opcode.atomic():
		return 4
	case len(e.Inline) > 0:
		return 2 + (4+len(e.Inline)+SegmentBytes-1)/SegmentBytes
	case e.Local.Bytes == 0:
		return 2
	}
	return 3
}

var order = binary.BigEndian

// check refuses what does not fit in an entry of one block.
func (e *Entry) check() error {
	switch e.Opcode {
	case Nop, Write, WriteImmediate, CompareSwap, FetchAdd:
		if e.Modifier != 0 {
			return invalid("a %s has no modifier, and this one has %#x", e.Opcode, e.Modifier)
		}
	case MaskedFetchAdd:
		if e.Modifier != Masked4 && e.Modifier != Masked8 {
			return invalid("a %s has modifier %d or %d, not %d", e.Opcode, Masked4, Masked8, e.Modifier)
		}
		if e.Modifier == Masked4 && (e.Add>>32 != 0 || e.Compare>>32 != 0) {
			return invalid("the operands of 4 bytes are %#x and %#x", e.Add, e.Compare)
		}
	default:
		return invalid("%s is not known", e.Opcode)
	}
	switch {
	case e.Queue > QueueMask:
		return invalid("queue pair %#x has more than 24 bits", e.Queue)
	case len(e.Inline) > MaxInline:
		return invalid("%d bytes inline; an entry of one block has room for %d", len(e.Inline), MaxInline)
	case e.Local.Bytes > MaxMessage:
		return invalid("a write of %d bytes; at most %d go in one", e.Local.Bytes, MaxMessage)
	case e.Opcode.atomic() && e.Local.Bytes != uint32(e.Width()):
		return invalid("the result of an atomic of %d bytes has %d", e.Width(), e.Local.Bytes)
	}
	return nil
}

// Encode writes the entry. Bytes behind its segments stay as they are.
func (e *Entry) Encode(to *[EntryBytes]byte) error {
	if err := e.check(); err != nil {
		return err
	}
	segments := e.Segments()
	clear(to[:segments*SegmentBytes])
	order.PutUint32(to[ControlAt:], uint32(e.Modifier)<<24|uint32(e.Index)<<8|uint32(e.Opcode))
	order.PutUint32(to[QueueAt:], e.Queue<<8|uint32(segments))
	to[FlagsAt] = byte(e.Flags)
	order.PutUint32(to[ImmediateAt:], e.Immediate)
	if segments == 1 {
		return nil
	}
	order.PutUint64(to[RemoteAt:], e.Remote.Address)
	order.PutUint32(to[RemoteKeyAt:], e.Remote.Key)
	switch {
	case e.Opcode.atomic() && e.Width() == 4:
		order.PutUint32(to[DataAt:], uint32(e.Add))
		order.PutUint32(to[DataKeyAt:], uint32(e.Compare))
		e.Local.encode(to[ResultAt:])
	case e.Opcode.atomic():
		order.PutUint64(to[DataAt:], e.Add)
		order.PutUint64(to[DataAddress:], e.Compare)
		e.Local.encode(to[ResultAt:])
	case len(e.Inline) > 0:
		order.PutUint32(to[DataAt:], uint32(len(e.Inline))|InlineBit)
		copy(to[inlineFromAt:], e.Inline)
	case segments == 3:
		e.Local.encode(to[DataAt:])
	}
	return nil
}

// encode writes a data segment.
func (r Range) encode(to []byte) {
	order.PutUint32(to, r.Bytes)
	order.PutUint32(to[4:], r.Key)
	order.PutUint64(to[8:], r.Address)
}

func decodeRange(from []byte) Range {
	return Range{Bytes: order.Uint32(from), Key: order.Uint32(from[4:]), Address: order.Uint64(from[8:])}
}

// Header is what the first 8 bytes of an entry say, which [Decode] does not check: the index and the queue pair.
func Header(from *[EntryBytes]byte) (index uint16, queue uint32) {
	return uint16(order.Uint32(from[ControlAt:]) >> 8), order.Uint32(from[QueueAt:]) >> 8
}

// Decode reads an entry. Its Inline lies in from. An entry that Encode would not write is refused, as a card
// refuses it.
func Decode(from *[EntryBytes]byte) (Entry, error) {
	control, queue := order.Uint32(from[ControlAt:]), order.Uint32(from[QueueAt:])
	e := Entry{
		Index: uint16(control >> 8), Opcode: Opcode(control), Modifier: uint8(control >> 24), Queue: queue >> 8,
		Flags: Flags(from[FlagsAt]), Immediate: order.Uint32(from[ImmediateAt:]),
	}
	segments := int(queue & segmentMask)
	if segments > 1 {
		e.Remote = Range{Address: order.Uint64(from[RemoteAt:]), Key: order.Uint32(from[RemoteKeyAt:])}
	}
	switch {
	case e.Opcode == Nop:
	case e.Opcode.atomic() && e.Width() == 4:
		e.Add, e.Compare = uint64(order.Uint32(from[DataAt:])), uint64(order.Uint32(from[DataKeyAt:]))
		e.Local = decodeRange(from[ResultAt:])
	case e.Opcode.atomic():
		e.Add, e.Compare = order.Uint64(from[DataAt:]), order.Uint64(from[DataAddress:])
		e.Local = decodeRange(from[ResultAt:])
	case segments > 2:
		count := order.Uint32(from[DataAt:])
		if count&InlineBit == 0 {
			e.Local = decodeRange(from[DataAt:])
			if count == 0 { // which a card takes for 2^31
				return e, invalid("a data segment of 0 bytes")
			}
			break
		}
		n := int(count &^ InlineBit)
		if n == 0 || n > MaxInline {
			return e, invalid("%d bytes inline; an entry of one block has room for 1 to %d", n, MaxInline)
		}
		e.Inline = from[inlineFromAt:][:n:n]
	}
	if err := e.check(); err != nil {
		return e, err
	}
	if want := e.Segments(); segments != want {
		return e, invalid("a %s with %d segments; it has %d", e.Opcode, segments, want)
	}
	return e, nil
}
