package mirror

import (
	"fmt"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/fabric"
)

// stream is what goes to one rank, and comes from it.
type stream struct {
	m      *Mirrors
	rank   int
	peer   *fabric.Peer
	remote fabric.Remote
	signal int
	lines  uint64 // in each direction

	theirs        []byte // this rank's mirror of the peer's pad
	mirror        int    // of this rank's, in the peer's part
	in, out       []byte
	inbox, outbox int // in the peer's part; in this rank's

	queue     []queued
	head      int // the first item that is not posted
	urgent    int // items of the queue that are not bulk
	part      int // of the first item: what is posted now, 0 for its range
	begun     int // bytes of that which were posted
	stage     stage
	tells     bool       // the line that is underway is of no item, and comes before that of the first one
	resume    stage      // of the first item, behind it
	asked     uint64     // items
	posted    uint64     // items of these
	completed uint64     // items of these
	written   uint64     // lines, of which the last may lack its signal
	settled   uint64     // lines that have completed
	underway  []underway // what is posted and has not completed

	fenced bool

	taken, told uint64 // lines of the peer; as far as it has heard
	theirTaken  uint64 // lines of this rank, as far as the peer has told
	failed      time.Time
	err         error
}

type queued struct {
	Item
	data [mostData]byte
}

// underway is all up to an item and a line.
type underway struct {
	item, line uint64
	mark       fabric.Mark
}

// A stage is of an item.
type stage int

const (
	ranging stage = iota // its range is posted
	writing              // its line
	raising              // its signal
)

func (s *stream) count(i Item, n int) {
	if !i.Bulk {
		s.urgent += n
	}
}

func (s *stream) idle() bool {
	return s.err != nil || s.waiting() == 0 && s.stage == ranging
}

// fence asks the peer's domain to tell when all that was written before has landed, and reports whether it was
// asked since the last drop: it adds nothing to a word, which is executed behind all writes.
func (s *stream) fence() bool {
	if s.fenced || s.err != nil {
		return true
	}
	ok, err := s.peer.TryAdd(s.remote, s.m.layout.spare(), 0)
	s.fail(err)
	if s.fenced = ok; ok {
		s.underway = append(s.underway, underway{s.posted, s.written, s.peer.Mark()})
	}
	return ok
}

// drop forgets items of which no line was written.
func (s *stream) drop() {
	s.fenced = false
	keep := 0
	switch {
	case s.stage == raising && !s.tells: // a line is followed by its signal
		keep = 1
	case s.stage == raising:
		s.resume, s.part, s.begun = ranging, 0, 0
	default:
		s.stage, s.part, s.begun, s.tells = ranging, 0, 0, false
	}
	kept := s.head + min(keep, s.waiting())
	for i := range s.queue[kept:] {
		s.count(s.queue[kept+i].Item, -1)
	}
	clear(s.queue[kept:])
	s.queue = s.queue[:kept]
	s.asked = s.posted + uint64(s.waiting())
}

func (s *stream) fail(err error) {
	if s.err != nil || err == nil {
		return
	}
	s.err, s.failed = err, time.Now()
	if s.m.lost == nil {
		s.m.lost = s
	}
}

// complete takes note of what has completed, and of a peer that cannot be written to any more.
func (s *stream) complete() {
	if len(s.underway) == 0 {
		s.fail(s.peer.Err())
		return
	}
	n := 0
	for _, u := range s.underway {
		ok, err := s.peer.Flushed(u.mark)
		s.fail(err)
		if !ok {
			break
		}
		s.completed, s.settled = u.item, u.line
		n++
	}
	if n > 0 {
		s.underway = append(s.underway[:0], s.underway[n:]...)
	}
}

// push posts as much as the fabric takes.
func (s *stream) push() {
	for s.err == nil && s.step() {
	}
}

