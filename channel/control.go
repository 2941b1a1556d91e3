package channel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/bootstrap"
)

// ControlSize is the number of bytes of a [Control].
const ControlSize = 9 * Stride

// Control is the part of a rank's shared memory that its peers may write, the abort word, and the wait
// record, which peers read to find the rank that delays all others.
type Control struct {
	abort atomic.Uint64
	_     [Stride - 8]byte
	Status
}

// Status is what a rank waits for. Its owner writes it through a [Waiter], and its peers read it
// when they look for the rank that holds everyone up.
type Status struct {
	// The record is written when a wait has outlasted the spinning: it costs the fast path nothing.
	peer     atomic.Uint64 // 1 + the rank waited for; 0 = not waiting
	expected atomic.Uint64
	seen     atomic.Uint64
	op       [3]atomic.Uint64 // the first 24 bytes of the operation's name
	object   [2]atomic.Uint64 // and 16 for the name of the operation's object
	beat     atomic.Uint64    // advances while the rank waits: a stopped process shows a wait that stands still
	final    atomic.Uint32    // the wait has ended at its deadline, and nothing beats
	message  atomic.Uint32    // 1: the wait is for a message
	of       atomic.Uint64    // see Record
	number   atomic.Uint64
	passer   atomic.Uint64
	_        [Stride - 104]byte

	// What there is to say of a fault that this rank reports: the cycle of ranks that wait for each
	// other, or how the calls of two ranks differ.
	words [5*Stride/8 - 1]atomic.Uint64
	what  atomic.Uint64 // the words are of

	said saidTable
}

// What words of a fault are of that blames no rank.
const (
	ofCycle    = iota // ranks that wait for each other
	ofMessages        // the same, and some wait is for a message
	ofUnknown         // a rank that waits for one of two others
)

// saidObjects is of how many objects a rank shows what it has said: of those of which it began to last.
const saidObjects = 15

// saidTable has how far a rank has said what others wait for, of some objects.
type saidTable struct {
	entries [saidObjects]said
	lock    atomic.Uint64 // 1 while a goroutine of the rank writes
	taken   atomic.Uint64 // how often an entry was taken for an object
}

// said is of one object, which is 0 while the entry goes over to another one.
type said struct{ of, number atomic.Uint64 }

// Said is how far the rank has said what others wait for of an object: see [Waiter.Say]. It is not known where the
// rank has said something of more objects than it shows since.
func (s *Status) Said(of uint64) (number uint64, known bool) {
	for i := range s.said.entries {
		if e := &s.said.entries[i]; e.of.Load() == of {
			number = e.number.Load()
			return number, e.of.Load() == of
		}
	}
	return 0, s.said.taken.Load() <= saidObjects
}

// say notes how far the rank has said what others wait for of an object.
func (s *Status) say(of, number uint64) {
	t := &s.said
	for !t.lock.CompareAndSwap(0, 1) {
		runtime.Gosched()
	}
	defer t.lock.Store(0)
	for i := range t.entries {
		if e := &t.entries[i]; e.of.Load() == of {
			e.number.Store(number)
			return
		}
	}
	e := &t.entries[t.taken.Load()%saidObjects]
	t.taken.Add(1)
	e.of.Store(0)
	e.number.Store(number)
	e.of.Store(of)
}

// PutText writes as much of a text as fits.
func PutText(to []atomic.Uint64, text string) {
	for i := range to {
		var v uint64
		for j := range 8 {
			if k := i*8 + j; k < len(text) {
				v |= uint64(text[k]) << (8 * j)
			}
		}
		to[i].Store(v)
	}
}

