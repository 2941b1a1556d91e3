package weft

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/internal/control"
)

// recorded is what a wait on the device left when it gave up.
func (c *Comm) recorded() (device.Record, bool) {
	if atomic.LoadUint32(&c.record.State) != device.RecordWritten {
		return device.Record{}, false
	}
	return *c.record, true
}

// generations is a set of numbers of generations, which are few.
type generations struct {
	sync.Mutex
	all []uint64
}

func (g *generations) add(n uint64) {
	g.Lock()
	defer g.Unlock()
	g.all = append(g.all, n)
}

func (g *generations) has(n uint64) bool {
	g.Lock()
	defer g.Unlock()
	return slices.Contains(g.all, n)
}

// words are those of the lane whose kernel left a record; nil if it has none.
func (c *Comm) words(r device.Record) *device.Words {
	if c.device == nil {
		return nil
	}
	return c.device.words(r.Lane)
}

// verdict says who is to blame for what a wait on the device recorded.
func (c *Comm) verdict(r device.Record) channel.Fault {
	peer := int(r.Peer)
	if r.Cause == device.CauseTimeout && peer == c.rank { // for another kernel of its own
		c.control.Waiter.ShowWords("")
		return channel.Fault{Cause: channel.CauseTimeout, Rank: peer}
	}
	if r.Cause == device.CauseMismatch && peer != c.rank && peer >= 0 && peer < c.size && !c.Masked(peer) {
		if words := r.PeerText(c.words(r)); words != "" {
			c.control.Waiter.ShowWords(words)
			return channel.Fault{Cause: channel.CauseMismatch, Rank: peer}
		}
	}
	if r.Cause == device.CauseLost && peer != c.rank && peer >= 0 && peer < c.size && !c.Masked(peer) {
		return c.lost(peer)
	}
	if r.Cause != device.CauseTimeout || peer < 0 || peer >= c.size || c.Masked(peer) {
		// It left for an abort word that meant nothing, or for no reason that we know: the
		// operation is not complete all the same.
		return channel.Fault{Cause: channel.CauseAbort, Rank: c.rank}
	}
	switch {
	case c.control.Died(peer):
		return channel.Fault{Cause: channel.CauseDied, Rank: peer}
	case c.control.Left(peer): // a device cannot know
		return channel.Fault{Cause: channel.CauseLeft, Rank: peer}
	}
	// Nothing is seen of waits on devices before they have ended. Those of a cycle do so at about
	// the same time; what each was stays to be seen until SetMask.
	own := channel.Record{
		Op: r.OperationName(c.words(r)), Object: fmt.Sprintf("epoch %d", r.Epoch), Peer: peer,
		Expected: r.Expected, Seen: r.Seen, Message: r.IsMessage(c.words(r)),
	}
	w := &c.control.Waiter
	w.ShowFinal(own)
	return channel.Fault{Cause: channel.CauseTimeout, Rank: w.Culprit(own, min(deviceGrace, w.Timeout/4))}
}

// deviceGrace is how long a rank whose device has given up waits for others to show that theirs
// have, too.
const deviceGrace = 500 * time.Millisecond

// lost says who is to blame where kernels have found that the port channel to a peer has failed.
func (c *Comm) lost(peer int) channel.Fault {
	end := time.Now().Add(min(control.NewsTime, c.Deadline()/4))
	for ; time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f := c.control.Fault(nil); f.Cause != channel.CauseNone {
			return f // also of a third rank, whose end has ended what was to go to this peer
		}
		if c.control.Left(peer) {
			return channel.Fault{Cause: channel.CauseLeft, Rank: peer}
		}
	}
	why := c.carriers.lost(peer)
	c.logger.Warn("port channel lost", "peer", peer, "error", why)
	if p, ok := errors.AsType[*PeerError](why); ok {
		why = p.Err
	}
	switch {
	case why == nil:
		why = errors.New("the port channel to it has failed")
	case errors.Is(why, fabric.ErrLost):
	case errors.Is(why, fabric.ErrTimeout):
		return channel.Fault{Cause: channel.CauseTimeout, Rank: peer}
	default:
		return channel.Fault{Cause: channel.CauseAbort, Rank: c.rank}
	}
	c.noteEnd(peer, why)
	return channel.Fault{Cause: channel.CauseDied, Rank: peer}
}

