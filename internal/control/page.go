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

// half is a note, in words that are atomic. Whoever takes part in a round has read it before it is written again;
// a rank that the others go on without may read it meanwhile, and then throws away what it has read.
type half struct {
	len  atomic.Uint64
	data [NoteSize / 8]atomic.Uint64
	_    [channel.Stride - 8]byte
}

func (h *half) set(note []byte) {
	note = note[:min(len(note), NoteSize)]
	h.len.Store(uint64(len(note)))
	for i := 0; i < len(note); i += 8 {
		var word [8]byte
		copy(word[:], note[i:])
		h.data[i/8].Store(le.Uint64(word[:]))
	}
}

// get returns the note, or not ok if it has more bytes than there is room for.
func (h *half) get() (note []byte, ok bool) {
	n := h.len.Load()
	if n > NoteSize {
		return nil, false
	}
	note = make([]byte, 0, n+7)
	for i := range (n + 7) / 8 {
		note = le.AppendUint64(note, h.data[i].Load())
	}
	return note[:n], true
}

// intent is what a rank wants of SetMask.
type intent struct {
	changed atomic.Uint64 // odd while the rest is being written
	target  atomic.Uint64 // the generation aimed at
	after   atomic.Uint64 // that of the last decision that the rank knew of
	set     rankset.Shared
	_       [channel.Stride - 24 - rankset.Words*8%channel.Stride]byte
	words   [objectionBytes / 8]atomic.Uint64 // see objection
}

const objectionBytes = 4 * channel.Stride

func (i *intent) write(target, after uint64, set rankset.Set, words string) {
	i.changed.Add(1)
	i.after.Store(after) // readers that see the target see it, too, even in between
	i.target.Store(target)
	i.set.Store(set)
	channel.PutText(i.words[:], words)
	i.changed.Add(1)
}

// read returns what belongs together, or not ok.
func (i *intent) read() (target uint64, set rankset.Set, ok bool) {
	seen := i.changed.Load()
	target, set = i.target.Load(), i.set.Load()
	return target, set, seen&1 == 0 && i.changed.Load() == seen
}

// objection is why the rank has given up the SetMask that aimed at the target, in words for all ranks; there are none
// if it has not, or if the reason is not theirs.
func (i *intent) objection() (target uint64, words string) {
	seen := i.changed.Load()
	if seen&1 != 0 || i.words[0].Load() == 0 {
		return 0, ""
	}
	target, words = i.target.Load(), channel.Text(i.words[:])
	if i.changed.Load() != seen {
		return 0, ""
	}
	return target, words
}
