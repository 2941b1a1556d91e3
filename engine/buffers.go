package engine

import "sync/atomic"

// Buffers says what the buffers hold that operations receive into: which are free, and which batch lies in each of the others. So memory
// that a caller gives back to an operation is known for what it is: see [Buffers.Check].
//
// Put may be called from any goroutine. All else is for the owner's operations, of which one runs at a time.
type Buffers struct {
	all   []buffer
	last  uint32    // the generation that was given last
	size  uintptr   // of a buffer
	bases []uintptr // where the buffers begin; and where those began before whose content may still be held
}

// buffer is what a buffer holds.
type buffer struct {
	generation atomic.Uint32 // 0: it is free
	batch      uint64        // or noBatch
}

const (
	// noBatch is the batch of a buffer that is taken and whose content has not come.
	noBatch = ^uint64(0)
	// NoGeneration is the generation of no content of any buffer.
	NoGeneration = ^uint32(0)
)

// NewBuffers makes the books of n buffers. [Buffers.Place] says where they are.
func NewBuffers(n int) *Buffers { return &Buffers{all: make([]buffer, n)} }

// Len is the number of buffers.
func (b *Buffers) Len() int { return len(b.all) }

// Place says how large each buffer is, in bytes, and where they begin, one behind the other. Further bases are those where they were
// before, of which some may still be held.
func (b *Buffers) Place(size, base uintptr, before ...uintptr) {
	b.size = size
	b.bases = append(append(b.bases[:0], base), before...)
}

// Take takes the first free buffer, whose memory is the likeliest to be in a cache.
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

// Fill says that a batch comes into a buffer that was taken, by a number of the owner's, and returns its generation.
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

// Content is what memory holds.
type Content int

const (
	// Right content is what is asked for, or memory that is no buffer.
	Right Content = iota
	// Released content is that of a buffer that was put back.
	Released
	// Foreign content is another batch.
	Foreign
	// Later content is a later one of the same batch number.
	Later
)

// Check reports what memory holds, of so many bytes, which is to be of a batch and, unless that is 0, of a generation.
func (b *Buffers) Check(from, bytes uintptr, batch uint64, generation uint32) Content {
	to, all := from+bytes, b.size*uintptr(len(b.all))
	for _, base := range b.bases {
		if to <= base || from >= base+all || bytes == 0 {
			continue
		}
		for i := (max(from, base) - base) / b.size; i < uintptr(len(b.all)) && base+i*b.size < to; i++ {
			p := &b.all[i]
			switch g := p.generation.Load(); {
			case g == 0:
				return Released
			case p.batch != batch:
				return Foreign
			case generation != 0 && generation != g:
				return Later
			}
		}
	}
	return Right
}
