package host

import "github.com/weftgo/weft/trace"

// tape records the operations of rounds: see package trace. Nothing is recorded of a nil one.
//
// The number of an operation is that of the round that opens it, and rounds are its steps. What a rank publishes is
// timed before it is, and what it sees after that: so no arrival comes before its publication.
type tape struct {
	to     *trace.Writer
	track  uint32
	rounds *Rounds // that open operations

	name   string // of the operation
	op     uint32
	epoch  uint64
	begun  uint64 // when the next operation began, until it opens; 0: none has
	bytes  uint64
	open   bool // the operation has not ended
	events []trace.Event
	seen   int // the first event without a time
}

func newTape(r *Rounds) *tape {
	to := r.Comm.Operations().Trace()
	if to == nil {
		return nil
	}
	track := to.Track(trace.Track{Lane: r.waiter.Object + " host", Clock: trace.ClockHost})
	return &tape{to: to, track: track, rounds: r, op: trace.NoOp, events: make([]trace.Event, 0, 64)}
}

// withinSteps are the numbers of steps from which on they are rounds within a host: see [Rounds.RecordWith].
const withinSteps = 1 << 15

// RecordWith records these rounds as steps of the operations of others, of the same ranks or more.
func (r *Rounds) RecordWith(other *Rounds) { r.tape, r.steps = other.tape, withinSteps }

// Moves says how many bytes the operation moves that opens next, for traces.
func (r *Rounds) Moves(bytes int) {
	if r.tape != nil {
		r.tape.bytes = uint64(bytes)
	}
}

// End says that the operation has ended well, for traces.
func (r *Rounds) End() {
	if t := r.tape; t != nil && t.open && t.begun == 0 {
		t.add(trace.End, 0, -1, trace.Now())
		t.hand()
		t.open = false
	}
}

// begin takes note of a call. What it is called is known to be of the operation when it opens.
func (t *tape) begin(op string) {
	t.begun, t.bytes = trace.Now(), 0
	if op != t.name {
		t.name, t.op = op, t.to.Op(t.track, op)
	}
}

func (t *tape) add(site trace.Site, step uint16, peer int, time uint64) {
	t.events = append(t.events, trace.Event{
		Time: time, Epoch: t.epoch, Op: t.op, Step: step, Peer: int16(peer), Site: site,
	})
}

// opens begins an operation, if one has been called and not begun.
func (t *tape) opens() {
	if t.begun == 0 {
		return
	}
	t.epoch = t.rounds.Next()
	t.add(trace.Begin, 0, -1, t.begun)
	t.events[len(t.events)-1].Bytes = t.bytes
	t.begun, t.open = 0, true
}

// step is the number of a round in the operation.
func (r *Rounds) step(round uint64) uint16 {
	if r.steps == 0 {
		return uint16(min(round-r.tape.epoch, withinSteps-1))
	}
	return r.steps + uint16(min(round-r.opened, withinSteps-1))
}

// publishes records that a round is about to be published.
func (t *tape) publishes(r *Rounds) {
	t.opens()
	t.add(trace.Signalled, r.step(r.Next()), -1, trace.Now())
}

// sees records that a rank's round has been seen: its time is that of the next call of stamp.
func (t *tape) sees(r *Rounds, rank int, round uint64) {
	if rank == r.Comm.Rank() || round < t.epoch && r.steps == 0 {
		return
	}
	if t.seen == 0 {
		t.seen = len(t.events) + 1
	}
	t.add(trace.Arrived, r.step(round), rank, 0)
}

// stamp gives what has been seen its time.
func (t *tape) stamp() {
	if t.seen == 0 {
		return
	}
	now := trace.Now()
	for i := t.seen - 1; i < len(t.events); i++ {
		t.events[i].Time = now
	}
	t.seen = 0
}

// hand gives the writer what there is: before a wait, which may be the last thing that this rank does.
func (t *tape) hand() {
	t.stamp()
	t.to.Events(t.track, t.events)
	t.events = t.events[:0]
}
