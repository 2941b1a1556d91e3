package weft

import (
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/channel"
)

// noteSize is the most that one rank can contribute to an agreement.
const noteSize = 1024

// control is a rank's page of shared memory: all that its peers see of it beside windows. Only the abort word inside fault is written
// by others.
type control struct {
	fault channel.Control

	// The two halves of the agreement, by parity of the round; see agree.go.
	notes channel.Counter
	note  [2]struct {
		len  uint64
		data [noteSize]byte
		_    [channel.Stride - 8]byte
	}

	// What SetMask agrees on; see mask.go.
	mask intent
}

// intent is what a rank wants of SetMask.
type intent struct {
	changed channel.Counter // odd while the two words below are being written
	target  atomic.Uint64   // the generation aimed at
	set     atomic.Uint64   // the ranks to be left out
	_       [channel.Stride - 16]byte
}

func (i *intent) publish(target, set uint64) {
	i.changed.Add(1)
	i.target.Store(target)
	i.set.Store(set)
	i.changed.Add(1)
}

// read returns what belongs together, or not ok; seen says which word of the owner's it was.
func (i *intent) read() (seen, target, set uint64, ok bool) {
	seen = i.changed.Load()
	target, set = i.target.Load(), i.set.Load()
	return seen, target, set, seen&1 == 0 && i.changed.Load() == seen
}

const controlSize = int(unsafe.Sizeof(control{}))

func controlAt(mem []byte) *control {
	_ = mem[:controlSize]
	return (*control)(unsafe.Pointer(&mem[0]))
}
