package weft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/engine"
	"github.com/weftgo/weft/internal/filelimit"
	"github.com/weftgo/weft/internal/shm"
)

// Comm is a communicator: a fixed set of ranks, of which this process, or this goroutine, is one.
// Its operations are collective: every rank calls them, in the same order, each from one goroutine
// at a time per communicator or handle.
//
// If ranks call operations in different orders and therefore wait for each other, the error names no
// rank: its [PeerError] has the rank -1, wraps [ErrTimeout] and lists the cycle.
//
// A failure is sticky. Once a rank has died, or a wait has reached its deadline, every operation
// returns the same [*PeerError], until the survivors call [Comm.SetMask] and continue without that
// rank.
type Comm struct {
	rank, size int
	bootstrap  bootstrap.Bootstrap
	mesh       *shm.Mesh
	pages      []*controlPage // by rank
	regions    []*shm.Region
	waiter     channel.Waiter
	logger     *slog.Logger
	hugePages  bool
	local      int // ranks on this host, this one included
	inProcess  int // ranks in this process, this one included

	sameProcess []bool // by rank
	remote      int    // the lowest rank on another host, or -1

	device   *Device        // nil on the host
	record   *device.Record // the device's, or noRecord
	noRecord device.Record

	mask       atomic.Pointer[RankSet] // masked ranks
	died       sharedRankSet
	left       sharedRankSet
	generation atomic.Uint64 // advances with every SetMask
	closed     atomic.Bool
	released   atomic.Bool  // its memory
	closing    sync.RWMutex // read-locked by code that may read shared memory while another goroutine closes

	agreement struct {
		sync.Mutex
		rounds channel.Sequence
	}
	objects struct {
		sync.Mutex
		made map[string]int // by kind
	}
	windows windowList
	shelf   engine.Shelf
}

// Rank is this rank, from 0.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks, masked ones included.
func (c *Comm) Size() int { return c.size }

// LocalSize is the number of ranks on this host.
func (c *Comm) LocalSize() int { return c.local }

// Deadline bounds every wait, beside the wait's context.
func (c *Comm) Deadline() time.Duration { return c.waiter.Timeout }

// Masked reports whether a rank is masked: it takes part in no operation.
func (c *Comm) Masked(rank int) bool { return c.mask.Load().has(rank) }

// Mask returns the set of masked ranks.
func (c *Comm) Mask() RankSet {
	if m := c.mask.Load(); m != nil {
		return *m
	}
	return RankSet{} // before Join has returned
}

// Err returns the failure that every operation returns until [Comm.SetMask], or nil. It may be
// called from any goroutine.
func (c *Comm) Err() error {
	c.closing.RLock()
	defer c.closing.RUnlock()
	return c.begin("communicator")
}

func (c *Comm) begin(op string) error {
	if c.closed.Load() {
		return fmt.Errorf("%s: communicator %w", op, ErrClosed)
	}
	if c.pages[c.rank].fault.Fault().Cause == channel.CauseNone &&
		atomic.LoadUint32(&c.record.State) == device.RecordEmpty {
		return nil
	}
	return c.fault(op)
}

func (c *Comm) waiterOf(kind string) *channel.Waiter {
	c.objects.Lock()
	defer c.objects.Unlock()
	if c.objects.made == nil {
		c.objects.made = map[string]int{}
	}
	c.objects.made[kind]++
	w := c.waiter
	w.Object = fmt.Sprintf("%s %d", kind, c.objects.made[kind])
	return &w
}

// Abort makes every pending and later operation of every rank fail with an error that names this
// rank and wraps [ErrAborted], until [Comm.SetMask]. It may be called from any goroutine.
func (c *Comm) Abort() { c.spread(channel.Fault{Cause: channel.CauseAbort, Rank: c.rank}) }

func (c *Comm) fail(err error) error {
	var peer *PeerError
	switch {
	case err == nil:
	case filelimit.Reached(err):
		c.spread(channel.Fault{Cause: channel.CauseFiles, Rank: c.rank})
	case !errors.As(err, &peer):
		// The caller's context ended: this rank is to blame.
		c.Abort()
	case errors.Is(err, ErrDied), errors.Is(err, ErrAborted), errors.Is(err, ErrMasked):
		// The other ranks know already.
	case errors.Is(err, ErrLeft):
		c.spread(channel.Fault{Cause: channel.CauseLeft, Rank: peer.Rank})
	case errors.Is(err, ErrTimeout) && peer.Rank < 0:
		// The ranks in the cycle, and those that wait for it, know already.
	case errors.Is(err, ErrTimeout):
		c.spread(channel.Fault{Cause: channel.CauseTimeout, Rank: peer.Rank})
	default:
		// A peer's data breaks the agreement, or this rank cannot use it: this rank aborts.
		c.Abort()
	}
	return err
}

