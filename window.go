package weft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/internal/shm"
)

// Window is symmetric memory: a segment of the same size on every rank, mapped by every rank of its host. These
// can load and store in it; channels say when. Operands that lie in a window move without a staging copy. Ranks of
// other hosts write into a segment by package fabric: see [Window.Remote], and on GPUs [Window.Staging].
type Window struct {
	comm    *Comm
	id      uint64
	size    int
	base    uintptr  // of this rank's segment, on the host or on its GPU
	mem     []byte   // this rank's segment; nil on a GPU
	peers   [][]byte // by rank; nil for ranks masked when the window was made
	regions []*shm.Region
	huge    bool

	pointers []cuda.Pointer // peer pointers, by rank; nil on the host
	held     []io.Closer    // on a GPU: closed with the window, in this order
	own      io.Closer      // on a GPU: frees this rank's segment if it is the window's; after them

	multicast cuda.Pointer // the address of all segments at once; 0: there is none

	staging *cuda.HostMemory // on a GPU: what other hosts reach in place of the segment; nil: they reach that, or none is

	stagingFile *shm.Region // which has that; nil: it is the driver's

	grants      sync.Mutex     // around what SetMask and Close change:
	region      *fabric.Region // of this rank's segment, where there are other hosts
	alias       *shm.Alias     // the memory of that
	source      *fabric.Region // of the same, that this rank writes from; nil: region is
	sourceAlias *shm.Alias
	closed      bool
	remotes     []fabric.Remote // by rank: segments on other hosts
	met         uint64          // the generation in which the ranks of those and this one met for it

	once sync.Once
	err  error
}

// Alloc makes a window of at least size bytes per rank, zeroed; on a GPU it is device memory. It is
// collective: all ranks call it with the same size, in the same order as their other Allocs and
// Registers.
func (c *Comm) Alloc(ctx context.Context, size int) (*Window, error) {
	const op = "alloc window"
	if err := c.gate.Enter(op); err != nil {
		return nil, err
	}
	defer c.gate.Leave()
	if err := c.begin(op); err != nil {
		return nil, err
	}
	if size < 0 {
		return c.window(ctx, op, size, nil, Invalidf("%s: %d bytes", op, size))
	}
	if c.device != nil {
		return c.allocDevice(ctx, op, size, c.multicasts(), true)
	}
	return c.allocHost(ctx, op, size)
}

// allocHost makes a window of new host memory.
func (c *Comm) allocHost(ctx context.Context, op string, size int) (*Window, error) {
	o := shm.Options{Huge: shm.HugeAuto, Populate: size <= populateLimit}
	if !c.hugePages {
		o.Huge = shm.HugeOff
	}
	own, err := shm.Create("weft-window", max(size, 1), o)
	if err != nil {
		err = fmt.Errorf("%s: %w", op, err)
	}
	return c.window(ctx, op, size, own, err)
}

// populateLimit is the largest window whose pages Alloc populates. The first touch of a 4 KiB page
// costs about half a microsecond. Larger windows are often used in part only, and pay at the touch.
const populateLimit = 64 << 20

// Register makes a window of the caller's memfd: at least size bytes, sealed against shrinking.
// Register owns the descriptor and closes it, even when it fails.
func (c *Comm) Register(ctx context.Context, fd, size int) (*Window, error) {
	const op = "register window"
	own, err := shm.FromFD(fd, size)
	if closed := c.gate.Enter(op); closed != nil {
		if own != nil {
			closed = errors.Join(closed, own.Release())
		}
		return nil, closed
	}
	defer c.gate.Leave()
	switch {
	case err != nil:
		err = fmt.Errorf("%s: %w: %w", op, ErrInvalid, err)
	case c.device != nil:
		err = Unsupportedf("%s: the rank is on a GPU; pass memory of the GPU, or make a window with memory "+
			"of its own", op)
	}
	return c.window(ctx, op, size, own, err)
}

