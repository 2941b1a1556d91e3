package engine

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Buffers knows the content of receive buffers: which are free, and which batch lies in each of the
// others. An operation can therefore check memory that a caller passes back: see [Buffers.Check].
//
// Put may be called from any goroutine. All other methods are for the owner's operations, which run
// one at a time. A [Shelf] looks from any goroutine.
type Buffers struct {
	all   []buffer
	last  uint32 // the generation that was given last
	where atomic.Pointer[location]
}

// location is the addresses of buffers.
type location struct {
	size  uintptr   // of a buffer
	all   uintptr   // of all of them
	bases []uintptr // the addresses of the buffers; and former addresses whose content may still be held
}

// buffer is the content of a buffer.
type buffer struct {
	generation atomic.Uint32 // 0: it is free
	batch      uint64        // or noBatch
}

const (
	// noBatch is the batch of a buffer that is taken and not yet filled.
	noBatch = ^uint64(0)
	// NoGeneration is the generation of no content of any buffer.
	NoGeneration = ^uint32(0)
)

// NewBuffers makes the books of n buffers. [Buffers.Locate] gives them addresses.
func NewBuffers(n int) *Buffers {
	b := &Buffers{all: make([]buffer, n)}
	b.where.Store(&location{})
	return b
}

// Len is the number of buffers.
func (b *Buffers) Len() int { return len(b.all) }

// Locate says how large each buffer is, in bytes, and where they begin, one behind the other.
// Further bases are former ones, of which some buffers may still be held.
func (b *Buffers) Locate(size, base uintptr, before ...uintptr) {
	b.where.Store(&location{size: size, all: size * uintptr(len(b.all)), bases: append([]uintptr{base}, before...)})
}

// Take takes the first free buffer, because that memory is most likely in a cache.
func (b *Buffers) Take() (i int, ok bool) {
	for i := range b.all {
		if b.TakeAt(i) {
			return i, true
		}
	}
	return 0, false
}

// TakeAt takes a buffer, if it is free.
func (b *Buffers) TakeAt(i int) bool {
	p := &b.all[i]
	if p.generation.Load() != 0 {
		return false
	}
	if b.last++; b.last == NoGeneration {
		b.last = 1
	}
	p.batch = noBatch
	p.generation.Store(b.last)
	return true
}

// Fill says that a batch comes into a buffer that was taken, by a number of the owner's, and
// returns its generation.
func (b *Buffers) Fill(i int, batch uint64) (generation uint32) {
	p := &b.all[i]
	p.batch = batch
	return p.generation.Load()
}

// Put gives a buffer back.
func (b *Buffers) Put(i int) { b.all[i].generation.Store(0) }

// Held reports whether a buffer is taken.
func (b *Buffers) Held(i int) bool { return b.all[i].generation.Load() != 0 }

// AnyHeld reports whether a buffer is taken.
func (b *Buffers) AnyHeld() bool {
	for i := range b.all {
		if b.Held(i) {
			return true
		}
	}
	return false
}

// Content is the content of memory.
type Content int

const (
	// None is the content of memory that is no buffer.
	None Content = iota
	// Right content is the expected batch.
	Right
	// Released content is that of a buffer that was put back.
	Released
	// Foreign content is another batch.
	Foreign
	// Later content is a later one of the same batch number.
	Later
)

// Check compares the content of memory, of so many bytes, with a batch and, unless that is 0, a
// generation.
func (b *Buffers) Check(from, bytes uintptr, batch uint64, generation uint32) Content {
	at, found := b.where.Load(), None
	for _, base := range at.bases {
		first, end := at.overlap(base, from, bytes)
		for i := first; i < end; i++ {
			p := &b.all[i]
			switch g := p.generation.Load(); {
			case g == 0:
				return Released
			case p.batch != batch:
				return Foreign
			case generation != 0 && generation != g:
				return Later
			}
			found = Right
		}
	}
	return found
}

// hold is Check for memory of another owner: every batch is foreign.
func (b *Buffers) hold(from, bytes uintptr) Content {
	at, found := b.where.Load(), None
	for _, base := range at.bases {
		first, end := at.overlap(base, from, bytes)
		for i := first; i < end; i++ {
			if b.all[i].generation.Load() == 0 {
				return Released
			}
			found = Foreign
		}
	}
	return found
}

// overlap is which of the buffers from a base on overlap memory: the first, and the one behind the
// last.
func (l *location) overlap(base, from, bytes uintptr) (first, end uintptr) {
	to := from + bytes
	if to <= base || from >= base+l.all || bytes == 0 {
		return 0, 0
	}
	return (max(from, base) - base) / l.size, (min(to, base+l.all) - base + l.size - 1) / l.size
}

// Shelf has the buffers of several owners, so that each knows memory of the others'. It may be used
// from any goroutine.
type Shelf struct {
	changing sync.Mutex
	all      atomic.Pointer[[]*Buffers] // is replaced, never changed: operations look without a lock
}

// Add puts buffers on the shelf.
func (s *Shelf) Add(b *Buffers) { s.change(func(all []*Buffers) []*Buffers { return append(all, b) }) }

// Remove takes buffers off the shelf, if they are on it: before their memory becomes anything else.
func (s *Shelf) Remove(b *Buffers) {
	s.change(func(all []*Buffers) []*Buffers {
		return slices.DeleteFunc(all, func(o *Buffers) bool { return o == b })
	})
}

func (s *Shelf) change(to func([]*Buffers) []*Buffers) {
	s.changing.Lock()
	defer s.changing.Unlock()
	var all []*Buffers
	if before := s.all.Load(); before != nil {
		all = slices.Clone(*before)
	}
	all = to(all)
	s.all.Store(&all)
}

// Check finds the content of memory, of so many bytes, in the buffers of other owners: [Foreign]
// content, [Released] or [None].
func (s *Shelf) Check(own *Buffers, from, bytes uintptr) Content {
	all := s.all.Load()
	if all == nil {
		return None
	}
	for _, b := range *all {
		if b == own {
			continue
		}
		if c := b.hold(from, bytes); c != None {
			return c
		}
	}
	return None
}