// step moves the first item on, or tells how many lines were taken, and reports whether it did.
func (s *stream) step() bool {
	if !s.tells && s.stage != raising && s.taken-s.told >= s.lines/2 {
		// It waits for no item: that may wait for room, which the peer gives when it has heard.
		s.tells, s.resume, s.stage = true, s.stage, writing
	}
	switch s.stage {
	case writing:
		return s.write()
	case raising:
		return s.raise()
	default:
	}
	if s.waiting() == 0 {
		return false
	}
	i := &s.queue[s.head]
	for ; s.part <= len(i.Parts); s.part, s.begun = s.part+1, 0 {
		p := s.partOf(i)
		left := p.Bytes - s.begun
		if left <= 0 {
			continue
		}
		n, err := s.peer.TryWrite(p.To, p.At+s.begun, p.From, p.Offset+s.begun, left)
		s.begun += n
		if s.fail(err); n < left {
			return false
		}
	}
	s.stage = writing
	return true
}

// partOf is what is posted now of an item.
func (s *stream) partOf(i *queued) Part {
	p := Part{Offset: i.From, Bytes: i.To - i.From}
	if s.part > 0 {
		p = i.Parts[s.part-1]
	}
	if p.From == nil {
		p.From, p.To, p.At = s.m.Window.Region(), s.remote, s.mirror+p.Offset
	}
	return p
}

// write posts the line.
func (s *stream) write() bool {
	number, leave := s.written+1, uint64(reserve)
	if s.tells {
		leave = 0
	}
	if number+leave > s.theirTaken+s.lines || number > s.settled+s.lines {
		return false
	}
	l := lineOf(s.out, number)
	l.number, l.taken, l.at, l.bytes = number, s.taken, 0, telling
	if !s.tells {
		i := &s.queue[s.head]
		l.at, l.bytes, l.value = uint32(i.Counter), uint32(i.Bytes), i.Value
		copy(l.data[:], i.data[:i.Bytes])
	}
	at, n := int(number%s.lines)*lineBytes, lineHead+int(l.bytes&^telling)
	took, raised, err := s.peer.TryWriteSignal(s.remote, s.inbox+at, s.m.Window.Region(), s.outbox+at, n, s.signal)
	s.fail(err)
	if took == 0 {
		return false
	}
	if took < n {
		s.fail(fmt.Errorf("%w: the fabric divides a write of %d bytes", weft.ErrUnsupported, n))
		return false
	}
	s.written, s.told, s.stage = number, l.taken, raising
	if raised {
		s.raised()
	}
	return true
}

// raise posts the line's signal.
func (s *stream) raise() bool {
	ok, err := s.peer.TrySignal(s.signal)
	if s.fail(err); !ok {
		return false
	}
	s.raised()
	return true
}

// raised goes on to what comes behind a line and its signal.
func (s *stream) raised() {
	if s.tells {
		s.stage, s.tells = s.resume, false
	} else {
		s.posted++
		s.count(s.queue[s.head].Item, -1)
		s.next()
		s.stage, s.part, s.begun = ranging, 0, 0
	}
	s.underway = append(s.underway, underway{s.posted, s.written, s.peer.Mark()})
}

// waiting is how many items are not posted.
func (s *stream) waiting() int { return len(s.queue) - s.head }

// next goes on behind the first item.
func (s *stream) next() {
	s.queue[s.head] = queued{}
	if s.head++; s.head == len(s.queue) {
		s.queue, s.head = s.queue[:0], 0
	}
}

// take publishes here what the peer has said.
func (s *stream) take() {
	for there := s.peer.Signalled(s.signal); s.taken < there; s.taken++ {
		l := lineOf(s.in, s.taken+1)
		at, n := int(l.at), int(l.bytes)
		if l.number != s.taken+1 {
			s.fail(fmt.Errorf("%w: line %d in place of %d", weft.ErrMismatch, l.number, s.taken+1))
			return
		}
		s.theirTaken = l.taken
		if l.bytes == telling {
			continue
		}
		if n > mostData-channel.CounterBytes || at%channel.Stride != 0 || at > len(s.theirs)-channel.Stride {
			s.fail(fmt.Errorf("%w: a line for a counter at %d of %d bytes", weft.ErrMismatch, at, len(s.theirs)))
			return
		}
		if c := channel.CounterAt(s.theirs, at); c.Load() < l.value { // else it is of a generation before
			copy(s.theirs[at+channel.CounterBytes:], l.data[:n])
			c.Publish(l.value)
		}
	}
}
