// Package handle gives C numbers to hold in place of Go's objects.
//
// A handle could be the address of a C struct with a magic number in it. But to tell a struct that was freed from one that was not, it would have to be read,
// and reading freed memory is what is to be avoided. So a handle is a number that points nowhere,
//
//	magic 12 | kind 4 | generation 32 | slot 16
//
// and is looked up in a table. Any number at all can be looked up. The magic bits make it an address that no processor accepts, so that C code which follows
// a handle finds out at once, and no address can be taken for a handle. A slot's generation grows with each use; it comes round after four
// thousand million of them.
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

// ErrFull is wrapped by the error about too many handles of a kind.
var ErrFull = errors.New("too many handles")

// Kind is what a handle stands for.
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
	kinds
)

var kindNames = [kinds]string{"weft_comm", "weft_window", "weft_ep", "weft_routing", "weft_received", "weft_work", "weft_group"}

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
	kind  Kind
	mu    sync.Mutex
	slots atomic.Pointer[[]*slot[T]] // replaced when it grows; lookups take no lock
	free  []int
}

type slot[T any] struct {
	entry      atomic.Pointer[entry[T]]
	generation uint32
}

type entry[T any] struct {
	id     uint64
	object *T
}

// NewTable makes an empty table.
func NewTable[T any](k Kind) *Table[T] {
	t := &Table[T]{kind: k}
	t.slots.Store(new([]*slot[T]))
	return t
}

// Add gives an object a handle.
func (t *Table[T]) Add(object *T) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := *t.slots.Load()
	if len(t.free) == 0 {
		n := len(slots)
		if n == Max {
			return 0, fmt.Errorf("%w: %d of %s are open; destroy or release some", ErrFull, n, t.kind)
		}
		grown := append(make([]*slot[T], 0, max(16, 2*n)), slots...)
		for i := n; i < cap(grown); i++ {
			grown = append(grown, &slot[T]{})
			t.free = append(t.free, cap(grown)-1-(i-n))
		}
		t.slots.Store(&grown)
		slots = grown
	}
	i := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	s := slots[i]
	s.generation++
	id := uint64(magic)<<magicShift | uint64(t.kind)<<kindShift | uint64(s.generation)<<generationShift | uint64(i)
	s.entry.Store(&entry[T]{id: id, object: object})
	return id, nil
}

// Get is the object of a handle.
func (t *Table[T]) Get(id uint64) (*T, error) {
	slots := *t.slots.Load()
	if i := int(id & (Max - 1)); i < len(slots) {
		if e := slots[i].entry.Load(); e != nil && e.id == id {
			return e.object, nil
		}
	}
	return nil, t.refusal(id)
}

// Remove forgets a handle, and reports whether it was open.
func (t *Table[T]) Remove(id uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := *t.slots.Load()
	i := int(id & (Max - 1))
	if i >= len(slots) {
		return false
	}
	e := slots[i].entry.Load()
	if e == nil || e.id != id {
		return false
	}
	slots[i].entry.Store(nil)
	t.free = append(t.free, i)
	return true
}

// All goes through the open handles. It may be used while others add and remove some.
func (t *Table[T]) All() iter.Seq2[uint64, *T] {
	return func(yield func(uint64, *T) bool) {
		for _, s := range *t.slots.Load() {
			if e := s.entry.Load(); e != nil && !yield(e.id, e.object) {
				return
			}
		}
	}
}

// refusal says what is wrong with a number that is no open handle of the table.
func (t *Table[T]) refusal(id uint64) error {
	kind := Kind(id >> kindShift & 0xf)
	switch {
	case id == 0:
		return fmt.Errorf("%w: the %s is NULL", ErrInvalid, t.kind)
	case id>>magicShift != magic || kind >= kinds:
		return fmt.Errorf("%w: %#x is no %s of this library; pass what a call of the same process returned", ErrInvalid, id, t.kind)
	case kind != t.kind:
		return fmt.Errorf("%w: %#x is a %s where a %s belongs", ErrInvalid, id, kind, t.kind)
	}
	return fmt.Errorf("%w: the %s %#x was destroyed or released before", ErrInvalid, t.kind, id)
}
