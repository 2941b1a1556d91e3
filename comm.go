package weft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/engine"
	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/relay"
	"github.com/weftgo/weft/internal/shm"
	"github.com/weftgo/weft/trace"
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
	control    *control.Rank
	regions    []*shm.Region // of control pages
	options    config        // of Join
	logger     *slog.Logger
	urgent     *slog.Logger // see loggers
	hugePages  bool
	local      int // ranks on this host, this one included
	inProcess  int // ranks in this process, this one included

	sameProcess []bool // by rank
	processes   []int  // by rank: process ids on this host, else 0
	ends        ends
	hosts       []int         // by rank: its host
	remote      int           // the lowest rank on another host, or -1
	node        *relay.Node   // of this process, where there are ranks on other hosts
	between     *relay.Member // this rank's part in it
	met         netip.Addr    // by which it has met other ranks, if that is known
	reach       reach
	carriers    carriers

	trace    *trace.Writer  // nil: off
	warned   sync.Once      // that it is incomplete
	device   *Device        // nil on the host
	record   *device.Record // the device's, or noRecord
	noRecord device.Record
	reason   atomic.Pointer[reason] // of a failure that FailHere has been told of

	closed   atomic.Bool
	released atomic.Bool  // its memory
	closing  sync.RWMutex // read-locked by code that may read shared memory while another goroutine closes

	objects struct {
		sync.Mutex
		made map[string]int // by kind
	}
	gates   gates
	gate    *Gate // of the communicator's own calls
	windows windowList
	shelf   engine.Shelf
}

// Rank is this rank, from 0.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks, masked ones included.
func (c *Comm) Size() int { return c.size }

// LocalSize is the number of ranks on this host.
func (c *Comm) LocalSize() int { return c.local }

// Host is the number of a rank's host. Ranks of one host share memory; all ranks have agreed on the
// hosts when they joined, and number them from 0 in the order of their lowest ranks.
func (c *Comm) Host(rank int) int { return c.hosts[rank] }

// String says which rank of how many this is, and on which engine: "rank 2 of 4 on the host".
func (c *Comm) String() string {
	on := "the host"
	if c.device != nil {
		on = "a GPU"
	}
	text := fmt.Sprintf("rank %d of %d on %s", c.rank, c.size, on)
	if c.closed.Load() {
		return text + ", closed"
	}
	if m := c.Mask(); !m.Empty() {
		text += fmt.Sprintf(", without %v", m)
	}
	return text
}

// Deadline bounds every wait, beside the wait's context.
func (c *Comm) Deadline() time.Duration { return c.control.Waiter.Timeout }

// Masked reports whether a rank is masked: it takes part in no operation.
func (c *Comm) Masked(rank int) bool { return c.control != nil && c.control.Masked(rank) }

// Mask returns the set of masked ranks.
func (c *Comm) Mask() RankSet {
	if c.control == nil {
		return RankSet{} // before Join has returned
	}
	return c.control.Mask()
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
	if !c.control.Failed() && atomic.LoadUint32(&c.record.State) == device.RecordEmpty {
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
	w := c.control.Waiter
	w.Object = fmt.Sprintf("%s %d", kind, c.objects.made[kind])
	return &w
}

// Abort makes every pending and later operation of every rank fail with an error that names this
// rank and wraps [ErrAborted], until [Comm.SetMask]. It may be called from any goroutine.
func (c *Comm) Abort() { c.spread(channel.Fault{Cause: channel.CauseAbort, Rank: c.rank}) }

func (c *Comm) fail(err error) error {
	if err != nil {
		c.flushTrace()
		if f := c.control.FaultOf(err); f.Cause != channel.CauseNone {
			c.spread(f)
		}
	}
	return err
}

// reason is why this rank has failed in a generation.
type reason struct {
	generation uint64
	err        error
}

// fault is the error that the abort word and the device's record mean, if they mean one.
func (c *Comm) fault(op string) error {
	if r := c.reason.Load(); r != nil && r.generation == c.control.Generation() &&
		c.control.Fault(nil).Cause != channel.CauseNone {
		return r.err
	}
	record, ok := c.recorded()
	if !ok {
		return c.control.Waiter.Err(c.control.Fault(nil), op)
	}
	return c.recordError(c.control.Fault(func() channel.Fault { return c.verdict(record) }), record)
}

// spread reports a fault to every rank that can be reached.
func (c *Comm) spread(f channel.Fault) {
	c.closing.RLock()
	defer c.closing.RUnlock()
	if !c.closed.Load() {
		c.control.Tell(f)
	}
}

// event handles an event of the mesh: a peer left or died.
func (c *Comm) event(e shm.Event) {
	switch e.Kind {
	case shm.Left:
		c.control.MarkLeft(e.Peer)
	case shm.Died:
		c.noteEnd(e.Peer, e.Err)
		c.control.MarkDied(e.Peer, e.Err)
		c.witness(e)
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
	c.flushTrace()
	if c.between != nil {
		c.reach.rest(c.control.Waiter.Timeout, c.Masked)
		c.between.Leave()
	}
	var err error
	if c.mesh != nil {
		err = c.mesh.Close()
	}
	return errors.Join(err, c.bootstrap.Close())
}

// Close leaves the communicator. Peers that still wait for this rank get an error that wraps
// [ErrLeft]; they can still read data that it published. Windows and handles of the communicator
// become unusable. Close waits for no other rank. While a call of this rank is in progress, also one that was
// started, it returns an error that wraps [ErrBusy], and nothing is closed: [Comm.Abort] ends such calls. On a
// GPU it first waits until the work in the rank's context has ended, at most until the deadline. If
// work still runs then, its memory stays mapped, and the error says so.
func (c *Comm) Close() error {
	if err := c.gates.close(); err != nil {
		return fmt.Errorf("close communicator: %w", err)
	}
	errs := []error{c.leave()}
	if c.released.Swap(true) {
		return errors.Join(errs...)
	}
	if c.device != nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), c.control.Waiter.Timeout, ErrTimeout)
		defer cancel()
		if err := c.device.quiesce(ctx, "close"); err != nil && ctx.Err() != nil {
			c.flushTrace()
			// A kernel that reads unmapped memory destroys the whole context, so keep it mapped.
			return errors.Join(append(errs, err)...)
		}
	}
	for _, w := range c.windows.close() {
		errs = append(errs, w.release())
	}
	errs = append(errs, c.reach.close())
	if c.device != nil {
		errs = append(errs, c.device.close())
	}
	for _, r := range c.regions {
		if r != nil {
			errs = append(errs, r.Release())
		}
	}
	c.closeTrace()
	return errors.Join(errs...)
}
