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
	group     *Group
	call      Call
	norm      Norm       // of the call
	transfers []Transfer // of the call
	refused   error      // this rank's arguments
	stream    *weft.Stream
	algorithm string

	done   atomic.Bool
	mu     sync.Mutex // of what follows, and of setting done
	err    error
	closed bool
	ended  chan struct{} // has a token once the call has ended on the host

	next *Work // in the queue, or among those that are free

	// On a GPU.
	event      *cuda.Event
	reach      func(context.Context) error // the event's Wait
	captured   bool
	generation uint64
}

// String names the call and says whether it has ended. It does not wait.
func (w *Work) String() string {
	name := w.call.Name()
	switch {
	case w.captured:
		return name + ", captured"
	case !w.Done():
		return name + ", in progress"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return name + ", failed: " + w.err.Error()
	}
	return name + ", done"
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
	if g.closed {
		return nil, fmt.Errorf("%s: group %w", op, weft.ErrClosed)
	}
	if err := g.comm.Operations().Begin(op); err != nil {
		return nil, err
	}
	w, err := g.works.take(g)
	if err != nil {
		return nil, err
	}
	w.transfers = append(w.transfers[:0], c.Transfers...)
	w.call, w.stream = c, s
	w.call.Transfers = w.transfers
	if c.Norm != nil {
		w.norm = *c.Norm
		w.call.Norm = &w.norm
	}
	w.refused = g.check(&w.call)
	if g.comm.Device() != nil {
		err = w.enqueue(ctx)
	} else {
		err = w.refused
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
		return fmt.Errorf("%s: %w", w.call.Name(), err)
	}
	return nil
}

// run runs the call on the host.
func (w *Work) run() {
	algorithm, err := w.group.perform(context.Background(), w.stream, &w.call, w.refused)
	w.mu.Lock()
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
	if w.event == nil || w.captured {
		return false
	}
	done, err := w.event.Query()
	if done || err != nil {
		w.end(err)
	}
	return done || err != nil
}

// end is for a call on a GPU of which the event has been reached, or cannot be asked.
func (w *Work) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done.Load() {
		return
	}
	op, ops := w.call.Name(), w.group.comm.Operations()
	switch fault := ops.Begin(op); {
	case fault != nil:
		err = fault
	case err != nil:
		err = fmt.Errorf("%s: %w", op, err)
	case w.generation != ops.Generation():
		err = fmt.Errorf("%s: %w: ranks were masked before it was seen to end", op, weft.ErrAborted)
	}
	w.err = err
	w.done.Store(true)
}

// Wait waits until the call has ended, and returns its error: the same for every Wait. If ctx ends first
// the call goes on, and Wait may be called again.
func (w *Work) Wait(ctx context.Context) error {
	op := w.call.Name()
	switch {
	case w.Done():
	case w.captured:
		return weft.Unsupportedf("%s: it was captured, so it has not run; wait for the graph's launch", op)
	case w.event != nil:
		if err := w.group.comm.Operations().Await(ctx, op, w.reach); err != nil && !w.Done() {
			return err
		}
		w.end(nil)
	default:
		select {
		case token := <-w.ended:
			w.ended <- token
		case <-ctx.Done():
			return fmt.Errorf("%s: it has not ended: %w", op, context.Cause(ctx))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// WaitOn makes a stream wait for the call, without waiting itself; nil is the communicator's own. If the
// call fails the stream goes on: [Work.Err] says so.
func (w *Work) WaitOn(s *weft.Stream) error {
	op := w.call.Name()
	if w.event == nil {
		return weft.Unsupportedf("%s: the host has no streams; use Wait", op)
	}
	stream := s.CUDA()
	if stream == nil {
		stream = w.group.works.own.CUDA()
	}
	if err := stream.WaitEvent(w.event); err != nil {
		return fmt.Errorf("%s: %w", op, err)
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
func (w *Work) Close() error {
	w.mu.Lock()
	again := w.closed
	w.closed = true
	free := !again && (w.event != nil || w.done.Load())
	w.mu.Unlock()
	if free {
		w.group.works.give(w)
	}
	return nil
}

// works are a group's Works.
type works struct {
	mu   sync.Mutex
	free *Work
	all  []*Work
	own  *weft.Stream // the communicator's
}

// take gives a Work that is free, or a new one.
func (p *works) take(g *Group) (*Work, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.free; w != nil {
		p.free, w.next, w.closed = w.next, nil, false
		return w, nil
	}
	w := &Work{group: g}
	if d := g.comm.Device(); d != nil {
		if p.own == nil {
			p.own = weft.StreamOf(d.Stream())
		}
		event, err := d.Context().NewEvent(cuda.EventOptions{})
		if err != nil {
			return nil, err
		}
		w.event, w.reach = event, event.Wait
	} else {
		w.ended = make(chan struct{}, 1)
	}
	p.all = append(p.all, w)
	return w, nil
}

// give takes a Work back.
func (p *works) give(w *Work) {
	select {
	case <-w.ended:
	default:
	}
	clear(w.transfers)
	w.call, w.norm, w.refused, w.stream, w.algorithm, w.err, w.captured = Call{}, Norm{}, nil, nil, "", nil, false
	w.done.Store(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	w.next, p.free = p.free, w
}

// close closes all events.
func (p *works) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, w := range p.all {
		if w.event != nil {
			errs = append(errs, w.event.Close())
		}
	}
	p.all, p.free = nil, nil
	return errors.Join(errs...)
}
