// Package handle gives C numbers to hold in place of Go's objects.
//
// A handle could be the address of a C struct with a magic number in it. To find out whether a
// struct was freed the library would have to read it, and it must not read freed memory. So a
// handle is a number that points nowhere,
//
//	magic 12 | kind 4 | generation 32 | slot 16
//
// and is looked up in a table. Any number at all can be looked up. The magic bits make it an
// address that no processor accepts, so that C code which follows a handle finds out at once, and
// no address can be taken for a handle. A slot's generation grows with each use; it comes round
// after four thousand million of them.
package handle

import (
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
)

// ErrInvalid is wrapped by errors about numbers that are no handle, or none any more.
var ErrInvalid = errors.New("invalid handle")

// ErrBusy is wrapped by the error about an object that another thread is at work on.
var ErrBusy = errors.New("busy")

// ErrFull is wrapped by the error about too many handles of a kind.
var ErrFull = errors.New("too many handles")

// Kind is the kind of object that a handle refers to.
type Kind uint8

// The kinds.
const (
	Comm Kind = iota
	Window
	EP
	Routing
	Received
	Work
	Group
	TokenCounter
	Executor
	Port
	PortMemory
	PortChannel
	kinds
)

var kindNames = [kinds]string{
	"weft_comm", "weft_window", "weft_ep", "weft_routing", "weft_received",
	"weft_work", "weft_group", "weft_ep_token_counter", "weft_executor", "weft_port",
	"weft_port_memory", "weft_port_channel",
}

// String is the C type's name.
func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kindNames[k]
}

const (
	magic           = 0xEF7
	magicShift      = 52
	kindShift       = 48
	generationShift = 16
	// Max is how many handles of a kind can be open at once.
	Max = 1 << 16
)

// Table is the open handles of a kind.
type Table[T any] struct {
	kind   Kind
	chunks [Max / chunkSlots]atomic.Pointer[chunk[T]] // made as they are needed, and kept: lookups take no lock
	mu     sync.Mutex
	made   int // slots
	free   []int
}

const chunkSlots = 256

type chunk[T any] [chunkSlots]slot[T]

// slot is written under the table's lock and read without it: a reader that finds the same id
// before and after reading the other members has read those of that id.
type slot[T any] struct {
	id         atomic.Uint64 // 0: the slot is free
	object     atomic.Pointer[T]
	gate       atomic.Pointer[sync.Mutex]
	generation uint32
}

// NewTable makes an empty table.
func NewTable[T any](k Kind) *Table[T] { return &Table[T]{kind: k} }

// Add gives an object a handle. A caller that works on it by [Table.Enter] holds the gate, which
// several objects may share.
func (t *Table[T]) Add(object *T, gate *sync.Mutex) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free) == 0 {
		if t.made == Max {
			return 0, fmt.Errorf("%w: %d of %s are open; destroy or release some", ErrFull, Max, t.kind)
		}
		t.chunks[t.made/chunkSlots].Store(new(chunk[T]))
		for i := range chunkSlots {
			t.free = append(t.free, t.made+chunkSlots-1-i) // the first on top
		}
		t.made += chunkSlots
	}
	i := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	s := &t.chunks[i/chunkSlots].Load()[i%chunkSlots]
	s.generation++
	id := uint64(magic)<<magicShift | uint64(t.kind)<<kindShift | uint64(s.generation)<<generationShift | uint64(i)
	s.object.Store(object)
	s.gate.Store(gate)
	s.id.Store(id)
	return id, nil
}

// Get is the object of a handle.
func (t *Table[T]) Get(id uint64) (*T, error) {
	if s := t.find(id); s != nil {
		if o := s.object.Load(); s.id.Load() == id {
			return o, nil
		}
	}
	return nil, t.refusal(id)
}

// Enter returns the object of a handle for the caller alone, which unlocks the gate at the end. C
// programs need not serialise their calls, and the objects behind handles rely on that. A second
// caller is refused: if it waited, and the first waited for it in turn, neither would ever end.
func (t *Table[T]) Enter(id uint64) (*T, *sync.Mutex, error) {
	s := t.find(id)
	if s == nil {
		return nil, nil, t.refusal(id)
	}
	o, gate := s.object.Load(), s.gate.Load()
	if s.id.Load() != id {
		return nil, nil, t.refusal(id)
	}
	if !gate.TryLock() {
		return nil, nil, fmt.Errorf("%w: another thread is inside a call on this %s, or on the object "+
			"that it was made from", ErrBusy, t.kind)
	}
	if s.id.Load() != id { // it went before the gate was ours
		gate.Unlock()
		return nil, nil, t.refusal(id)
	}
	return o, gate, nil
}

// find is the slot that a handle has now.
func (t *Table[T]) find(id uint64) *slot[T] {
	i := id & (Max - 1)
	c := t.chunks[i/chunkSlots].Load()
	if c == nil || c[i%chunkSlots].id.Load() != id || id == 0 {
		return nil
	}
	return &c[i%chunkSlots]
}

// Remove forgets a handle, and reports whether it was open.
func (t *Table[T]) Remove(id uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.find(id)
	if s == nil {
		return false
	}
	s.id.Store(0)
	s.object.Store(nil)
	s.gate.Store(nil)
	t.free = append(t.free, int(id&(Max-1)))
	return true
}

// All goes through the open handles. It may be used while others add and remove some.
func (t *Table[T]) All() iter.Seq2[uint64, *T] {
	return func(yield func(uint64, *T) bool) {
		for i := range t.chunks {
			c := t.chunks[i].Load()
			if c == nil {
				return
			}
			for j := range c {
				s := &c[j]
				id := s.id.Load()
				if o := s.object.Load(); id != 0 && s.id.Load() == id && !yield(id, o) {
					return
				}
			}
		}
	}
}

// refusal is the error for a number that is no open handle of the table.
func (t *Table[T]) refusal(id uint64) error {
	kind := Kind(id >> kindShift & 0xf)
	switch {
	case id == 0:
		return fmt.Errorf("%w: the %s is NULL", ErrInvalid, t.kind)
	case id>>magicShift != magic || kind >= kinds:
		return fmt.Errorf("%w: %#x is no %s of this library; pass a handle that a call of the same process returned",
			ErrInvalid, id, t.kind)
	case kind != t.kind:
		return fmt.Errorf("%w: %#x is a %s where a %s belongs", ErrInvalid, id, kind, t.kind)
	}
	return fmt.Errorf("%w: the %s %#x was destroyed or released before", ErrInvalid, t.kind, id)
}
