package fabric

import (
	"context"
	"runtime"
	"time"
)

const (
	defaultSpin = 200 * time.Microsecond
	checkEvery  = 64                    // turns of a spinning wait between looks at the clock
	napFor      = 5 * time.Millisecond  // the longest sleep between looks
	blindNap    = 50 * time.Microsecond // where nothing wakes a sleeper
)

// A wait bounds the waiting of one call, and moves the endpoint meanwhile.
type wait struct {
	d        *Domain
	ctx      context.Context
	counted  bool // among those that wait
	turns    int
	idle     time.Time // since when nothing has come
	deadline time.Time
}

// turn polls once and, after many turns without anything new, sleeps. It returns the reason why the
// wait ends. The lock is held, and let go for a moment.
func (w *wait) turn() error {
	d := w.d
	if !w.counted {
		w.counted = true
		d.waiting.Add(1)
	}
	if d.poll() > 0 {
		w.turns, w.idle = 0, time.Time{}
	}
	if err := d.failed(); err != nil {
		return err
	}
	if w.turns++; w.turns%checkEvery != 0 {
		d.mu.Unlock()
		if d.wanted.Load() > 0 { // a lock that is taken again at once is never given to another
			runtime.Gosched()
		}
		d.mu.Lock()
		return d.failed()
	}
	return w.look()
}

// look ends a wait that is over, or lets it yield or sleep.
func (w *wait) look() error {
	d, now := w.d, time.Now()
	if w.deadline.IsZero() {
		w.deadline = now.Add(d.options.Timeout)
		if set, ok := w.ctx.Deadline(); ok {
			w.deadline = set
		}
	}
	if w.ctx.Err() != nil {
		return late(w.ctx)
	}
	if !now.Before(w.deadline) {
		return expired{context.DeadlineExceeded}
	}
	if w.idle.IsZero() {
		w.idle = now
	}
	asleep := now.Sub(w.idle) > d.options.Spin
	armed := asleep && d.caps.Sleeps && d.endpoint.Arm()
	d.mu.Unlock()
	switch {
	case armed:
		d.endpoint.Sleep(min(napFor, w.deadline.Sub(now)))
	case asleep && !d.caps.Sleeps:
		time.Sleep(blindNap)
	default:
		runtime.Gosched()
	}
	if asleep {
		w.turns = checkEvery - 1 // look again after the next poll
	}
	d.mu.Lock()
	return d.failed()
}

// end must be called when the wait is over.
func (w *wait) end() {
	if w.counted {
		w.d.waiting.Add(-1)
	}
}