// fault turns the abort word into an error. It clears a word that concerns a rank that is masked by
// now. It copies the record of a device wait to the abort words of this rank and of the others.
func (c *Comm) fault(op string) error {
	own := &c.pages[c.rank].fault
	record, recorded := c.recorded()
	for {
		f := own.Fault()
		if f.Cause == channel.CauseNone {
			// An earlier fault may have hidden the death of an unmasked rank.
			dead := c.died.load().Minus(c.Mask()).Lowest()
			switch {
			case dead >= 0:
				own.Abort(c.report(channel.Fault{Cause: channel.CauseDied, Rank: dead}))
			case recorded:
				c.tell(c.verdict(record))
			default:
				return nil
			}
			continue
		}
		// A masked rank that wakes late may still report faults: they are ignored. One exception:
		// ranks that this rank has masked may have masked this rank in turn.
		over := c.Masked(f.Reporter) || f.Rank != c.rank && c.Masked(f.Rank)
		if f.Older(c.generation.Load()) || over && !(f.Cause == channel.CauseMasked && c.leftOut()) {
			own.Clear(f)
			continue
		}
		if recorded {
			return c.recordError(f, record)
		}
		return c.waiter.Err(f, op)
	}
}

// report adds the reporter and the generation to a fault. During SetMask that is the generation that
// this rank has published.
func (c *Comm) report(f channel.Fault) channel.Fault {
	f.Reporter, f.Generation = c.rank, c.pages[c.rank].mask.target.Load()
	return f
}

// spread reports a fault to every rank that can be reached.
func (c *Comm) spread(f channel.Fault) {
	c.closing.RLock()
	defer c.closing.RUnlock()
	if !c.closed.Load() {
		c.tell(f)
	}
}

// tell is spread for callers that know that shared memory stays mapped. A rank that finds itself
// masked writes its own abort word only.
func (c *Comm) tell(f channel.Fault) {
	if c.leftOut() {
		c.pages[c.rank].fault.Abort(c.report(channel.Fault{Cause: channel.CauseMasked, Rank: c.rank}))
		return
	}
	f = c.report(f)
	c.logger.Warn("fault", "rank", c.rank, "about", f.Rank, "cause", f.Cause)
	c.pages[c.rank].fault.Abort(f)
	for r, p := range c.pages {
		if p != nil && !c.Masked(r) && !c.maskedBy(p) {
			p.fault.Abort(f)
		}
	}
}

// maskedBy reports whether the owner of p has masked this rank.
func (c *Comm) maskedBy(p *controlPage) bool {
	return p.mask.target.Load() > c.generation.Load() && p.mask.set.has(c.rank)
}

// event handles an event of the mesh: a peer left or died.
func (c *Comm) event(e shm.Event) {
	switch e.Kind {
	case shm.Left:
		c.left.add(e.Peer)
	case shm.Died:
		c.died.add(e.Peer)
		if !c.Masked(e.Peer) {
			c.logger.Warn("rank died", "rank", c.rank, "about", e.Peer, "error", e.Err)
			if own := c.pages[c.rank]; own != nil {
				own.fault.Abort(c.report(channel.Fault{Cause: channel.CauseDied, Rank: e.Peer}))
			}
		}
	}
}

func (c *Comm) find(p unsafe.Pointer, n int) (w *Window, offset int, ok bool) {
	for _, w := range c.windows.open() {
		if off := uintptr(p) - w.base; uintptr(p) >= w.base && off+uintptr(n) <= uintptr(w.size) {
			return w, int(off), true
		}
	}
	return nil, 0, false
}

func (c *Comm) windowOf(id uint64) (*Window, bool) {
	for _, w := range c.windows.open() {
		if w.id == id {
			return w, true
		}
	}
	return nil, false
}

func (c *Comm) leave() error {
	c.closing.Lock()
	again := c.closed.Swap(true)
	c.closing.Unlock()
	if again {
		return nil
	}
	var err error
	if c.mesh != nil {
		err = c.mesh.Close()
	}
	return errors.Join(err, c.bootstrap.Close())
}

// Close leaves the communicator. Peers that still wait for this rank get an error that wraps
// [ErrLeft]; they can still read data that it published. Windows and handles of the communicator
// become unusable. Close waits for no other rank; no operation of this rank may be in progress. On a
// GPU it first waits until the work in the rank's context has ended, at most until the deadline. If
// work still runs then, its memory stays mapped, and the error says so.
func (c *Comm) Close() error {
	errs := []error{c.leave()}
	if c.released.Swap(true) {
		return errors.Join(errs...)
	}
	if c.device != nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), c.waiter.Timeout, ErrTimeout)
		defer cancel()
		if err := c.device.quiesce(ctx, "close"); err != nil && ctx.Err() != nil {
			// A kernel that reads unmapped memory destroys the whole context, so keep it mapped.
			return errors.Join(append(errs, err)...)
		}
	}
	for _, w := range c.windows.close() {
		errs = append(errs, w.release())
	}
	if c.device != nil {
		errs = append(errs, c.device.close())
	}
	for _, r := range c.regions {
		if r != nil {
			errs = append(errs, r.Release())
		}
	}
	return errors.Join(errs...)
}

// wait waits for a counter of a peer, and reports a failure to the other ranks.
func (c *Comm) wait(ctx context.Context, ctr *channel.Counter, want uint64, op string, peer int) error {
	if err := c.waiter.Wait(ctx, ctr, want, op, peer); err != nil {
		return c.fail(err)
	}
	return nil
}
