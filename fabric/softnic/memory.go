package softnic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/fabric/mlx5"
)

// ErrInvalid is wrapped by errors of arguments.
var ErrInvalid = errors.New("softnic: invalid argument")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Memory is what a queue pair and its writer share. Each part is aligned to 8 bytes.
type Memory struct {
	// Send has a power of two of entries, at most [mlx5.MaxDepth].
	Send []byte
	// Completions has a power of two of completions, at least as many as Send has entries: after an error every
	// entry has one.
	Completions []byte
	// Record is the doorbell record, of 8 bytes: the receive queue's word, and the send queue's.
	Record []byte
	// Consumer is the completion queue's record, whose first 4 bytes are used, of 8.
	Consumer []byte
	// Register is the doorbell register: 8 bytes, or more than [mlx5.RegisterHalf] for writers that alternate.
	Register []byte
}

// check refuses memory of the wrong shape.
func (m *Memory) check() error {
	for _, part := range []struct {
		name        string
		bytes       []byte
		unit, least int
	}{
		{"send queue", m.Send, mlx5.EntryBytes, 1},
		{"completion queue", m.Completions, mlx5.CompletionBytes, len(m.Send) / mlx5.EntryBytes},
		{"record", m.Record, 8, 1},
		{"consumer record", m.Consumer, 8, 1},
		{"register", m.Register, 8, 1},
	} {
		n := len(part.bytes) / part.unit
		if n < part.least || len(part.bytes)%part.unit != 0 {
			return invalid("a %s of %d bytes; want at least %d times %d", part.name, len(part.bytes), part.least, part.unit)
		}
		if uintptr(unsafe.Pointer(&part.bytes[0]))%8 != 0 {
			return invalid("the %s is not aligned to 8 bytes", part.name)
		}
	}
	for name, n := range map[string]int{
		"send": len(m.Send) / mlx5.EntryBytes, "completion": len(m.Completions) / mlx5.CompletionBytes,
	} {
		if bits.OnesCount(uint(n)) != 1 || n > 2*mlx5.MaxDepth || name == "send" && n > mlx5.MaxDepth {
			return invalid("a %s queue of %d; want a power of two up to %d", name, n, mlx5.MaxDepth)
		}
	}
	return nil
}

// Format makes the memory that of a new queue pair, as a driver does.
func (m *Memory) Format() {
	for i := range m.Send {
		m.Send[i] = 0xff // index 0xffff is that of no entry of the first lap
	}
	clear(m.Completions)
	for i := mlx5.OwnerAt; i < len(m.Completions); i += mlx5.CompletionBytes {
		m.Completions[i] = mlx5.FreshOwner
	}
	clear(m.Record)
	clear(m.Consumer)
	clear(m.Register)
}

// word4 and word8 are words of memory that others change.
func word4(b []byte, at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b[at])) }

func word8(b []byte, at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[at])) }

// aligned reports whether memory begins at a multiple of n bytes.
func aligned(b []byte, n uintptr) bool { return uintptr(unsafe.Pointer(&b[0]))%n == 0 }

// move copies memory that others may read or write meanwhile: word by word where both sides allow it.
func move(to, from []byte) {
	for _, w := range []int{8, 4} {
		if len(to) < w || !aligned(to, uintptr(w)) || !aligned(from, uintptr(w)) {
			continue
		}
		for ; len(to) >= w; to, from = to[w:], from[w:] {
			if w == 8 {
				word8(to, 0).Store(word8(from, 0).Load())
			} else {
				word4(to, 0).Store(word4(from, 0).Load())
			}
		}
		if len(to) == 0 {
			return
		}
	}
	copy(to, from)
}

// store writes a payload that the card itself holds, in one piece where it is a word.
func store(to, from []byte) {
	switch {
	case len(to) == 8 && aligned(to, 8):
		word8(to, 0).Store(binary.NativeEndian.Uint64(from))
	case len(to) == 4 && aligned(to, 4):
		word4(to, 0).Store(binary.NativeEndian.Uint32(from))
	default:
		copy(to, from)
	}
}
