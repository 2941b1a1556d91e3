package channel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/internal/simd"
)

// Policy says how a rank waits: it spins, then gives its processor away, then sleeps.
type Policy struct {
	// Spin is how many times the word is read with a pause between before anything else is tried.
	Spin int
	// Yield is how many times the processor is given to another thread (or, in Goroutines mode, to
	// another goroutine).
	Yield int
	// Goroutines is set when several ranks are goroutines of this process. Such ranks must not
	// block their thread: the rank that they wait for may need it. They yield to the Go scheduler
	// and then sleep with short timers.
	Goroutines bool
}

// PolicyFor chooses a policy for ranks that share a host: local ranks on cpus processors, inProcess
// of them in this process. Alone on its processor a rank may spin for long; where ranks share
// processors, spinning only delays the peer that is waited for.
func PolicyFor(local, inProcess, cpus int) Policy {
	p := Policy{Goroutines: inProcess > 1}
	if local <= cpus {
		p.Spin, p.Yield = 4000, 100
	} else {
		p.Spin, p.Yield = 4, 100
	}
	return p
}

// Waiter waits for Counters on behalf of one rank of one communicator. Its fields are set before
// first use and not changed after. One Waiter may be used by several goroutines.
type Waiter struct {
	Policy Policy
	// Rank is the rank that waits; Own is its Control; Peers are the Statuses of all ranks, nil for
	// a rank without one.
	Rank  int
	Own   *Control
	Peers []*Status
	// Object names the object of the waits, such as "handle 2", where a rank has several. At most
	// 16 bytes are shown.
	Object string
	// Message says that the waits are for messages: peers may wait for each other's.
	Message bool
	// Timeout bounds every wait beside its context.
	Timeout time.Duration
	// Fault, if set, is called whenever the abort word is set, and decides what the word means: nil
	// means that the wait continues (a fault of a masked rank). Gone says that the peer left in
	// good order and will publish nothing more.
	Fault func(op string) error
	Gone  func(peer int) bool
	// Blame, if set, gets the culprit of a wait that ended, and reports it to the others. The rank
	// is -1 when they wait for each other.
	Blame func(f Fault)
	// Explain, if set, says what is known of a fault beside its cause, and the way on.
	Explain func(f Fault) string
	// Report, if set, is called by waits that last for long: after ReportAfter, and again after pauses
	// that grow twofold. A ReportAfter of 0 is [bootstrap.ReportAfter].
	Report      func(op string, peer int, waited time.Duration)
	ReportAfter time.Duration
	// Standstill is how long a waiting rank's beat must stand still to show that its process is
	// stopped. It is longer than a quarter of a second where Statuses are replicated.
	Standstill time.Duration
	// Behind, if set, gives the rank that keeps what a peer shows from being seen here, where there
	// is one, else the peer.
	Behind func(peer int) int
}

// Wait returns when c has reached want. It fails when the deadline passes, the communicator is
// aborted or the peer that should publish is gone: with a [*PeerError] that names op and the rank
// to blame. When the context ends no rank is to blame; the error then names op and peer and wraps
// the context's.
func (w *Waiter) Wait(ctx context.Context, c *Counter, want uint64, op string, peer int) error {
	if c.reached(want) {
		return nil
	}
	for range min(w.Policy.Spin, briefSpins) {
		pause()
		if c.reached(want) {
			return nil
		}
	}
	// With more ranks than processors most waits take a few turns of the other ranks on this
	// processor. They come before the wait writes its record.
	for range min(w.Policy.Yield, briefYields) {
		w.yield()
		if c.reached(want) {
			return nil
		}
	}
	return w.waitLong(ctx, c, want, op, peer)
}

// The part of a wait before it writes its record and checks for a reason to end: a fraction of a
// millisecond. A policy that spins or yields for longer goes on after that.
const (
	briefSpins  = 1 << 14
	briefYields = 8
)

// pause must stay a call that is not inlined and not a leaf: only its prologue lets the Go runtime
// stop a goroutine that spins in a process whose preemption signals go elsewhere.
//
//go:noinline
func pause() { simd.Pause() }

