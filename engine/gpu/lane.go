package gpu

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
)

// LaneSpec describes a lane.
type LaneSpec struct {
	Op    string // the operation in errors: "new handle"
	Owner string // the object in errors: "handle"
	// Words name the operations of the lane's kernels in errors. They live as long as the program.
	Words  *device.Words
	Window *Workspace // the memory of each rank that all ranks reach
	Local  *Workspace // the memory that only this rank's GPU reaches: NewLocal, and regions behind it
	// Ring, if there is one, hands out receive buffers. RingInWindow says that they are in the
	// window.
	Ring         *Ring
	RingInWindow bool
	// Within: on a communicator of several hosts the lane's kernels meet the ranks of their own host alone. Others
	// have no window.
	Within bool
	// Multicast: where windows have multicast addresses, the lane's has one.
	Multicast bool
	// Parts are what the lane's counts are of, in their order, where kernels of different grids make it up: in traces
	// each is a track of its own. Without them all counts are of the same operations.
	Parts []Part
	// Patience is how many times the communicator's deadline a wait of the lane's kernels may take; 0: once.
	Patience int
	// Moved is called when the lane's memory gets addresses, when it gets others, and when former
	// ones ([Lane.Former]) are freed: it sets the arguments of launches.
	Moved func(*Lane)
	// Far, of kernels that reach ranks of other hosts, makes what they reach them by: when the lane's memory has
	// addresses, and anew whenever the lane begins anew. It is collective, and returns when kernels of all ranks may
	// run.
	Far func(ctx context.Context, op string, l *Lane) error
}

// NewLocal begins a local workspace with the lane's state at offset 0, which has a count for each
// of so many blocks. Kernels of different grids that make up one lane have counts behind each
// other.
func NewLocal(counts int) *Workspace {
	w := &Workspace{counts: counts}
	w.Zeros(device.StateBytes + int64(counts)*device.CountBytes)
	return w
}

// Lane is a sequence of operations that ranks make in the same order, each one kernel that meets
// its peers, or two when it is sent and received apart. The lane owns the memory that they work in
// and their counters. It begins anew after ranks were masked, and ends when nothing of it runs.
//
// Its methods are called from one goroutine at a time.
type Lane struct {
	spec   LaneSpec
	comm   *weft.Comm
	device *weft.Device
	window *weft.Window
	local  *cuda.Memory // the ring of a lane that is traced, and the local workspace behind it
	trace  *laneTrace   // nil: it is not traced
	former []memory
	graphs bool // one knows the present memory

	capture    uint64 // that the call is in; 0: none
	generation uint64
	operations uint64
	half       string // the operation that was sent and not yet received
	closed     bool
	released   bool
}

// memory is a lane's memory from before ranks were masked.
type memory struct {
	window *weft.Window
	local  *cuda.Memory
	graphs bool // one knows it
}

func (m memory) close() error {
	if m.window == nil {
		return m.local.Close()
	}
	return errors.Join(m.window.Close(), m.local.Close())
}

// NewLane makes a lane. It is collective. When it returns, every rank's memory is as kernels want
// it, so operations may begin. The caller closes it.
func NewLane(ctx context.Context, comm *weft.Comm, spec LaneSpec) (*Lane, error) {
	l := &Lane{spec: spec, comm: comm, device: comm.Device(), generation: comm.Operations().Generation()}
	var err, untraced error
	l.trace, untraced = newTrace(ctx, comm, spec)
	if l.window, err = l.alloc(ctx); err != nil {
		return nil, errors.Join(err, l.trace.close())
	}
	if l.local, err = l.allocLocal(); err == nil {
		err = cmp.Or(untraced, l.begin())
	}
	if err == nil {
		spec.Moved(l)
	}
	// No peer may write into a window before it is as the kernels want it.
	err = comm.Operations().VerifySame(ctx, spec.Op, "memory", err)
	if err == nil && spec.Far != nil {
		err = spec.Far(ctx, spec.Op, l)
	}
	if err != nil {
		_, again := l.Close()
		return nil, errors.Join(err, again)
	}
	return l, nil
}

// alloc allocates the memory that ranks reach.
func (l *Lane) alloc(ctx context.Context) (*weft.Window, error) {
	if l.spec.Within || l.spec.Far != nil {
		return l.comm.Operations().AllocNear(ctx, int(l.spec.Window.Size()))
	}
	if l.spec.Multicast {
		return l.comm.Alloc(ctx, int(l.spec.Window.Size()))
	}
	return l.comm.Operations().AllocDevice(ctx, int(l.spec.Window.Size()))
}