// carriers know why ranks are not written to any more.
type carriers struct {
	sync.Mutex
	all map[int]func(rank int) error
	n   int
}

func (s *carriers) add(lost func(rank int) error) (remove func()) {
	s.Lock()
	defer s.Unlock()
	if s.all == nil {
		s.all = map[int]func(int) error{}
	}
	n := s.n
	s.all[n], s.n = lost, n+1
	return func() {
		s.Lock()
		defer s.Unlock()
		delete(s.all, n)
	}
}

// lost is why a rank is not written to; nil if nobody knows.
func (s *carriers) lost(rank int) error {
	s.Lock()
	defer s.Unlock()
	for _, lost := range s.all {
		if err := lost(rank); err != nil {
			return err
		}
	}
	return nil
}

// recordError is the error of a fault that this rank told the others of after a wait on its device
// had ended.
func (c *Comm) recordError(f channel.Fault, r device.Record) error {
	op := r.OperationName(c.words(r))
	if f.Cause == channel.CauseMasked { // what it has seen of the others was not meant for it
		return c.control.Waiter.Err(f, op)
	}
	if r.Cause == device.CauseMismatch {
		why := fmt.Errorf("%w: %s", ErrMismatch, r.MismatchText(c.words(r)))
		return &PeerError{Rank: int(r.Peer), Op: op, Err: why}
	}
	if f.Cause == channel.CauseTimeout && f.Reporter == c.rank && f.Rank == int(r.Peer) {
		why := fmt.Errorf("%w: epoch %d on the GPU: expected %d, seen %d; %s", ErrTimeout, r.Epoch, r.Expected, r.Seen,
			c.explain(f))
		return &PeerError{Rank: f.Rank, Op: op, Err: why}
	}
	return c.control.Waiter.Err(f, op)
}

// abortWord lets kernels see this rank's abort word.
type abortWord struct {
	pointer cuda.Pointer
	memory  *cuda.HostMemory
	word    *atomic.Uint64 // the true one
	copy    *atomic.Uint64 // what kernels see, if it is not that
	stop    chan struct{}
	stopped sync.WaitGroup
}

// The abort word is the first thing of a control page.
const _ = -control.AbortWord

// newAbortWord registers a control page with the driver. Where the driver refuses (some containers
// and kernels cannot pin a memory file), kernels see a copy, which is at most 2 ms old.
func newAbortWord(c *cuda.Context, page []byte) (*abortWord, error) {
	a := &abortWord{word: (*atomic.Uint64)(unsafe.Pointer(&page[0]))}
	var err error
	if a.memory, err = c.RegisterHost(page, cuda.HostOptions{}); err != nil {
		var again error
		if a.memory, again = c.AllocHost(8, cuda.HostOptions{}); again != nil {
			return nil, fmt.Errorf("%w (and %w)", again, err)
		}
		a.copy = (*atomic.Uint64)(unsafe.Pointer(&a.memory.Bytes()[0]))
		a.refresh()
		a.stop = make(chan struct{})
		a.stopped.Go(a.mirror)
	}
	a.pointer = a.memory.Pointer()
	return a, nil
}

func (a *abortWord) mirror() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-a.stop:
			return
		case <-tick.C:
			a.refresh()
		}
	}
}

// refresh brings the copy up to date, if there is one.
func (a *abortWord) refresh() {
	if a.copy != nil {
		a.copy.Store(a.word.Load())
	}
}

func (a *abortWord) close() error {
	if a.stop != nil {
		close(a.stop)
		a.stopped.Wait()
	}
	return a.memory.Close()
}
