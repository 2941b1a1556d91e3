package service

import (
	"context"
	"errors"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/internal/control"
)

// as is an error of package fabric's that is one of package weft's, too.
type as struct {
	error
	kind error
}

func (e as) Unwrap() []error { return []error{e.error, e.kind} }

// translate gives errors of package fabric their kinds of package weft.
func translate(err error) error {
	for _, k := range []struct{ from, to error }{
		{fabric.ErrLost, weft.ErrDied},
		{fabric.ErrInvalid, weft.ErrInvalid},
		{fabric.ErrRevoked, weft.ErrInvalid},
		{fabric.ErrUnsupported, weft.ErrUnsupported},
		{fabric.ErrClosed, weft.ErrClosed},
	} {
		if errors.Is(err, k.from) && !errors.Is(err, k.to) {
			return as{err, k.to}
		}
	}
	return err
}

// watched is a context that the communicator's failures end, too: for waits that look at its Err again and again.
type watched struct {
	context.Context
	s    *Service
	op   string
	peer int // or -1
}

func (w watched) Err() error {
	if err := w.Context.Err(); err != nil {
		return err
	}
	return w.s.failed(w.op, w.peer) // and no more: a domain's lock may be held
}

// failed is why nothing can be asked of the peer, or nil.
func (s *Service) failed(op string, peer int) error {
	if err := s.ops.Begin(op); err != nil {
		return err
	}
	if peer >= 0 && s.comm.Masked(peer) {
		return &weft.PeerError{Rank: peer, Op: op, Err: weft.ErrMasked}
	}
	return nil
}

// sound is failed, and ends the channels to the rank that is gone.
func (s *Service) sound(op string, peer int) error {
	err := s.failed(op, peer)
	if err == nil {
		return nil
	}
	if failed, ok := errors.AsType[*weft.PeerError](err); ok &&
		(errors.Is(err, weft.ErrDied) || errors.Is(err, weft.ErrLeft) || errors.Is(err, weft.ErrMasked)) {
		s.lose(failed.Rank, err)
	}
	return err
}

// gone says whether a rank has left in good order.
func (s *Service) gone(peer int) bool { return s.waiter.Gone != nil && s.waiter.Gone(peer) }

// lost is why a channel to a rank has failed, for the communicator, which may ask while a lock is held.
func (s *Service) lost(rank int) error {
	if p := s.meetings[rank].port.Load(); p != nil {
		return p.Err()
	}
	return nil
}

// lose ends the channels to a rank.
func (s *Service) lose(rank int, why error) {
	if rank < 0 || rank >= len(s.meetings) {
		return
	}
	if p := s.meetings[rank].port.Load(); p != nil {
		p.Fail(why)
	}
}

// told is the error of a call for a peer. Where the communicator knows more, its error is the one: a connection ends
// before the end of its process is known.
func (s *Service) told(ctx context.Context, op string, peer int, err error) error {
	if err == nil {
		return nil
	}
	for begun := time.Now(); errors.Is(err, fabric.ErrLost) && time.Since(begun) < control.NewsTime && ctx.Err() == nil; {
		if s.sound(op, peer) != nil || s.gone(peer) {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	switch failed := s.sound(op, peer); {
	case failed != nil:
		return failed
	case s.gone(peer):
		return &weft.PeerError{Rank: peer, Op: op, Err: weft.ErrLeft}
	}
	return translate(err)
}