// allocLocal allocates the memory that only this rank's GPU reaches.
func (l *Lane) allocLocal() (*cuda.Memory, error) {
	return l.device.Context().Alloc(l.trace.bytes() + int(l.spec.Local.Size()))
}

// meets says whether the lane's kernels on this rank meet those of another.
func (l *Lane) meets(rank int) bool {
	return !l.spec.Within || l.comm.Host(rank) == l.comm.Host(l.comm.Rank())
}

// begin gives the memory the content that the first operation of a generation wants. Nothing of the
// lane runs.
func (l *Lane) begin() error {
	s := l.device.Stream()
	if n := l.trace.bytes(); n > 0 {
		if err := s.Memset(l.local.Pointer(), 0, n); err != nil {
			return err
		}
	}
	if err := cmp.Or(l.spec.Window.begin(s, l.window.Pointer()), l.spec.Local.begin(s, l.Local(0)),
		s.Synchronize()); err != nil {
		return err
	}
	l.trace.begin(l.Local(0), l.comm.Operations().Generation())
	mask := l.comm.Mask()
	for r := range l.comm.Size() {
		if !l.meets(r) {
			mask = mask.With(r)
		}
	}
	masked := mask.Words()
	return l.setState(device.State{
		Masked:  [2]uint64(masked[:]),
		Timeout: uint64(max(l.comm.Deadline(), time.Millisecond)) * uint64(max(l.spec.Patience, 1)),
		Trace:   l.trace.word(),
	})
}

func (l *Lane) setState(s device.State) error {
	return l.device.Context().Upload(l.Local(0), unsafe.Slice((*byte)(unsafe.Pointer(&s)), unsafe.Sizeof(s)))
}

// Window is the memory that all ranks reach. It is another one after some masks: see
// LaneSpec.Moved.
func (l *Lane) Window() *weft.Window { return l.window }

// Local is where an offset in the local workspace is. The state is at 0.
func (l *Lane) Local(offset int64) cuda.Pointer {
	return l.local.Pointer().Add(l.trace.bytes() + int(offset))
}

// Group is the ranks, in the form that kernels take. waits is the array in which they count the
// waits for each rank, or 0. The window of a rank of another host is this rank's own: see LaneSpec.Far.
func (l *Lane) Group(waits uint64) device.Group {
	ops := l.comm.Operations()
	g := device.Group{
		Abort: uint64(ops.AbortWord()), Record: uint64(ops.WaitRecord()), Claim: uint64(ops.WaitClaim()), Waits: waits,
		Ranks: uint32(l.comm.Size()), Rank: uint32(l.comm.Rank()), Lane: ops.Lane(l.spec.Words),
	}
	for rank := range l.comm.Size() {
		g.Window[rank] = uint64(l.window.PeerPointer(rank))
		if l.spec.Far != nil && l.comm.Host(rank) != l.comm.Host(l.comm.Rank()) {
			g.Window[rank] = uint64(l.window.Pointer())
		}
	}
	return g
}

// Operations is how many operations have been enqueued: the same on every rank when it makes the
// same call.
func (l *Lane) Operations() uint64 { return l.operations }

// Capture is the capture that the call is in, or 0.
func (l *Lane) Capture() uint64 { return l.capture }

// Capturing reports whether a stream captures now, at any time: within an operation Capture has the
// answer.
func Capturing(s *cuda.Stream) (bool, error) {
	capture, err := s.CaptureID()
	return capture != 0, err
}

// Bytes is how much memory of the GPU the lane takes.
func (l *Lane) Bytes() int {
	n := l.window.Size() + l.local.Size()
	for _, f := range l.former {
		if n += f.local.Size(); f.window != nil {
			n += f.window.Size()
		}
	}
	return n
}

// Enter begins a call, and returns the stream to enqueue on: the caller's, or the communicator's
// own if s is nil. It fails if the lane is closed, if the communicator has failed, or if an
// operation was sent and is still to be received. After ranks were masked it first begins the lane
// anew, with all ranks that go on.
func (l *Lane) Enter(ctx context.Context, op string, s *weft.Stream) (*cuda.Stream, error) {
	if l.closed {
		return nil, fmt.Errorf("%s: %s %w", op, l.spec.Owner, weft.ErrClosed)
	}
	if err := l.comm.Operations().Begin(op); err != nil {
		return nil, err
	}
	stream := l.Stream(s)
	if g := l.comm.Operations().Generation(); g != l.generation {
		if status, err := stream.CaptureStatus(); err != nil || status != cuda.NotCapturing {
			return nil, cmp.Or(err, weft.Unsupportedf("%s: the first operation after ranks were masked "+
				"cannot be captured; run one before", op))
		}
		if err := l.restart(ctx, op); err != nil {
			return nil, err
		}
		l.generation, l.half = g, ""
		l.operations++ // operations that were sent before cannot be received any more
	}
	return stream, l.EnterLocal(op, stream)
}

