package control

import (
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

// NoteSize is the most that one rank can contribute to a gather.
const NoteSize = 1024

// PageSize is the number of bytes of a rank's page.
const PageSize = int(unsafe.Sizeof(page{}))

// AbortWord is where on a page the abort word stands, for kernels.
const AbortWord = unsafe.Offsetof(page{}.fault)

// page is what a rank shows. Peers write the abort word inside fault only, and in shared memory the
// decision on rank 0's page.
type page struct {
	fault  channel.Control
	notes  notes
	intent intent
	ballot ballot
}

func pageAt(mem []byte) *page {
	_ = mem[:PageSize]
	return (*page)(unsafe.Pointer(&mem[0]))
}

// notes are the two halves of a gather, by parity of the round.
type notes struct {
	round channel.Counter
	half  [2]half
}

type half struct {
	len  uint64
	data [NoteSize]byte
	_    [channel.Stride - 8]byte
}

// intent is what a rank wants of SetMask.
type intent struct {
	changed atomic.Uint64 // odd while target and set are being written
	target  atomic.Uint64 // the generation aimed at
	after   atomic.Uint64 // that of the last decision that the rank knew of
	set     rankset.Shared
	_       [channel.Stride - 24 - rankset.Words*8%channel.Stride]byte
}

func (i *intent) write(target, after uint64, set rankset.Set) {
	i.changed.Add(1)
	i.after.Store(after) // readers that see the target see it, too, even in between
	i.target.Store(target)
	i.set.Store(set)
	i.changed.Add(1)
}

// read returns what belongs together, or not ok.
func (i *intent) read() (target uint64, set rankset.Set, ok bool) {
	seen := i.changed.Load()
	target, set = i.target.Load(), i.set.Load()
	return target, set, seen&1 == 0 && i.changed.Load() == seen
}