// slice is how long one sleep lasts at most: everything but the wake-up itself (a cancelled
// context, a peer's death, an abort word) is seen within this time.
const slice = 5 * time.Millisecond

// Stopwatch measures how long a rank waits, without the time for which its process stood still:
// that says nothing about the ranks that it waits for. The zero value begins with the first look.
// Looks follow one another closely.
type Stopwatch struct {
	last     time.Time
	waited   time.Duration
	reported time.Duration // what had been waited at the last report
}

// Look returns how long it was since the first look.
func (s *Stopwatch) Look() time.Duration {
	now := time.Now()
	if !s.last.IsZero() {
		s.waited += min(now.Sub(s.last), pace)
	}
	s.last = now
	return s.waited
}

func (w *Waiter) waitLong(ctx context.Context, c *Counter, want uint64, op string, peer int) error {
	var watch Stopwatch
	watch.Look()
	r := w.recordOf(op, peer, want, c.value.Load())
	w.Own.setRecord(r)
	defer w.Own.clearRecord()
	look := func() error {
		r.Seen = c.value.Load()
		w.pulse(r)
		return w.check(ctx, c, want, r, &watch)
	}
	for i := range max(0, w.Policy.Spin-briefSpins) {
		if i%briefSpins == 0 {
			if err := look(); err != nil {
				return err
			}
		}
		pause()
		if c.reached(want) {
			return nil
		}
	}
	for i := 0; ; i++ {
		if c.reached(want) {
			if i < w.Policy.Yield {
				return nil
			}
			// After a sleep the value may be one that others published after they had given this
			// rank up, and then means something else.
			return w.fault(op)
		}
		if i < w.Policy.Yield {
			if i%16 == 0 {
				if err := look(); err != nil {
					return err
				}
			}
			w.yield()
			continue
		}
		if err := look(); err != nil {
			return err
		}
		if w.Policy.Goroutines {
			time.Sleep(nap(i - w.Policy.Yield))
			continue
		}
		c.doze(want, slice)
	}
}

// Until returns when done reports true. It is [Waiter.Wait] for conditions without a wake-up:
// instead of sleeping it looks again after ever longer naps.
func (w *Waiter) Until(ctx context.Context, op string, peer int, done func() bool) error {
	return w.until(ctx, w.recordOf(op, peer, 1, 0), nil, time.Sleep, done)
}

// UntilWoken is Until for a condition that something else than time may wake a sleeper for: sleep returns then, or
// after so long.
func (w *Waiter) UntilWoken(ctx context.Context, op string, peer int, sleep func(most time.Duration),
	done func() bool,
) error {
	return w.until(ctx, w.recordOf(op, peer, 1, 0), nil, sleep, done)
}

// UntilPassed is UntilWoken for what the peer says, and a third rank passes on: up to a number, of an object that has a
// number itself (see [Waiter.Say]). Either may be to blame. With an object 0 it is UntilWoken.
func (w *Waiter) UntilPassed(ctx context.Context, op string, peer, passer int, of, number uint64,
	sleep func(most time.Duration), done func() bool,
) error {
	r := w.recordOf(op, peer, 1, 0)
	r.Of, r.Number, r.Passer = of, number, passer
	return w.until(ctx, r, nil, sleep, done)
}

// Say shows the other ranks how far this one has said what they wait for of an object, whose number is not 0 and the
// same on all of them: a number that only grows. Where a third rank passes it on, they see by that which of the two
// holds them up.
func (w *Waiter) Say(of, number uint64) { w.Own.say(of, number) }

// UntilOwn is Until for something that this rank itself is to do meanwhile. At the deadline it is to blame, and what
// says, in the errors of all ranks, what it waits for.
func (w *Waiter) UntilOwn(ctx context.Context, op string, what func() string, done func() bool) error {
	return w.until(ctx, w.recordOf(op, w.Rank, 1, 0), what, time.Sleep, done)
}