// RegisterMemory makes a window of plain memory; all ranks must be goroutines of this process. The
// memory stays the caller's and must outlive the window on every rank.
func (c *Comm) RegisterMemory(ctx context.Context, mem []byte) (*Window, error) {
	const op = "register memory"
	if err := c.gate.Enter(op); err != nil {
		return nil, err
	}
	defer c.gate.Leave()
	if err := c.requireOneHost(op); err != nil {
		return nil, err
	}
	if c.device != nil {
		return nil, Unsupportedf("%s: the rank is on a GPU; pass memory of the GPU, or make a window with memory "+
			"of its own", op)
	}
	if c.inProcess != c.size {
		return nil, Unsupportedf("%s: ranks of other processes cannot see plain memory; pass a memfd, or "+
			"make a window with memory of its own", op)
	}
	if err := c.verifySame(ctx, op, fmt.Sprintf("bytes: %d", len(mem)), nil); err != nil {
		return nil, err
	}
	ctx, cancel := c.bounded(ctx, op)
	defer cancel()
	id := c.windows.next(c.control.Generation())
	peers, err := c.mesh.ExchangeMemory(ctx, id, mem, c.Masked)
	if err != nil {
		return nil, c.meshError(op, err)
	}
	w := &Window{comm: c, id: id, size: len(mem), base: addressOf(mem), mem: mem, peers: peers}
	if err := c.windows.add(op, w); err != nil {
		return nil, err
	}
	return w, nil
}

// window makes a window of this rank's segment, or passes err to the other ranks.
func (c *Comm) window(ctx context.Context, op string, size int, own *shm.Region, err error) (*Window, error) {
	if err := c.verifySame(ctx, op, fmt.Sprintf("bytes: %d", size), err); err != nil {
		if own != nil {
			return nil, errors.Join(err, own.Release())
		}
		return nil, err
	}
	within, cancel := c.bounded(ctx, op)
	id := c.windows.next(c.control.Generation())
	regions, err := c.mesh.Exchange(within, id, own, c.Masked)
	cancel()
	if err != nil {
		return nil, errors.Join(c.meshError(op, err), own.Release())
	}
	mem := own.Bytes()[:size:size]
	w := &Window{
		comm: c, id: id, size: size, base: addressOf(mem), mem: mem, peers: make([][]byte, c.size),
		regions: regions, huge: own.HugePages(),
	}
	for r, g := range regions {
		if g != nil {
			w.peers[r] = g.Bytes()[:size:size]
		}
	}
	if c.spans() {
		if err := c.connect(ctx, op, w); err != nil {
			return nil, errors.Join(err, w.release())
		}
	}
	if err := c.windows.add(op, w); err != nil {
		return nil, errors.Join(err, w.release())
	}
	return w, nil
}

func addressOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// bounded is ctx for exchanges of the mesh: it also ends soon after the abort word is set, and at
// the communicator's deadline. The caller calls stop.
//
// It checks the abort word before the deadline, because the clock of a rank that was stopped and
// woken says nothing about its peers. At the deadline it finds the culprit and sets the abort words.
// Meanwhile the peers see which rank this one waits for, as they do in the Waiter's waits.
func (c *Comm) bounded(ctx context.Context, op string) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(c.control.Pace(2 * time.Millisecond))
		defer tick.Stop()
		for watch := (channel.Stopwatch{}); ; {
			waited, peer := watch.Look(), c.mesh.Awaited()
			if err := c.begin(op); err != nil {
				cancel(err)
				return
			}
			if peer >= 0 {
				c.control.Waiter.Show(op, peer)
				c.control.Waiter.ReportWait(op, peer, &watch)
			}
			if waited > c.control.Waiter.Timeout && peer >= 0 {
				culprit := c.control.Waiter.Culprit(channel.Record{Op: op, Peer: peer}, 0)
				if c.mesh.Awaited() != peer { // the peer has answered by now
					continue
				}
				c.spread(channel.Fault{Cause: channel.CauseTimeout, Rank: culprit})
				cancel(cmp.Or(c.begin(op), ErrTimeout))
				return
			}
			if waited > c.control.Waiter.Timeout+sendTime { // it was sending: the mesh's error names the receiver
				cancel(ErrTimeout)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		watching.Wait()
		c.control.Waiter.Hide()
	}
}

// sendTime is how long after the deadline an exchange may still send before it begins to wait.
const sendTime = 50 * time.Millisecond

// String names the window and its size: "window 3 of 4096 bytes a rank".
func (w *Window) String() string { return fmt.Sprintf("window %d of %d bytes a rank", w.id, w.size) }

// meshError turns a failure of the mesh into an error, and reports it to the other ranks.
func (c *Comm) meshError(op string, err error) error {
	if fault, ok := errors.AsType[*PeerError](err); ok { // the abort word's, by way of bounded
		return fault
	}
	err = ownLimit(op, c.rank, translate(op, err))
	if peer, ok := errors.AsType[*PeerError](err); ok &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		// The caller's context ended: no peer is to blame.
		err = fmt.Errorf("%s: still waiting for rank %d: %w", op, peer.Rank, peer.Err)
	}
	if peer, ok := err.(*PeerError); ok && (peer.Err == ErrDied || peer.Err == ErrLeft) {
		cause := channel.CauseDied
		if peer.Err == ErrLeft {
			cause = channel.CauseLeft
		}
		err = c.control.Waiter.Err(channel.Fault{Cause: cause, Rank: peer.Rank, Reporter: c.rank}, op)
	}
	if err = c.fail(err); c.control.LeftOut() {
		return c.begin(op)
	}
	return err
}

