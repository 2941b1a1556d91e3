package channel

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/internal/simd"
)

// Policy says how a rank waits: it spins, then gives its processor away, then sleeps.
type Policy struct {
	// Spin is how many times the word is read with a pause between before anything else is tried.
	Spin int
	// Yield is how many times the processor is given to another thread (or, in Goroutines mode, to another goroutine).
	Yield int
	// Goroutines is set when several ranks are goroutines of this process. Such ranks must not block their thread: what they wait
	// for may need it. They yield to the Go scheduler and then sleep with short timers.
	Goroutines bool
}

// PolicyFor chooses a policy for ranks that share a host: local ranks on cpus processors, inProcess of them in this process.
// Alone on its processor a rank may spin for long; where ranks share processors, spinning only delays the peer that is waited for.
func PolicyFor(local, inProcess, cpus int) Policy {
	p := Policy{Goroutines: inProcess > 1}
	if local <= cpus {
		p.Spin, p.Yield = 4000, 100
	} else {
		p.Spin, p.Yield = 4, 100
	}
	return p
}

// Waiter waits for Counters on behalf of one rank of one communicator. Its fields are set before first use and not changed
// after. One Waiter may be used by several goroutines.
type Waiter struct {
	Policy Policy
	// Rank is the rank that waits; Own is its Control; Peers are everyone's, nil where there is none.
	Rank  int
	Own   *Control
	Peers []*Control
	// Timeout bounds every wait beside its context.
	Timeout time.Duration
	// Fault, when set, is asked whenever the abort word is set and decides what it means: nil means to go on (a fault of a masked
	// rank). Gone says that the peer left in good order and will publish nothing more.
	Fault func(op string) error
	Gone  func(peer int) bool
	// Blame, when set, is told of the rank that a wait gave up on.
	Blame func(f Fault)
}

// Wait returns when c has reached want. It fails when the deadline passes, the communicator is aborted or the peer that should
// publish is gone: with a [*PeerError] that names op and the rank to blame. When the context ends nobody is to blame; the error then
// names op and peer and wraps the context's.
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
	// A few turns of the other ranks on this processor are what most waits take when there are more ranks than processors; they come
	// before anything is noted down.
	for range min(w.Policy.Yield, briefYields) {
		w.yield()
		if c.reached(want) {
			return nil
		}
	}
	return w.waitLong(ctx, c, want, op, peer)
}

// What a wait does before anything is noted down and anybody looks for a reason to give up: a fraction of a millisecond. A policy that spins
// or yields for longer goes on after that.
const (
	briefSpins  = 1 << 14
	briefYields = 8
)

// pause must stay a call that is not inlined and not a leaf: its prologue is where the Go runtime can stop a goroutine that
// spins in a process whose preemption signals go elsewhere.
//
//go:noinline
func pause() { simd.Pause() }

// slice is how long one sleep lasts at most: everything but the wake-up itself (a cancelled context, a peer's death, an abort
// word) is seen within this time.
const slice = 5 * time.Millisecond

// Stopwatch measures how long a rank waits, without the time for which its process stood still: that says nothing about the ranks that it waits for.
// The zero value begins with the first look. Looks follow one another closely.
type Stopwatch struct {
	last   time.Time
	waited time.Duration
}

// Look returns how long it was since the first look.
func (s *Stopwatch) Look() time.Duration {
	now := time.Now()
	if !s.last.IsZero() {
		s.waited += min(now.Sub(s.last), standstill)
	}
	s.last = now
	return s.waited
}

