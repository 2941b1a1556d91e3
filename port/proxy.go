package port

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weftgo/weft/fabric"
)

// MaxRails is the most domains of a proxy.
const MaxRails = 8

// Options of a proxy. The zero value is ready.
type Options struct {
	// Depth is how many triggers a ring holds: a power of two, 512 if 0.
	Depth int
	// Timeout bounds waits whose context has no deadline, and how long the fabric may take nothing for a
	// channel: fabric.DefaultTimeout if 0.
	Timeout time.Duration
	// Spin is how long the proxy polls without anything to do before it sleeps: 200 us if 0. With a processor
	// to itself it may spin for long, which kernels want: they cannot wake it.
	Spin time.Duration
	// Spread is from how many bytes on a channel that spreads divides a put among the rails: 512 KiB if 0.
	Spread int
}

func (o *Options) normalize() error {
	if o.Depth == 0 {
		o.Depth = 512
	}
	if o.Timeout == 0 {
		o.Timeout = fabric.DefaultTimeout
	}
	if o.Spin == 0 {
		o.Spin = 200 * time.Microsecond
	}
	if o.Spread == 0 {
		o.Spread = 512 << 10
	}
	if o.Depth < 2 || o.Depth > 1<<20 || o.Depth&(o.Depth-1) != 0 {
		return invalid("depth %d: want a power of two up to %d", o.Depth, 1<<20)
	}
	if o.Timeout < 0 || o.Spin < 0 || o.Spread < 0 {
		return invalid("timeout %v, spin %v, spread %d: want 0 or more", o.Timeout, o.Spin, o.Spread)
	}
	return nil
}

// Proxy takes triggers of channels out of rings and does what they ask for, on one goroutine. All its
// methods may be called from any goroutine.
type Proxy struct {
	options Options
	rails   []*fabric.Domain
	host    *ring // of pushers of this process
	stop    chan struct{}
	stopped chan struct{}
	wake    chan struct{}
	asleep  atomic.Bool
	ended   context.Context
	end     context.CancelCauseFunc
	abort   atomic.Pointer[fail]

	// Tables that triggers index, with nil for what was closed. They are replaced, never changed in place.
	lanes   atomic.Pointer[[]*lane]
	locals  atomic.Pointer[[]*Memory]
	remotes atomic.Pointer[[]*Remote]

	calls chan func() // that only the proxy's goroutine may make
	// The proxy's alone.
	rings   []*ring
	active  []*lane // with something to do
	kernels []*Kernels
	held    bool // nothing is posted

	mu      sync.Mutex // around changes of the tables, and below
	closed  bool
	peers   map[int]*Peer
	serial  uint64          // of the last memory
	renewed map[name][]byte // cards of peers' memories that had new keys at the last renewal
}

// New makes a proxy over one domain, or several of one rank: its rails, in the same order on all ranks. The
// domains stay the caller's, and are closed after the proxy.
func New(o Options, rails ...*fabric.Domain) (*Proxy, error) {
	if err := o.normalize(); err != nil {
		return nil, err
	}
	if len(rails) < 1 || len(rails) > MaxRails {
		return nil, invalid("%d rails: a proxy has 1 to %d", len(rails), MaxRails)
	}
	for _, d := range rails[1:] {
		if d.Rank() != rails[0].Rank() || d.Size() != rails[0].Size() || d.Signals() != rails[0].Signals() {
			return nil, invalid("rails of rank %d of %d with %d signals, and of rank %d of %d with %d", rails[0].Rank(),
				rails[0].Size(), rails[0].Signals(), d.Rank(), d.Size(), d.Signals())
		}
	}
	x := &Proxy{
		options: o, rails: rails, host: newRing(make([]slot, o.Depth), new(atomic.Uint64), new(atomic.Uint64)),
		stop: make(chan struct{}), stopped: make(chan struct{}), wake: make(chan struct{}, 1), peers: map[int]*Peer{},
		calls: make(chan func()), renewed: map[name][]byte{},
	}
	x.host.flushed = func(l *lane, position uint64) { l.flushed.Store(position + 1) }
	x.ended, x.end = context.WithCancelCause(context.Background())
	x.lanes.Store(new([]*lane))
	x.locals.Store(new([]*Memory))
	x.remotes.Store(new([]*Remote))
	x.rings = []*ring{x.host}
	go x.run()
	return x, nil
}

// add puts an entry behind a table's others, for readers that hold no lock.
func add[T any](table *atomic.Pointer[[]*T], entry *T) (number int) {
	old := *table.Load()
	all := append(old[:len(old):len(old)], entry)
	table.Store(&all)
	return len(old)
}

// batch is how many triggers the proxy takes from a ring before it polls the fabric.
const batch = 32

// watch is how often the proxy looks at deadlines and at peers.
const watch = time.Millisecond