// translate turns an error of the mesh into this package's.
func translate(op string, err error) error {
	var peer *shm.PeerError
	switch {
	case !errors.As(err, &peer):
		return fmt.Errorf("%s: %w", op, err)
	case errors.Is(err, shm.ErrDied):
		return &PeerError{Rank: peer.Peer, Op: op, Err: ErrDied}
	case errors.Is(err, shm.ErrLeft):
		return &PeerError{Rank: peer.Peer, Op: op, Err: ErrLeft}
	default:
		return &PeerError{Rank: peer.Peer, Op: op, Err: peer.Err}
	}
}

// windowList is the windows of a communicator that are open on this rank. Operations look through
// it without a lock; it is copied when it changes, which is rare.
type windowList struct {
	mu     sync.Mutex
	last   uint64
	closed bool
	list   atomic.Pointer[[]*Window]
}

func (l *windowList) open() []*Window {
	if p := l.list.Load(); p != nil {
		return *p
	}
	return nil
}

// next returns the identifier of the next window. All ranks make windows in the same order, but a
// masked rank misses some. The count therefore begins anew with every generation.
func (l *windowList) next(generation uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, generation<<32) + 1
	return l.last
}

func (l *windowList) add(op string, w *Window) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("%s: communicator %w", op, ErrClosed)
	}
	list := append(slices.Clone(l.open()), w)
	l.list.Store(&list)
	return nil
}

func (l *windowList) remove(w *Window) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(l.open()), func(o *Window) bool { return o == w })
	l.list.Store(&list)
}

func (l *windowList) close() []*Window {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	list := l.open()
	l.list.Store(nil)
	return list
}

// ID identifies the window; it is the same on every rank.
func (w *Window) ID() uint64 { return w.id }

// Size is the size in bytes of each rank's segment.
func (w *Window) Size() int { return w.size }

// Bytes is this rank's segment; nil on a GPU.
func (w *Window) Bytes() []byte { return w.mem }

// Peer is a rank's segment as this rank maps it; nil for a rank that was masked when the window was
// made, for one of another host, and on a GPU.
func (w *Window) Peer(rank int) []byte { return w.peers[rank] }

// Pointer is the address of this rank's segment on its GPU; 0 on the host.
func (w *Window) Pointer() cuda.Pointer {
	if w.pointers == nil {
		return 0
	}
	return w.pointers[w.comm.rank]
}

// PeerPointer is the address at which this rank's GPU reaches a rank's segment; 0 on the host, and
// for a rank of another host and one that was masked when the window was made.
func (w *Window) PeerPointer(rank int) cuda.Pointer {
	if w.pointers == nil {
		return 0
	}
	return w.pointers[rank]
}

// HugePages reports whether this rank's segment lies on huge pages.
func (w *Window) HugePages() bool { return w.huge }

// Close closes the window on this rank. The memory is freed when every rank has closed it. On a GPU
// no work may still use it. Memory that is not virtual (registered from a plain allocation, or on a
// GPU without virtual memory) is freed when its owner closes, so ranks of other processes close
// first.
//
// Between hosts the operations of all ranks that use the window have ended, or failed. After a failure ranks of other
// hosts may still have bytes on their way. Memory of a GPU that these could land in is freed when a [Comm.SetMask]
// without masked ranks has found that they have landed, or when the communicator is closed.
func (w *Window) Close() error {
	w.comm.windows.remove(w)
	return w.release()
}

func (w *Window) release() error {
	w.once.Do(func() {
		var errs []error
		if w.remotes != nil && w.size > 0 {
			w.comm.reach.rest(w.comm.control.Waiter.Timeout, w.comm.Masked)
		}
		errs = append(errs, w.revoke())
		for _, r := range w.regions {
			if r != nil {
				errs = append(errs, r.Release())
			}
		}
		for _, h := range w.held {
			errs = append(errs, h.Close())
		}
		if w.staging != nil && w.stagingFile == nil {
			errs = append(errs, w.free(w.staging))
		}
		switch {
		case w.own == nil:
		case w.staging != nil: // other hosts have reached that
			errs = append(errs, w.own.Close())
		default:
			errs = append(errs, w.free(w.own))
		}
		w.err = errors.Join(errs...)
	})
	return w.err
}
