package channel

import "context"

// Semaphore is a pair of signals between two ranks, one for each direction: the peer's signals
// arrive in this rank's memory, and this rank's signals in the peer's. Counts are 64-bit and
// monotonic, so s signals may be outstanding and w waits consume them one by one, in any
// interleaving.
//
// Signal orders: a rank that has waited for a signal sees every store made before it. A Semaphore
// may be used by one goroutine at a time on each side.
type Semaphore struct {
	peer     int
	in, out  *Counter
	sent     uint64
	consumed uint64
	waiter   *Waiter
}

// NewSemaphore joins the counter that the peer raises (in, in this rank's memory) and the one that
// this rank raises (out, in the peer's memory). Both must be fresh: a signal that the peer has sent
// by now is one to be waited for.
func NewSemaphore(w *Waiter, peer int, in, out *Counter) *Semaphore {
	return &Semaphore{peer: peer, in: in, out: out, waiter: w}
}

// Signal raises the peer's inbound counter by one.
func (s *Semaphore) Signal() {
	s.sent++
	s.out.Publish(s.sent)
}

// Wait consumes one signal of the peer, and blocks until there is one. A failed Wait consumes
// nothing.
func (s *Semaphore) Wait(ctx context.Context) error {
	if err := s.waiter.Wait(ctx, s.in, s.consumed+1, "semaphore wait", s.peer); err != nil {
		return err
	}
	s.consumed++
	return nil
}

// Poll consumes one signal if there is one.
func (s *Semaphore) Poll() bool {
	if s.in.Load() <= s.consumed {
		return false
	}
	s.consumed++
	return true
}