func (w *Waiter) until(ctx context.Context, r Record, own func() string, sleep func(time.Duration),
	done func() bool,
) error {
	for range min(w.Policy.Spin, briefSpins) {
		if done() {
			return nil
		}
		pause()
	}
	for range min(w.Policy.Yield, briefYields) { // as in Wait
		if done() {
			return nil
		}
		w.yield()
	}
	var watch Stopwatch
	watch.Look()
	var none Counter
	w.Own.setRecord(r)
	defer w.Own.clearRecord()
	look := func() error {
		w.pulse(r)
		if own != nil { // others that reach their deadlines first find it, too
			w.ShowWords(own())
		}
		err := w.check(ctx, &none, 1, r, &watch)
		if errors.Is(err, ErrLeft) && done() { // values that a peer published before it left still count
			return nil
		}
		return err
	}
	for i := range max(0, w.Policy.Spin-briefSpins) {
		if i%briefSpins == 0 {
			if err := look(); err != nil {
				return err
			}
		}
		if done() {
			return nil
		}
		pause()
	}
	for i := 0; ; i++ {
		if done() {
			if i < w.Policy.Yield {
				return nil
			}
			return w.fault(r.Op) // as in waitLong
		}
		if i%16 == 0 || i >= w.Policy.Yield {
			if err := look(); err != nil {
				return err
			}
		}
		if i < w.Policy.Yield {
			w.yield()
			continue
		}
		sleep(nap(i - w.Policy.Yield))
	}
}

// Show shows the other ranks that this one is awake and waits for peer, in a wait that is not the
// Waiter's. It is called again and again, until Hide.
func (w *Waiter) Show(op string, peer int) {
	if w.Own.peer.Load() != uint64(peer)+1 {
		w.Own.setRecord(w.recordOf(op, peer, 1, 0))
	}
	w.Own.beat.Add(1)
}

// ShowWords shows the rank that a fault of CauseMismatch names how its call differs, before it is told of
// the fault. Of one of CauseTimeout they are what the rank to blame waits for itself.
func (w *Waiter) ShowWords(words string) { PutText(w.Own.words[:], words) }

// reported is what a fault's reporter shows of it.
func (w *Waiter) reported(f Fault) string {
	if s := w.reporter(f); s != nil {
		return Text(s.words[:])
	}
	return ""
}

// reporter is what the rank shows that has reported a fault, or nil.
func (w *Waiter) reporter(f Fault) *Status {
	if f.Reporter < 0 || f.Reporter >= len(w.Peers) {
		return nil
	}
	return w.Peers[f.Reporter]
}

// ShowFinal shows the other ranks that a wait of this one has ended at its deadline, until Hide.
func (w *Waiter) ShowFinal(r Record) {
	w.Own.setRecord(r)
	w.Own.final.Store(1)
}

// Hide removes the wait record.
func (w *Waiter) Hide() { w.Own.clearRecord() }

func (w *Waiter) recordOf(op string, peer int, expected, seen uint64) Record {
	return Record{Op: op, Object: w.Object, Peer: peer, Expected: expected, Seen: seen, Message: w.Message}
}

// pulse shows the other ranks that this one waits and is awake. The record is empty when another
// goroutine of this rank has ended a wait of its own.
func (w *Waiter) pulse(r Record) {
	if w.Own.peer.Load() == 0 {
		w.Own.setRecord(r)
	}
	w.Own.beat.Add(1)
}

// nap grows from 20 us to 1 ms: the first naps keep latency low, later ones keep idle ranks cheap.
func nap(i int) time.Duration {
	d := 20 * time.Microsecond << min(i/8, 6)
	return min(d, time.Millisecond)
}

func (w *Waiter) yield() {
	if w.Policy.Goroutines {
		runtime.Gosched()
		return
	}
	yieldThread()
}

