package eptest

import (
	"context"
	"errors"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// Steps is a case that a test takes through its operations one by one, on a handle of its own
// choice. Every step compares what comes out with the reference, and returns what differs as an
// error.
type Steps struct {
	r        *runner
	received *ep.Received

	// Between, if set, is called between the two halves of operations that have two.
	Between func()
}

// Batch is a case with its inputs, which ranks of one process share.
type Batch struct{ trial *trial }

// Batch prepares the inputs of the case, with the given ranks left out.
func (c Case) Batch(masked ...int) *Batch { return &Batch{newTrial(c, masked...)} }

// Steps begins the batch on one rank.
func (b *Batch) Steps(e Engine, comm *weft.Comm, h *ep.Handle) (*Steps, error) {
	t := b.trial
	s := &Steps{r: &runner{trial: t, engine: e, comm: comm, handle: h}}
	s.r.between = func() {
		if s.Between != nil {
			s.Between()
		}
	}
	s.r.off = t.layOut(&arena{}, comm.Rank())
	memory, err := e.Alloc(comm, t.size, t.Operand == WindowOperand)
	s.r.memory = memory
	return s, err
}

// Free gives the memory of the case back.
func (s *Steps) Free() error {
	if s.received != nil {
		s.received.Release()
	}
	if s.r.routing != nil {
		s.r.routing.Release()
	}
	return s.r.memory.Free()
}

// Prepare computes the routing, which the other steps need.
func (s *Steps) Prepare(ctx context.Context) error {
	return s.step(func() error {
		if s.r.routing != nil {
			s.r.routing.Release()
			s.r.routing = nil
		}
		if err := s.r.prepare(ctx); err != nil {
			return err
		}
		return s.r.describe()
	})
}

// Dispatch moves the rows of round i, 0 or 1, and keeps what arrives for Combine.
func (s *Steps) Dispatch(ctx context.Context, i int) error {
	return s.step(func() error {
		received, err := s.r.dispatch(ctx, i, true)
		if err != nil {
			return err
		}
		if s.received != nil {
			s.received.Release()
		}
		s.received = received
		return nil
	})
}

// Combine brings rows home.
func (s *Steps) Combine(ctx context.Context) error {
	return s.step(func() error { return s.r.combine(ctx, s.received) })
}

// DispatchBackward brings gradients of rows home.
func (s *Steps) DispatchBackward(ctx context.Context) error {
	return s.step(func() error { return s.r.dispatchBackward(ctx) })
}

// CombineBackward takes gradients to the experts.
func (s *Steps) CombineBackward(ctx context.Context) error {
	return s.step(func() error { return s.r.combineBackward(ctx) })
}

func (s *Steps) step(f func() error) error {
	s.r.wrong = nil
	if err := f(); err != nil {
		return err
	}
	return errors.Join(s.r.wrong...)
}

// Routing is what Prepare made.
func (s *Steps) Routing() *ep.Routing { return s.r.routing }

// Do runs the whole batch on one rank, on a handle of its own.
func (b *Batch) Do(e Engine, comm *weft.Comm) error { return b.trial.do(e, comm) }