func (w *Waiter) waitLong(ctx context.Context, c *Counter, want uint64, op string, peer int) error {
	var watch Stopwatch
	watch.Look()
	w.Own.setRecord(op, peer, want, c.value.Load())
	defer w.Own.clearRecord()
	for i := range max(0, w.Policy.Spin-briefSpins) {
		if i%briefSpins == 0 {
			w.pulse(op, peer, want, c.value.Load())
			if err := w.check(ctx, c, want, op, peer, &watch); err != nil {
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
			// After a sleep the value may be one that others published after they had given this rank up, and then means something else.
			return w.fault(op)
		}
		if i < w.Policy.Yield {
			if i%16 == 0 {
				w.pulse(op, peer, want, c.value.Load())
				if err := w.check(ctx, c, want, op, peer, &watch); err != nil {
					return err
				}
			}
			w.yield()
			continue
		}
		w.pulse(op, peer, want, c.value.Load())
		if err := w.check(ctx, c, want, op, peer, &watch); err != nil {
			return err
		}
		if w.Policy.Goroutines {
			time.Sleep(nap(i - w.Policy.Yield))
			continue
		}
		c.doze(want, slice)
	}
}

// Until returns when done reports true. It is [Waiter.Wait] for conditions that nobody announces, so instead of sleeping until
// woken it looks again after ever longer naps.
func (w *Waiter) Until(ctx context.Context, op string, peer int, done func() bool) error {
	for range min(w.Policy.Spin, briefSpins) {
		if done() {
			return nil
		}
		pause()
	}
	var watch Stopwatch
	watch.Look()
	var none Counter
	w.Own.setRecord(op, peer, 1, 0)
	defer w.Own.clearRecord()
	look := func() error {
		w.pulse(op, peer, 1, 0)
		err := w.check(ctx, &none, 1, op, peer, &watch)
		if errors.Is(err, ErrLeft) && done() { // what a peer did before it left still counts
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
			return w.fault(op) // as in waitLong
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
		time.Sleep(nap(i - w.Policy.Yield))
	}
}

// Show shows the other ranks that this one is awake and waits for peer, in a wait that is not the Waiter's. It is called again and again, until Hide.
func (w *Waiter) Show(op string, peer int) {
	if w.Own.peer.Load() != uint64(peer)+1 {
		w.Own.setRecord(op, peer, 1, 0)
	}
	w.Own.beat.Add(1)
}

// Hide ends what Show has begun.
func (w *Waiter) Hide() { w.Own.clearRecord() }

// pulse shows the other ranks that this one waits and is awake. The record is empty when another goroutine of this rank has ended a wait of its own.
func (w *Waiter) pulse(op string, peer int, want, seen uint64) {
	if w.Own.peer.Load() == 0 {
		w.Own.setRecord(op, peer, want, seen)
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

// check is asked between looks at the word: is there a reason to give up?
func (w *Waiter) check(ctx context.Context, c *Counter, want uint64, op string, peer int, watch *Stopwatch) error {
	if err := w.fault(op); err != nil {
		return err
	}
	// Gone first, then the word once more: what a peer published before it left still counts.
	if w.Gone != nil && w.Gone(peer) && c.value.Load() < want {
		return &bootstrap.PeerError{Rank: peer, Op: op, Err: ErrLeft}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: still waiting for rank %d: %w", op, peer, err)
	}
	if waited := watch.Look(); w.Timeout > 0 && waited > w.Timeout {
		f := Fault{Cause: CauseTimeout, Rank: w.Culprit(peer), Reporter: w.Rank}
		// Ranks give up at about the same time. The peer may have done so while the chain was followed, and then looked idle: it has told us
		// whom it blames before it stopped waiting.
		if err := w.fault(op); err != nil {
			return err
		}
		if w.Blame != nil {
			w.Blame(f)
			if err := w.fault(op); err != nil {
				return err
			}
		}
		return f.Err(op)
	}
	return nil
}

// fault is what the abort word says, unless it concerns ranks that are left out.
func (w *Waiter) fault(op string) error {
	f := w.Own.Fault()
	switch {
	case f.Cause == CauseNone:
		return nil
	case w.Fault != nil:
		return w.Fault(op)
	default:
		return f.Err(op)
	}
}

// Culprit follows the chain of waits: the peer may itself wait for another rank. To blame is the one that waits for nobody, or
// whose wait stands still because its process was stopped.
func (w *Waiter) Culprit(peer int) int {
	for range w.Peers {
		if peer < 0 || peer >= len(w.Peers) || w.Peers[peer] == nil {
			return peer
		}
		p := w.Peers[peer]
		if p.peer.Load() == 0 || !w.beats(p) {
			return peer
		}
		next := p.Record().Peer
		// A peer that waits for us gives no further clue.
		if next < 0 || next == w.Rank || next == peer {
			return peer
		}
		peer = next
	}
	return peer
}

// standstill is how long a waiting rank's beat must stand still to show that its process is stopped, rather than short of a processor.
const standstill = 20 * slice

// beats reports whether a rank that waits is awake. Ours must go on meanwhile: others may be asking the same about us.
func (w *Waiter) beats(p *Control) bool {
	before := p.beat.Load()
	for start := time.Now(); time.Since(start) < standstill; {
		w.Own.beat.Add(1)
		time.Sleep(time.Millisecond)
		if p.beat.Load() != before {
			return true
		}
	}
	return false
}
