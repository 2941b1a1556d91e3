package weft

import (
	"cmp"
	"context"
	"log/slog"
	"unsafe"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/engine"
	"github.com/weftgo/weft/trace"
)

// Operations is what implementers of operations use of a communicator, beside what its users do:
// packages collective and ep, engines, and a user's own kernels. An operation
//
//   - calls Begin before all else, and returns its error;
//   - compares its arguments with VerifySame or GatherNotes when it is set up, not at every call;
//   - folds Generation into the numbers that it publishes;
//   - waits for its peers with a Waiter, or in a kernel that looks at AbortWord;
//   - hands an error that it met half-way to Fail.
type Operations struct{ comm *Comm }

// Operations is for those who implement operations on this communicator.
func (c *Comm) Operations() Operations { return Operations{c} }

// Begin is the first thing that an operation does: it returns the sticky failure, if there is one,
// in op's name.
func (o Operations) Begin(op string) error { return o.comm.begin(op) }

// Fail is what an operation does with an error that it met half-way: peers are told at once instead
// of finding out at their deadline. It returns err.
func (o Operations) Fail(err error) error { return o.comm.fail(err) }

// FailHere makes an error this rank's failure: one that others meet by themselves, in their own words, as where calls
// differ. tell tells those that did not.
func (o Operations) FailHere(err error) (tell func()) {
	c := o.comm
	c.closing.RLock()
	defer c.closing.RUnlock()
	if c.closed.Load() {
		return func() {}
	}
	if r, g := c.reason.Load(), c.control.Generation(); r == nil || r.generation != g {
		c.reason.Store(&reason{g, err})
	}
	pass := c.control.Stop()
	return func() {
		c.closing.RLock()
		defer c.closing.RUnlock()
		if !c.closed.Load() {
			pass()
		}
	}
}

// Generation is 0 at first and grows with every [Comm.SetMask], to the same number on all unmasked
// ranks. Operations fold it into their epochs, so that nothing published before a failure is taken
// for something published after it.
func (o Operations) Generation() uint64 { return o.comm.control.Generation() }

// MaskPointer is where the set of masked ranks lies: hot paths keep and compare the address instead
// of the set. [Comm.SetMask] puts another one in its place; callers change none. It is nil before
// Join has returned.
func (o Operations) MaskPointer() *RankSet {
	if o.comm.control == nil {
		return nil
	}
	return o.comm.control.MaskPointer()
}

// Waiter waits on behalf of this rank: by its policy, deadline and abort word.
func (o Operations) Waiter() *channel.Waiter { return &o.comm.control.Waiter }

// WaiterOf is a Waiter of an object's own, for one of which a communicator has several: a "handle",
// say. Its number goes with the object's name when ranks wait for each other. It is the same on
// every rank, for objects of a kind are made in the same order.
func (o Operations) WaiterOf(kind string) *channel.Waiter { return o.comm.waiterOf(kind) }

// Logger is that of [WithLogger], or one that logs nothing.
func (o Operations) Logger() *slog.Logger { return o.comm.logger }

// GatherNotes gives every unmasked rank's note, of at most 1 KiB, to every unmasked rank; the
// entries of masked ranks are nil. It is a small all-gather through the control pages, meant for
// set-up.
func (o Operations) GatherNotes(ctx context.Context, op string, note []byte) ([][]byte, error) {
	return o.comm.gatherNotes(ctx, op, note)
}

// VerifySame returns an error that wraps [ErrMismatch] on every rank, unless all unmasked ranks pass
// the same text. Of texts of the form "name: value, name: value" the error has what differs. If a rank
// passes an error of its own, all ranks return an error: that rank its own, the others a [*PeerError]
// that names it and wraps what the error does of [ErrInvalid], [ErrUnsupported] and [ErrMismatch], else
// [ErrAborted].
func (o Operations) VerifySame(ctx context.Context, op, text string, own error) error {
	return o.comm.verifySame(ctx, op, text, own)
}

// Find returns the window that wholly contains n bytes at p in this rank's own part, and the offset
// in it. On a GPU p is an address of the device's.
func (o Operations) Find(p unsafe.Pointer, n int) (w *Window, offset int, ok bool) {
	return o.comm.find(p, n)
}

// Window returns the open window with the given identifier, which is the same on every rank.
func (o Operations) Window(id uint64) (*Window, bool) { return o.comm.windowOf(id) }