// Text reads what PutText has written.
func Text(from []atomic.Uint64) string {
	b := make([]byte, 0, 8*len(from))
	for i := range from {
		b = binary.LittleEndian.AppendUint64(b, from[i].Load())
	}
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// ControlAt lays a Control over mem[offset:], which is a multiple of 8.
func ControlAt(mem []byte, offset int) *Control {
	_ = mem[offset : offset+ControlSize : len(mem)]
	p := unsafe.Pointer(&mem[offset])
	if uintptr(p)%8 != 0 {
		panic("channel: control is not aligned")
	}
	return (*Control)(p)
}

// Cause says why a communicator failed.
type Cause uint8

// The causes that an abort word carries.
const (
	CauseNone     Cause = iota
	CauseDied           // the rank's process ended
	CauseTimeout        // the rank did not answer before a deadline
	CauseAbort          // its caller cancelled or called Abort
	CauseLeft           // the rank closed its communicator while others needed it
	CauseMasked         // the others go on without the rank
	CauseFiles          // it has reached its limit of open files
	CauseMismatch       // it made another call than the reporter, which gives up
)

// String is the cause in a word.
func (c Cause) String() string {
	names := [...]string{"none", "died", "timeout", "aborted", "left", "masked", "open files", "mismatch"}
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("cause %d", uint8(c))
}

// Fault is the content of an abort word: a cause, the culprit and the reporter. The rank is -1
// where ranks wait for each other in a cycle.
type Fault struct {
	Cause    Cause
	Rank     int
	Reporter int
	// Generation counts how often the ranks have agreed to go on after a failure, as the reporter
	// knew it. A fault of an earlier generation than the reader's is over: it comes from a rank
	// that was left behind.
	Generation uint64
}

// An abort word holds a cause in 8 bits, the low 24 bits of a generation, and two ranks in 16 bits
// each.
const generationBits = 24

func (f Fault) word() uint64 {
	generation := f.Generation & (1<<generationBits - 1)
	return uint64(f.Cause)<<56 | generation<<32 | uint64(uint16(f.Reporter))<<16 | uint64(uint16(f.Rank))
}

func faultOf(word uint64) Fault {
	return Fault{
		Cause: Cause(word >> 56), Rank: int(int16(word)), Reporter: int(int16(word >> 16)),
		Generation: word >> 32 & (1<<generationBits - 1),
	}
}

// Older reports whether the fault is of an earlier generation. Generations that are compared lie
// close to each other.
func (f Fault) Older(generation uint64) bool {
	return int32(uint32(f.Generation-generation)<<(32-generationBits)) < 0
}

// After returns the lowest generation from this one on that the fault is older than.
func (f Fault) After(generation uint64) uint64 {
	if f.Older(generation) {
		return generation
	}
	return generation + (f.Generation-generation)&(1<<generationBits-1) + 1
}

// Err turns the fault into the error that an operation returns: a [*PeerError] that names the rank.
func (f Fault) Err(op string) error {
	switch f.Cause {
	case CauseNone:
		return nil
	case CauseDied:
		return &bootstrap.PeerError{Rank: f.Rank, Op: op, Err: ErrDied}
	case CauseTimeout:
		return &bootstrap.PeerError{Rank: f.Rank, Op: op, Err: ErrTimeout}
	case CauseLeft:
		return &bootstrap.PeerError{Rank: f.Rank, Op: op, Err: ErrLeft}
	case CauseMasked:
		return &bootstrap.PeerError{Rank: f.Rank, Op: op, Err: ErrMasked}
	case CauseFiles:
		return &bootstrap.PeerError{Rank: f.Rank, Op: op, Err: errFiles}
	case CauseMismatch: // for all but the rank that it names: see Waiter.Err
		return &bootstrap.PeerError{Rank: f.Reporter, Op: op, Err: ErrAborted}
	default:
		return &bootstrap.PeerError{Rank: f.Rank, Op: op, Err: ErrAborted}
	}
}

// Abort sets the abort word unless a fault of the same generation is there already: the first one
// names the culprit, later ones are its consequences.
func (c *Control) Abort(f Fault) {
	for {
		old := c.abort.Load()
		if old != 0 && !faultOf(old).Older(f.Generation) || c.abort.CompareAndSwap(old, f.word()) {
			return
		}
	}
}

// Fault returns the content of the abort word.
func (c *Control) Fault() Fault { return faultOf(c.abort.Load()) }

// Clear empties the abort word if it still holds f.
func (c *Control) Clear(f Fault) bool { return c.abort.CompareAndSwap(f.word(), 0) }

// Record is a rank's wait record, as it left it in shared memory.
type Record struct {
	Op       string
	Object   string // the operation's object; empty where there is only one
	Peer     int    // -1 when the rank does not wait
	Expected uint64
	Seen     uint64
	Message  bool // it is for a message from the peer, or until the peer takes one

	// Of is not 0 where a third rank, the Passer, passes on what the peer says. The wait ends when the peer has said so
	// much of an object with this number, which [Status.Said] tells, and the Passer has passed it on.
	Of     uint64
	Number uint64
	Passer int
}

// String says it in a sentence.
func (r Record) String() string {
	if r.Peer < 0 {
		return "not waiting"
	}
	return fmt.Sprintf("%s waits for rank %d: expected %d, seen %d", r.What(), r.Peer, r.Expected, r.Seen)
}

// What is the name of the operation and of its object.
func (r Record) What() string {
	if r.Object == "" {
		return r.Op
	}
	return r.Op + " of " + r.Object
}

// Record reads the rank's record. It is a diagnosis: its fields are read one by one while the rank
// may go on.
func (s *Status) Record() Record {
	return Record{
		Op: Text(s.op[:]), Object: Text(s.object[:]), Peer: int(s.peer.Load()) - 1, Expected: s.expected.Load(),
		Seen: s.seen.Load(), Message: s.message.Load() != 0, Of: s.of.Load(),
		Number: s.number.Load(), Passer: int(s.passer.Load()),
	}
}

func (s *Status) setRecord(r Record) {
	PutText(s.op[:], r.Op)
	PutText(s.object[:], r.Object)
	s.expected.Store(r.Expected)
	s.seen.Store(r.Seen)
	s.message.Store(uint32(oneIf(r.Message)))
	s.of.Store(r.Of)
	s.number.Store(r.Number)
	s.passer.Store(uint64(r.Passer))
	s.final.Store(0)
	s.peer.Store(uint64(r.Peer) + 1)
}

func (s *Status) clearRecord() { s.peer.Store(0) }

func oneIf(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}