// EnterLocal begins a call on a stream that meets no peers. It fails if an operation was sent and
// is still to be received.
func (l *Lane) EnterLocal(op string, stream *cuda.Stream) error {
	if l.half != "" {
		return weft.Invalidf("%s: the %s's %s has been sent and not received; receive it first", op, l.spec.Owner, l.half)
	}
	return l.Note(stream)
}

// Note records whether the next operation goes into a graph.
func (l *Lane) Note(stream *cuda.Stream) (err error) {
	l.capture, err = stream.CaptureID()
	l.graphs = l.graphs || l.capture != 0
	return err
}

// Stream is the stream to enqueue on: the caller's, or the communicator's own if s is nil.
func (l *Lane) Stream(s *weft.Stream) *cuda.Stream {
	if stream := s.CUDA(); stream != nil {
		return stream
	}
	return l.device.Stream()
}

// Start enqueues the kernel that begins an operation. Operations of a lane launch kernels that meet
// peers by it and by Receive only.
func (l *Lane) Start(stream *cuda.Stream, launch *cuda.Launch) error {
	if err := launch.Start(stream); err != nil {
		return err
	}
	l.operations++
	return nil
}

// Receive enqueues the kernel of an operation's second half.
func (l *Lane) Receive(stream *cuda.Stream, launch *cuda.Launch) error { return launch.Start(stream) }

// Finish ends a call: it waits for the work if the caller gave no stream.
func (l *Lane) Finish(ctx context.Context, s *weft.Stream) error {
	if s.CUDA() != nil {
		return nil
	}
	return l.comm.Wait(ctx, nil)
}

// Half is an operation that was sent and is still to be received.
type Half struct {
	lane      *Lane
	op        string
	stream    *weft.Stream
	operation uint64
}

// Sent says that the operation which was started has only been sent: no other begins until it is
// received.
func (l *Lane) Sent(op string, s *weft.Stream) Half {
	l.half = op
	return Half{l, op, s, l.operations}
}

// Resume begins the second half of an operation, and returns the stream to enqueue on.
func (h Half) Resume() (*cuda.Stream, error) {
	l := h.lane
	if l.closed {
		return nil, fmt.Errorf("%s: %s %w", h.op, l.spec.Owner, weft.ErrClosed)
	}
	if l.operations != h.operation || l.generation != l.comm.Operations().Generation() {
		return nil, fmt.Errorf("%s: %w: ranks were masked after it was sent; prepare and send again", h.op, weft.ErrAborted)
	}
	l.half = ""
	stream := l.Stream(h.stream)
	return stream, cmp.Or(l.comm.Operations().Begin(h.op), l.Note(stream))
}

// Finish ends the call of the second half.
func (h Half) Finish(ctx context.Context) error { return h.lane.Finish(ctx, h.stream) }

// restart begins anew after SetMask, which has seen to it that nothing of before runs on this GPU.
// All ranks that go on call it.
//
// If the same ranks go on that began, the memory gets its first content again and captured graphs
// stay valid. A rank that was masked alive may still write to memory whose addresses it has. The
// others therefore take new memory then, and again when it comes back; graphs that hold old
// addresses find it stopped for good. With LaneSpec.Far they do so after every mask. Old memory that no graph knows is
// freed.
func (l *Lane) restart(ctx context.Context, op string) error {
	l.trace.end()
	move := byte(0)
	for r := range l.comm.Size() {
		if l.comm.Masked(r) || l.window.PeerPointer(r) == 0 && l.meets(r) {
			move = 1
		}
	}
	// No rank clears memory that another rank's last operation may still read before all have come
	// here.
	held := uint32(0)
	if l.spec.Ring != nil {
		held = l.spec.Ring.Held()
	}
	notes, err := l.comm.Operations().GatherNotes(ctx, op, binary.LittleEndian.AppendUint32([]byte{move}, held))
	if err != nil {
		return err
	}
	held = 0
	for _, n := range notes {
		if len(n) == 5 {
			move |= n[0]
			held |= binary.LittleEndian.Uint32(n[1:])
		}
	}
	if l.spec.Ring != nil {
		l.spec.Ring.restart(bits.TrailingZeros32(^held)) // a buffer that no rank holds
	}
	if move != 0 {
		if err := l.relocate(ctx, op); err != nil {
			return err
		}
	}
	// No rank sends before all have begun.
	err = l.comm.Operations().VerifySame(ctx, op, "begun anew", cmp.Or(l.begin(), l.free(ctx)))
	if err == nil && l.spec.Far != nil {
		err = l.spec.Far(ctx, op, l)
	}
	return err
}

