package control

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

// The parts of a page that nobody publishes. A fabric replicates them by itself.
const (
	// Record is the wait record, Words are those of a fault, and Said is how far the rank has said what others wait for:
	// together the status.
	Record Part = iota + partCount
	Words
	Said
	// Former is the notes of the round before the last one, for a view that has missed that.
	Former
)

// The status begins with the record, and ends with what was said. Words are between them.
const (
	recordWords = channel.Stride / 8
	saidFrom    = len(statusWords{}) - 2*channel.Stride/8
)

type statusWords [unsafe.Sizeof(channel.Status{}) / 8]atomic.Uint64

func (p *page) status() *statusWords { return (*statusWords)(unsafe.Pointer(&p.fault.Status)) }

// Waits is what a rank waits for, as far as one word says it.
type Waits [3]uint64

// WaitsFor is what the owner of a page waits for: the same as long as one wait lasts.
func WaitsFor(mem []byte) Waits {
	s := pageAt(mem).status()
	return Waits{s[0].Load(), s[1].Load(), s[3].Load()}
}

var le = binary.LittleEndian

// AppendPart encodes a part of a page as it is now. The page's owner calls it, or whoever else is the
// only one to write that part.
func AppendPart(b []byte, mem []byte, part Part) []byte {
	p := pageAt(mem)
	switch part {
	case Notes, Former:
		round := p.notes.round.Load()
		half := &p.notes.half[round&1]
		if part == Former {
			half = &p.notes.half[1-round&1]
		}
		b = le.AppendUint64(b, round)
		note, _ := half.get()
		return append(b, note...)
	case Intent:
		target, set, _ := p.intent.read()
		b = le.AppendUint64(b, target)
		b = le.AppendUint64(b, p.intent.after.Load())
		return append(AppendSet(b, set), channel.Text(p.intent.words[:])...)
	}
	for i := range p.status().of(part) {
		b = le.AppendUint64(b, p.status().of(part)[i].Load())
	}
	return b
}

func (s *statusWords) of(part Part) []atomic.Uint64 {
	switch part {
	case Record:
		return s[:recordWords]
	case Said:
		return s[saidFrom:]
	}
	return s[recordWords:saidFrom]
}

// errPart says that bytes are not what AppendPart makes.
var errPart = errors.New("malformed part of a page")

// SetPart makes a part of a view what AppendPart has encoded. Nobody else writes that part of the
// view.
func SetPart(view []byte, part Part, b []byte) error {
	p := pageAt(view)
	switch part {
	case Notes, Former:
		if len(b) < 8 || len(b) > 8+NoteSize {
			return errPart
		}
		round, note := le.Uint64(b), b[8:]
		seen := p.notes.round.Load()
		switch {
		case part == Notes && seen < round:
			p.notes.half[round&1].set(note)
			p.notes.round.Publish(round)
		case part == Former && seen+1 < round: // else it is there, and may be read
			p.notes.half[1-round&1].set(note)
		}
		return nil
	case Intent:
		set, words, ok := CutSet(b[min(16, len(b)):])
		if !ok || len(words) > objectionBytes {
			return errPart
		}
		p.intent.write(le.Uint64(b), le.Uint64(b[8:]), set, string(words))
		return nil
	case Record, Words, Said:
		to := p.status().of(part)
		if len(b) != 8*len(to) {
			return errPart
		}
		for i := range to {
			to[i].Store(le.Uint64(b[8*i:]))
		}
		return nil
	}
	return errPart
}

// AppendSet encodes a set of ranks.
func AppendSet(b []byte, set rankset.Set) []byte {
	for _, w := range set.Words() {
		b = le.AppendUint64(b, w)
	}
	return b
}

// CutSet decodes a set of ranks from the front of bytes.
func CutSet(b []byte) (set rankset.Set, rest []byte, ok bool) {
	var words [rankset.Words]uint64
	if len(b) < 8*len(words) {
		return set, nil, false
	}
	for i := range words {
		words[i] = le.Uint64(b[8*i:])
	}
	return rankset.FromWords(words), b[8*len(words):], true
}

// AbortPage sets the abort word of a page that this process maps, unless a fault of the same
// generation is there already.
func AbortPage(mem []byte, f channel.Fault) { pageAt(mem).fault.Abort(f) }

// Proposed is what the owner of a page wants of SetMask.
func Proposed(mem []byte) (target uint64, out rankset.Set) {
	target, out, _ = pageAt(mem).intent.read()
	return target, out
}
