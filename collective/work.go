package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

// Work is a call that [Group.Start] has begun. Its methods but Close may be called from any goroutine.
type Work struct {
	group *Group
	name  string // of the call

	// Of a call that has not ended: the group keeps no operand for longer.
	call      Call
	norm      Norm
	transfers []Transfer
	refused   error // this rank's arguments
	stream    *weft.Stream

	done      atomic.Bool
	mu        sync.Mutex // of what follows, and of setting done
	algorithm string
	err       error
	closed    bool
	ended     chan struct{} // has a token once the call has ended on the host

	next *Work // in the queue, or among those that are free or run

	// On a GPU.
	prev       *Work  // among those that run
	event      *event // nil once the call has ended
	waiting    int    // calls of Wait that look at the event
	captured   bool
	generation uint64
}

// event is what a stream reaches behind a call.
type event struct {
	*cuda.Event
	reach func(context.Context) error // Event.Wait
	next  *event                      // among those that are free
}

// String names the call and says whether it has ended. It does not wait.
func (w *Work) String() string {
	switch {
	case w.captured:
		return w.name + ", captured"
	case !w.Done():
		return w.name + ", in progress"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.name + ", failed: " + w.err.Error()
	}
	return w.name + ", done"
}

// Start begins a call, as [Group.Do] does, and does not wait for it. Calls of a group run in the order in
// which they begin, the others among them: a call that is not started waits for those that were. The
// operands, counts and scalar are the group's until the call has ended; ctx bounds Start alone.
//
// On GPUs the work is enqueued in the stream; without one, in the communicator's own. A caller that uses
// several streams puts them in order, by [Work.WaitOn]. On the host one goroutine of the group runs what is
// started.
//
// What is wrong with this rank's arguments is returned at once. On the host its peers return it too, from
// their Work.
func (g *Group) Start(ctx context.Context, s *weft.Stream, c Call) (*Work, error) {
	op := c.Name()
	if err := g.gate.Enter(op); err != nil {
		return nil, err
	}
	started := false
	defer func() {
		if !started { // what the queue runs leaves when it has ended
			g.gate.Leave()
		}
	}()
	if err := g.comm.Operations().Begin(op); err != nil {
		return nil, err
	}
	w, err := g.works.take(g)
	if err != nil {
		return nil, err
	}
	w.transfers = append(w.transfers[:0], c.Transfers...)
	w.name, w.call, w.stream = op, c, s
	w.call.Transfers = w.transfers
	if c.Norm != nil {
		w.norm = *c.Norm
		w.call.Norm = &w.norm
	}
	w.refused = g.check(&w.call)
	if g.comm.Device() != nil {
		err = w.enqueue(ctx)
	} else {
		err, started = w.refused, true
		g.queue.add(w)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// enqueue enqueues the call in a stream, and the event behind it.
func (w *Work) enqueue(ctx context.Context) (err error) {
	g := w.group
	if w.stream.CUDA() == nil {
		w.stream = g.works.own
	}
	stream := w.stream.CUDA()
	if err := g.works.settle(stream); err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	w.generation = g.comm.Operations().Generation()
	if w.algorithm, err = g.perform(ctx, w.stream, &w.call, w.refused); err != nil {
		return err
	}
	id, err := stream.CaptureID()
	if err == nil {
		w.captured = id != 0
		err = w.event.Record(stream)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	w.release() // kernels have what they need of it
	if !w.captured {
		g.works.ran(w)
	}
	return nil
}

// release forgets the operands.
func (w *Work) release() {
	clear(w.transfers)
	w.call, w.norm, w.refused, w.stream = Call{}, Norm{}, nil, nil
}

// run runs the call on the host.
func (w *Work) run() {
	algorithm, err := w.group.perform(context.Background(), w.stream, &w.call, w.refused)
	w.group.gate.Leave() // before anybody sees the call ended, and closes
	w.mu.Lock()
	w.release()
	w.algorithm, w.err = algorithm, err
	w.done.Store(true)
	w.ended <- struct{}{}
	closed := w.closed
	w.mu.Unlock()
	if closed {
		w.group.works.give(w)
	}
}

// Done reports whether the call has ended, well or not. It does not wait. A call that was captured is
// never done: its graph is what runs.
func (w *Work) Done() bool {
	if w.done.Load() {
		return true
	}
	if w.ended != nil || w.captured {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.done.Load():
		return true
	case w.event == nil: // it was closed
		return false
	}
	done, err := w.event.Query()
	if done || err != nil {
		w.end(err)
	}
	return done || err != nil
}

// end is for a call on a GPU of which the event has been reached, or cannot be asked. The caller holds mu.
//
// A kernel that gives up leaves a record before it ends, the first of a generation, and no later kernel
// has anything to wait for. So without a record the call has ended well, whatever has failed since.
func (w *Work) end(err error) {
	if w.done.Load() {
		return
	}
	ops := w.group.comm.Operations()
	switch {
	case err != nil:
		w.err = fmt.Errorf("%s: %w", w.name, err)
	case !ops.GaveUp(w.generation):
	case w.generation != ops.Generation():
		w.err = fmt.Errorf("%s: %w: ranks were masked before it was seen to end", w.name, weft.ErrAborted)
	default:
		w.err = ops.Begin(w.name)
	}
	w.done.Store(true)
	w.group.works.ended(w)
	w.spare()
}

// spare gives the event of a call that has ended back, once nobody looks at it. The caller holds mu.
func (w *Work) spare() {
	if w.event != nil && w.done.Load() && w.waiting == 0 {
		w.group.works.giveEvent(w.event)
		w.event = nil
	}
}

// Wait waits until the call has ended, and returns its error: the same for every Wait. If ctx ends first
// the call goes on, and Wait may be called again.
func (w *Work) Wait(ctx context.Context) error {
	switch {
	case w.Done():
	case w.captured:
		return weft.Unsupportedf("%s: it was captured, so it has not run; wait for the graph's launch", w.name)
	case w.ended == nil:
		if err := w.await(ctx); err != nil {
			return err
		}
	default:
		select {
		case token := <-w.ended:
			w.ended <- token
		case <-ctx.Done():
			return fmt.Errorf("%s: it has not ended: %w", w.name, context.Cause(ctx))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// await waits on a GPU until the call has ended.
func (w *Work) await(ctx context.Context) error {
	w.mu.Lock()
	e := w.event
	if e == nil { // it ended just now
		w.mu.Unlock()
		return nil
	}
	w.waiting++
	w.mu.Unlock()
	err := w.group.comm.Operations().Await(ctx, w.name, e.reach)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting--
	if !w.done.Load() {
		if err != nil { // of the communicator, perhaps, when the call had ended
			if done, failed := e.Query(); !done && failed == nil {
				return err
			}
		}
		w.end(nil)
	}
	w.spare()
	return nil
}

// WaitOn makes a stream wait for the call, without waiting itself; nil is the communicator's own. If the
// call fails the stream goes on: [Work.Err] says so.
func (w *Work) WaitOn(s *weft.Stream) error {
	if w.ended != nil {
		return weft.Unsupportedf("%s: the host has no streams; wait for it on the host", w.name)
	}
	stream := s.CUDA()
	if stream == nil {
		stream = w.group.works.own.CUDA()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.event == nil { // there is nothing to wait for
		return nil
	}
	if err := stream.WaitEvent(w.event.Event); err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	return nil
}

// Err is the call's error, once it has ended, or the communicator's failure while it has not. It does not
// wait.
func (w *Work) Err() error {
	if !w.Done() {
		return w.group.comm.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Algorithm names the algorithm: on the host once the call has ended. Messages have none.
func (w *Work) Algorithm() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.algorithm
}

// Captured reports whether a graph has captured the call, which then has not run.
func (w *Work) Captured() bool { return w.captured }

// Close gives the Work back to its group, which uses it for another call. Nothing may use it after. The
// call goes on if it has not ended, and streams that wait for it still do.
//
// A Work that is not closed costs its own memory, which the garbage collector takes: the group keeps
// neither it nor its operands once the call has ended and, on GPUs, has been seen to.
func (w *Work) Close() error {
	w.mu.Lock()
	again := w.closed
	w.closed = true
	free := !again && (w.ended == nil || w.done.Load())
	w.mu.Unlock()
	if free {
		w.group.works.give(w)
	}
	return nil
}

// works are a group's Works, and on GPUs their events.
type works struct {
	mu          sync.Mutex
	free        *Work
	first, last *Work // that run on a GPU and have not been seen to end, in their order
	freeEvents  *event
	events      []*event
	own         *weft.Stream // the communicator's
}

// take gives a Work that is free, or a new one.
func (p *works) take(g *Group) (*Work, error) {
	d := g.comm.Device()
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.free
	if w != nil {
		p.free, w.next, w.closed = w.next, nil, false
	} else {
		w = &Work{group: g}
		if d == nil {
			w.ended = make(chan struct{}, 1)
		}
	}
	if d == nil {
		return w, nil
	}
	if p.own == nil {
		p.own = weft.StreamOf(d.Stream())
	}
	if e := p.freeEvents; e != nil {
		p.freeEvents, e.next, w.event = e.next, nil, e
		return w, nil
	}
	e, err := d.Context().NewEvent(cuda.EventOptions{})
	if err != nil {
		w.next, p.free = p.free, w
		return nil, err
	}
	w.event = &event{Event: e, reach: e.Wait}
	p.events = append(p.events, w.event)
	return w, nil
}

// ran notes a Work of which the event has been recorded.
func (p *works) ran(w *Work) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.prev = p.last; w.prev != nil {
		w.prev.next = w
	} else {
		p.first = w
	}
	p.last = w
}

// ended is the opposite of ran.
func (p *works) ended(w *Work) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case w.prev != nil:
		w.prev.next = w.next
	case p.first == w:
		p.first = w.next
	default:
		return // it is not among them
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		p.last = w.prev
	}
	w.prev, w.next = nil, nil
}

// oldest is the Work that has run for longest; nil if none runs.
func (p *works) oldest() *Work {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.first
}

// settle sees which Works have ended before another call is enqueued in a stream, whose failure is not
// theirs. While the stream captures the driver allows no look at events.
func (p *works) settle(s *cuda.Stream) error {
	w := p.oldest()
	if w == nil {
		return nil
	}
	if id, err := s.CaptureID(); id != 0 || err != nil {
		return err
	}
	for w != nil && w.Done() {
		w = p.oldest()
	}
	return nil
}

func (p *works) giveEvent(e *event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.next, p.freeEvents = p.freeEvents, e
}

// give takes a Work back.
func (p *works) give(w *Work) {
	select {
	case <-w.ended:
	default:
	}
	w.release()
	p.ended(w)
	w.mu.Lock()
	if w.event != nil { // streams that wait for it do so for what it was recorded behind
		p.giveEvent(w.event)
		w.event = nil
	}
	w.name, w.algorithm, w.err, w.captured = "", "", nil, false
	w.done.Store(false)
	w.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	w.next, p.free = p.free, w
}

// close closes all events.
func (p *works) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, e := range p.events {
		errs = append(errs, e.Close())
	}
	p.events, p.freeEvents, p.free, p.first, p.last = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}
