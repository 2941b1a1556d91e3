package weft

import (
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

// noteSize is the most that one rank can contribute to an agreement.
const noteSize = 1024

// controlPage is a rank's page of shared memory: all that its peers see of it beside windows. Only the
// abort word inside fault is written by others, and rank 0's decided.
type controlPage struct {
	fault channel.Control

	// The two halves of the agreement, by parity of the round; see agree.go.
	notes channel.Counter
	note  [2]struct {
		len  uint64
		data [noteSize]byte
		_    [channel.Stride - 8]byte
	}

	// What SetMask agrees on; see mask.go.
	mask    intent
	rosters [2]rankset.Shared // the ranks that decisions of this rank's leave out
	decided atomic.Uint64     // on rank 0's page: the last decision
}

// intent is what a rank wants of SetMask.
type intent struct {
	changed atomic.Uint64  // odd while target and set are being written
	target  atomic.Uint64  // the generation aimed at
	set     rankset.Shared // the ranks to be left out
	_       [channel.Stride - 16 - RankSetWords*8%channel.Stride]byte
}

func (i *intent) publish(target uint64, set RankSet) {
	i.changed.Add(1)
	i.target.Store(target)
	i.set.Store(set)
	i.changed.Add(1)
}

// read returns what belongs together, or not ok.
func (i *intent) read() (target uint64, set RankSet, ok bool) {
	seen := i.changed.Load()
	target, set = i.target.Load(), i.set.Load()
	return target, set, seen&1 == 0 && i.changed.Load() == seen
}

const controlPageSize = int(unsafe.Sizeof(controlPage{}))

func controlPageAt(mem []byte) *controlPage {
	_ = mem[:controlPageSize]
	return (*controlPage)(unsafe.Pointer(&mem[0]))
}