// run is the proxy. Nothing in it waits for a peer.
func (x *Proxy) run() {
	defer close(x.stopped)
	var idle, looked time.Time
	for turns := 0; ; turns++ {
		some := false
		if !x.held {
			for _, r := range x.rings {
				some = x.drain(r) || some
			}
			some = x.work() || some
		}
		for _, d := range x.rails {
			n, err := d.Poll()
			if err != nil {
				x.failAll(err)
			}
			some = n > 0 || some
		}
		some = x.show() || some
		if some {
			idle = time.Time{}
			if turns%256 != 0 {
				continue
			}
		}
		if turns%16 != 0 && !some {
			continue
		}
		select {
		case <-x.stop:
			return
		case f := <-x.calls:
			f()
		default:
		}
		now := time.Now()
		if now.Sub(looked) >= watch {
			looked = now
			x.look(now)
		}
		if some {
			continue
		}
		if idle.IsZero() {
			idle = now
		}
		if now.Sub(idle) < x.options.Spin {
			runtime.Gosched()
			continue
		}
		x.sleep()
		turns = 15 // look again after one more turn
	}
}

// drain takes what a ring has, up to a batch. What a channel has no room for stays.
func (x *Proxy) drain(r *ring) (some bool) {
	lanes := *x.lanes.Load()
	for range batch {
		t, ok := r.next()
		if !ok {
			break
		}
		if int(t.channel) >= len(lanes) {
			if lanes = *x.lanes.Load(); int(t.channel) >= len(lanes) {
				x.failAll(invalid("a trigger names channel %d of %d", t.channel, len(lanes)))
				r.taken++
				continue
			}
		}
		if l := lanes[t.channel]; l != nil && !l.take(task{t, r, r.taken}) {
			break
		}
		r.taken++
		some = true
	}
	if some {
		r.publish()
	}
	return some
}

// work goes on with what lanes could not post before, and with their flushes.
func (x *Proxy) work() (some bool) {
	kept := x.active[:0]
	for _, l := range x.active {
		some = l.advance() || some
		some = l.settle() || some
		if l.active = l.busy(); l.active {
			kept = append(kept, l)
		}
	}
	x.active = kept
	return some
}

// show tells kernels what has changed.
func (x *Proxy) show() (some bool) {
	for _, k := range x.kernels {
		for _, l := range k.lines {
			some = l.show() || some
		}
	}
	return some
}

// call makes a call on the proxy's goroutine, or on this one when that has ended.
func (x *Proxy) call(f func()) {
	done := make(chan struct{})
	select {
	case x.calls <- func() { f(); close(done) }:
		<-done
	case <-x.stopped:
		f()
	}
}

// look gives up what has failed, and what was aborted.
func (x *Proxy) look(now time.Time) {
	if f := x.abort.Load(); f != nil {
		x.failAll(f.err)
	}
	for _, l := range *x.lanes.Load() {
		if l != nil {
			l.look(now)
		}
	}
}

func (x *Proxy) failAll(err error) {
	for _, l := range *x.lanes.Load() {
		if l != nil {
			l.fail(err)
		}
	}
}

// sleep waits for a pusher of this process. While something is underway, or kernels may push, it naps.
func (x *Proxy) sleep() {
	nap := time.Second / 10
	if len(x.active) > 0 || len(x.kernels) > 0 {
		nap = 50 * time.Microsecond
	}
	x.asleep.Store(true)
	defer x.asleep.Store(false)
	if t, ok := x.host.next(); ok {
		lanes := *x.lanes.Load()
		if int(t.channel) >= len(lanes) || lanes[t.channel] == nil || lanes[t.channel].length < laneDepth {
			return // it was pushed before the pusher could see that the proxy sleeps
		}
	}
	alarm := time.NewTimer(nap)
	defer alarm.Stop()
	select {
	case <-x.wake:
	case <-x.stop:
	case f := <-x.calls:
		f()
	case <-alarm.C:
	}
}

// rouse ends a sleep.
func (x *Proxy) rouse() {
	if !x.asleep.Load() {
		return
	}
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// Abort ends what channels have underway and all that waits, with a cause. Calls for any channel fail from
// then on.
func (x *Proxy) Abort(cause error) {
	x.abort.CompareAndSwap(nil, &fail{fmt.Errorf("aborted: %w", cause)})
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// Close stops the proxy. What was pushed and not flushed may have been posted or not; who waits gets
// fabric.ErrClosed. Memory that was registered is closed, too.
func (x *Proxy) Close() error {
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return nil
	}
	x.closed = true
	x.mu.Unlock()
	close(x.stop)
	<-x.stopped
	x.failAll(fabric.ErrClosed) // the proxy's goroutine has ended, so this one may
	x.end(fabric.ErrClosed)
	x.mu.Lock()
	for _, r := range x.rings {
		r.tail.Store(r.taken | shut)
	}
	x.show()
	x.mu.Unlock()
	var first error
	for _, m := range *x.locals.Load() {
		if m != nil {
			if err := m.Close(); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}