// AllocDevice is [Comm.Alloc] on GPUs for memory of an operation's own, which never has multicast addresses:
// switches have room for few groups.
func (o Operations) AllocDevice(ctx context.Context, size int) (*Window, error) {
	const op = "alloc window"
	if err := o.comm.gate.Enter(op); err != nil {
		return nil, err
	}
	defer o.comm.gate.Leave()
	if err := cmp.Or(o.comm.begin(op), o.comm.requireOneHost(op)); err != nil {
		return nil, err
	}
	return o.comm.allocDevice(ctx, op, size, false, false)
}

// AllocNear is AllocDevice for memory that ranks of each host alone reach, of a communicator of several hosts too:
// pointers of ranks on other hosts are 0. It is collective over all ranks.
func (o Operations) AllocNear(ctx context.Context, size int) (*Window, error) {
	const op = "alloc window"
	if err := o.comm.gate.Enter(op); err != nil {
		return nil, err
	}
	defer o.comm.gate.Leave()
	if err := o.comm.begin(op); err != nil {
		return nil, err
	}
	return o.comm.allocDevice(ctx, op, size, false, false)
}

// AllocHost is [Comm.Alloc] of memory of the host, also where ranks are on GPUs: for the hosts' part in an operation.
func (o Operations) AllocHost(ctx context.Context, size int) (*Window, error) {
	const op = "alloc window"
	if err := o.comm.gate.Enter(op); err != nil {
		return nil, err
	}
	defer o.comm.gate.Leave()
	if err := o.comm.begin(op); err != nil {
		return nil, err
	}
	return o.comm.allocHost(ctx, op, size)
}

// Trace is where the rank's operations are recorded: nil where they are not.
func (o Operations) Trace() *trace.Writer { return o.comm.trace }

// Shelf has the buffers that the communicator's objects receive into, so that each knows memory of
// another's.
func (o Operations) Shelf() *engine.Shelf { return &o.comm.shelf }

// Leave tells the peers that this rank is gone. Its memory stays mapped until [Comm.Close], for
// callers that still use memory of the communicator.
func (o Operations) Leave() error { return o.comm.leave() }

// AbortWord is this rank's abort word as kernels see it: 8 bytes of the host's memory, which the
// hosts of all ranks can write. Waits on the device end when it is not 0. Like all that follows it is
// of a communicator on GPUs.
func (o Operations) AbortWord() cuda.Pointer { return o.comm.device.abort.pointer }

// WaitRecord is where a wait on the device says why it gave up: a [device.Record] in the host's
// memory. The first to write it keeps it, until [Comm.SetMask].
func (o Operations) WaitRecord() cuda.Pointer { return o.comm.device.memory.Pointer() }

// WaitClaim is the word by which waits on the device settle who writes the record: 4 bytes of the
// GPU's memory, 0 until one does, and again after [Comm.SetMask].
func (o Operations) WaitClaim() cuda.Pointer { return o.comm.device.claim.Pointer() }

// Lane is the number of a lane whose records have these words: what its kernels find in Group.Lane.
// Lanes of the same words have the same number, so words are to live as long as the program.
func (o Operations) Lane(w *device.Words) uint32 { return o.comm.device.lane(w) }

// GaveUp reports whether a kernel of this rank has ended a wait before its peer came, in the generation of that
// number: the present one, or one before. If none has, all work of the generation that has ended has ended well,
// whatever has failed.
func (o Operations) GaveUp(generation uint64) bool {
	c := o.comm
	c.closing.RLock()
	defer c.closing.RUnlock()
	if c.closed.Load() {
		return true
	}
	_, written := c.recorded() // before the look at the set: SetMask adds to it before it clears the record
	return written && generation == c.control.Generation() || c.device.gaveUp.has(generation)
}

// Await waits for work on the device as [Comm.Wait] does, where wait says when it has ended, or that its
// context has: [cuda.Event.Wait], say.
func (o Operations) Await(ctx context.Context, op string, wait func(context.Context) error) error {
	return o.comm.await(ctx, op, wait)
}

// Quiesce waits until the GPU has done all that was asked of it in the rank's context, by whatever
// stream, graph or library, or until ctx ends. It is what comes before memory is taken from under
// kernels.
func (o Operations) Quiesce(ctx context.Context, op string) error {
	return o.comm.device.quiesce(ctx, op)
}