// relocate takes new memory, and stops graphs that hold the present addresses.
func (l *Lane) relocate(ctx context.Context, op string) error {
	err := l.setState(device.State{Stopped: 1})
	local, again := l.allocLocal()
	if err := l.comm.Operations().VerifySame(ctx, op, "memory", cmp.Or(err, again)); err != nil {
		if local != nil {
			err = errors.Join(err, local.Close())
		}
		return err
	}
	before := memory{local: l.local, graphs: l.graphs}
	l.local = local
	window, err := l.alloc(ctx)
	if err != nil {
		l.former = append(l.former, before)
		return err
	}
	before.window, l.window = l.window, window
	l.former = append(l.former, before)
	l.graphs = false
	l.spec.Moved(l)
	return nil
}

// freePatience is how long free waits for work that may still read buffers that were received and
// put back. Peers wait meanwhile.
const freePatience = time.Second

// free closes former memory that nothing reaches any more. Peers that were masked alive have
// mappings of their own, which keep virtual memory alive. A graph may be launched as long as the
// lane lives, and a held buffer is read until Put: memory that one of them knows stays, until the
// next restart or Close.
func (l *Lane) free(ctx context.Context) error {
	held := l.spec.RingInWindow && l.spec.Ring.buffers.AnyHeld()
	if !l.device.Virtual() || held || !slices.ContainsFunc(l.former, func(m memory) bool { return !m.graphs }) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(freePatience, l.comm.Deadline()/4))
	defer cancel()
	if l.comm.Operations().Quiesce(ctx, "free memory") != nil {
		return nil // the callers of that work will get an error
	}
	var errs []error
	l.former = slices.DeleteFunc(l.former, func(m memory) bool {
		if !m.graphs {
			errs = append(errs, m.close())
		}
		return !m.graphs
	})
	l.spec.Moved(l)
	return errors.Join(errs...)
}

// Former gives the windows that the lane had before ranks were masked, as far as anything may still
// know them.
func (l *Lane) Former() iter.Seq[*weft.Window] {
	return func(yield func(*weft.Window) bool) {
		for _, m := range l.former {
			if m.window != nil && !yield(m.window) {
				return
			}
		}
	}
}

// Close waits until nothing of the rank's runs on its GPU, for the communicator's deadline at most,
// and frees the lane's memory. If work still runs, Close has freed nothing, the error wraps
// [weft.ErrTimeout], and the caller is to call it again: unmapping memory under a kernel would
// destroy the whole context. released says that the owner may free its other memory, too.
func (l *Lane) Close() (released bool, err error) {
	if l.released {
		return true, nil
	}
	l.closed = true
	ended, err := quiesce(l.comm, "close "+l.spec.Owner, "the "+l.spec.Owner+"'s memory stays")
	if !ended {
		l.trace.flush()
		return false, err
	}
	l.released = true
	errs := []error{err, l.trace.close(), l.window.Close()}
	for _, f := range l.former {
		errs = append(errs, f.close())
	}
	if l.local != nil {
		errs = append(errs, l.local.Close())
	}
	return true, errors.Join(errs...)
}

// quiesce waits until no work of the rank runs on its GPU, at most for the communicator's deadline:
// work of any stream, graph or library. ended is false if work still runs; the error then says so,
// and names the object that stays.
func quiesce(comm *weft.Comm, op, keeps string) (ended bool, err error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), comm.Deadline(), weft.ErrTimeout)
	defer cancel()
	err = comm.Operations().Quiesce(ctx, op)
	if err != nil && ctx.Err() != nil {
		return false, fmt.Errorf("%w after %v; end it (streams, graphs and other libraries of the process "+
			"count) and call Close again: until then %s",
			err, comm.Deadline(), keeps)
	}
	return true, err
}