// check runs between looks at the word, and finds a reason to end the wait.
func (w *Waiter) check(ctx context.Context, c *Counter, want uint64, r Record, watch *Stopwatch) error {
	op, peer := r.Op, r.Peer
	if err := w.fault(op); err != nil {
		return err
	}
	// Gone first, then the word once more: values that a peer published before it left still count.
	if w.Gone != nil && w.Gone(peer) && c.value.Load() < want {
		return w.Err(Fault{Cause: CauseLeft, Rank: peer, Reporter: w.Rank}, op)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: still waiting for rank %d: %w", op, peer, err)
	}
	waited := watch.Look()
	w.ReportWait(op, peer, watch)
	if w.Timeout > 0 && waited > w.Timeout {
		f := Fault{Cause: CauseTimeout, Rank: w.Culprit(r, 0), Reporter: w.Rank}
		// Ranks reach their deadlines at about the same time. The peer may have reached its
		// deadline while this rank followed the chain, and then looked idle. It reported the
		// culprit before it stopped waiting.
		if err := w.fault(op); err != nil {
			return err
		}
		if c.reached(want) { // the rank that seemed to wait for this one has answered
			return nil
		}
		if w.Blame != nil {
			w.Blame(f)
			if err := w.fault(op); err != nil {
				return err
			}
		}
		return w.Err(f, op)
	}
	return nil
}

// ReportWait reports a wait if it has lasted for long. A Waiter reports its own.
func (w *Waiter) ReportWait(op string, peer int, watch *Stopwatch) {
	if w.Report != nil && watch.waited >= max(cmp.Or(w.ReportAfter, bootstrap.ReportAfter), 2*watch.reported) {
		watch.reported = watch.waited
		w.Report(op, peer, watch.waited)
	}
}

// Err is the error of a fault, with what is known of it, and with the cycle where ranks wait for each
// other.
func (w *Waiter) Err(f Fault, op string) error {
	switch {
	case f.Cause == CauseTimeout && f.Rank < 0:
		goOn := "SetMask goes on"
		if w.Explain != nil {
			goOn = w.Explain(f)
		}
		what := uint64(ofCycle)
		if s := w.reporter(f); s != nil {
			what = s.what.Load()
		}
		how, wayOut := "ranks wait for each other", "call everything in the same order on every rank"
		switch what {
		case ofMessages:
			wayOut += ", and messages that face each other in one batch"
		case ofUnknown:
			how, wayOut = "one of two ranks holds up all others", "look for the one that stands still"
		}
		err := fmt.Errorf("%w: %s: %s; %s; %s", ErrTimeout, how, w.reported(f), wayOut, goOn)
		return &bootstrap.PeerError{Rank: f.Rank, Op: op, Err: err}
	case f.Cause == CauseMismatch && f.Rank == w.Rank:
		// Whether this rank's wait saw the reporter's call or the abort word first, it says the same.
		if words := w.reported(f); words != "" {
			err := fmt.Errorf("%w: %s", bootstrap.ErrMismatch, words)
			return &bootstrap.PeerError{Rank: f.Reporter, Op: op, Err: err}
		}
	}
	err := f.Err(op)
	peer, ok := err.(*bootstrap.PeerError)
	if !ok {
		return err
	}
	if words := w.reported(f); f.Cause == CauseTimeout && words != "" {
		peer.Err = fmt.Errorf("%w: %s", peer.Err, words)
	}
	if w.Explain == nil {
		return err
	}
	if more := w.Explain(f); more != "" {
		peer.Err = fmt.Errorf("%w: %s", peer.Err, more)
	}
	return peer
}

// fault turns the abort word into an error, unless it concerns masked ranks.
func (w *Waiter) fault(op string) error {
	f := w.Own.Fault()
	switch {
	case f.Cause == CauseNone:
		return nil
	case w.Fault != nil:
		return w.Fault(op)
	default:
		return w.Err(f, op)
	}
}

// Culprit follows the chain of waits from this rank's own, which has outlasted its deadline: the
// peer may itself wait for another rank. The culprit is the rank in the chain that waits for no
// other, or whose wait stands still because its process was stopped. There is none, and it is -1,
// if the chain closes in a cycle of ranks that are all awake: they have called operations in
// different orders. The cycle is then in words where [Waiter.Err] finds it, and so is what the culprit waits for if
// that is something of its own: see [Waiter.UntilOwn].
//
// Where a third rank passes on what the peer says, the chain goes to the one that has yet to do its part: to the
// peer until that has said it, then to the third. If nothing shows which, no rank is to blame.
//
// Within the grace a rank may still begin to show which rank it waits for.
func (w *Waiter) Culprit(own Record, grace time.Duration) int {
	if own.Peer == w.Rank {
		return w.Rank // its words are shown
	}
	w.ShowWords("")
	chain, records := []int{w.Rank}, []Record{w.owed(own)}
	end := time.Now().Add(grace)
	for {
		last := records[len(records)-1]
		peer := last.Peer
		if last.Of != 0 {
			words := fmt.Sprintf("rank %d for rank %d or rank %d, which passes on what that says, in %s",
				chain[len(chain)-1], peer, last.Passer, last.What())
			w.ShowWords(words)
			w.Own.what.Store(ofUnknown)
			return -1
		}
		if first := slices.Index(chain, peer); first >= 0 {
			if w.stands(chain[first:], records[first:]) {
				cycle := records[first:]
				w.ShowWords(cycleOf(chain[first:], cycle))
				what := uint64(ofCycle)
				if slices.ContainsFunc(cycle, func(r Record) bool { return r.Message }) {
					what = ofMessages
				}
				w.Own.what.Store(what)
				return -1
			}
			// They move, and are only slow: the last before the cycle closes gives no further
			// clue.
			return chain[len(chain)-1]
		}
		if peer < 0 || peer >= len(w.Peers) || w.Peers[peer] == nil {
			return peer
		}
		p := w.Peers[peer]
		for p.peer.Load() == 0 && time.Now().Before(end) && w.Own.Fault().Cause == CauseNone {
			w.Own.beat.Add(1)
			time.Sleep(time.Millisecond)
		}
		if p.peer.Load() == 0 || p.final.Load() == 0 && !w.beats(p) {
			return w.behind(peer)
		}
		r := w.owed(p.Record())
		if r.Peer == peer {
			w.ShowWords(Text(p.words[:]))
			return peer
		}
		if r.Peer < 0 {
			return w.behind(peer)
		}
		chain, records = append(chain, peer), append(records, r)
	}
}

// owed is the record of a wait with the rank as its peer that has yet to do its part, and without a Passer; or as it
// is, if nothing shows which rank that is.
func (w *Waiter) owed(r Record) Record {
	if r.Of == 0 {
		return r
	}
	number, known := uint64(0), false
	if r.Peer >= 0 && r.Peer < len(w.Peers) && w.Peers[r.Peer] != nil {
		number, known = w.Peers[r.Peer].Said(r.Of)
	}
	if !known {
		return r
	}
	if number >= r.Number {
		r.Peer = r.Passer
	}
	r.Of, r.Number, r.Passer = 0, 0, 0
	return r
}

func (w *Waiter) behind(peer int) int {
	if w.Behind == nil {
		return peer
	}
	return w.Behind(peer)
}

// stands reports whether ranks still wait as they did, and have looked again since.
func (w *Waiter) stands(chain []int, records []Record) bool {
	w.Own.beat.Add(1)
	time.Sleep(4 * slice)
	for i, r := range chain {
		if r == w.Rank {
			continue // the caller looks again before it believes the answer
		}
		p := w.Peers[r]
		if p.final.Load() == 0 && !w.beats(p) || w.owed(p.Record()) != records[i] {
			return false
		}
	}
	return true
}

// cycleOf says the waits in words, as many as there is room for.
func cycleOf(chain []int, records []Record) string {
	const room = len(Status{}.words) * 8
	words := ""
	for i, r := range chain {
		more := fmt.Sprintf("rank %d for rank %d in %s", r, records[i].Peer, records[i].What())
		if i > 0 {
			more = ", " + more
		}
		if len(words)+len(more) > room-8 {
			return words + " ..."
		}
		words += more
	}
	return words
}

// standstill is how long a waiting rank's beat must stand still at least to show that its process is
// stopped, rather than short of a processor.
const standstill = 50 * slice

// pace is the most that a Stopwatch counts between two looks.
const pace = 20 * slice

// beats reports whether a rank that waits is awake. Ours must go on meanwhile: others may be asking
// the same about us.
func (w *Waiter) beats(p *Status) bool {
	before := p.beat.Load()
	for start := time.Now(); time.Since(start) < max(w.Standstill, standstill); {
		w.Own.beat.Add(1)
		time.Sleep(time.Millisecond)
		if p.beat.Load() != before {
			return true
		}
	}
	return false
}
