package pull

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/ranktest"
)

// joinHandles makes a handle on each of n goroutine ranks, which leave when the test ends. The
// tests of this file spoil what ranks tell each other, which only the package itself can.
func joinHandles(t testing.TB, n int, s spec.Spec) ([]*weft.Comm, []*host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	comms, made := ranktest.New(t, n, weft.WithDeadline(10*time.Second)), make([]*host, n)
	err := ranktest.Each(comms, func(c *weft.Comm) error {
		e, err := NewHost(ctx, spec.NewBase(c, s))
		if err == nil {
			made[c.Rank()] = e.(*host)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return comms, made
}

// header is the part of a rank's header with its operands.
type header struct {
	window, offset [2]uint64
	stride         [2]uint32
}

// headerOf is what a rank says of its operands in a round.
func (h *host) headerOf(rank int, round uint64) *header {
	mem := h.rounds.Payload(rank, round, int(unsafe.Sizeof(header{})))
	return (*header)(unsafe.Pointer(unsafe.SliceData(mem)))
}

// TestBrokenOperand has one rank offer an operand that is smaller than its routing says, or that lies
// in no window. Its reader finds that out before it reads behind the end, names the rank, and tells
// the others, which would wait for it to be done.
func TestBrokenOperand(t *testing.T) {
	// Rank 0 has no tokens; those of rank 1 go to rank 0, and those of rank 2 stay there.
	const ranks, bystander = 3, 2
	topk := [ranks][]int32{{}, {0, 0}, {2, 2}}
	s := spec.Spec{Experts: ranks, TopK: 1, Hidden: 8, MaxTokens: 2, Payload: spec.FP32, Layout: spec.ExpertPacked}
	comms, made := joinHandles(t, ranks, s)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	near := func(h *host, size int) uint64 { return uint64(h.pool.window.Size() - size) }
	for _, test := range []struct {
		name         string
		op           string
		liar, reader int
		words        string
		is           error
		lie          func(h *host, n *header)
	}{
		{
			"behind the end", spec.OpDispatch, 1, 0, "offers 32 bytes where its routing needs 64", weft.ErrMismatch,
			func(h *host, n *header) { n.offset[0] = near(h, 32) },
		},
		{
			"within a row of the end", spec.OpDispatch, 1, 0, "offers 63 bytes", weft.ErrMismatch,
			func(h *host, n *header) { n.offset[0] = near(h, 63) },
		},
		{
			"outside", spec.OpDispatch, 1, 0, "offers 0 bytes", weft.ErrMismatch,
			func(_ *host, n *header) { n.offset[0] = 1 << 60 },
		},
		{
			"far apart", spec.OpDispatch, 1, 0, "its routing needs", weft.ErrMismatch,
			func(_ *host, n *header) { n.stride[0] = 1 << 31 },
		},
		{
			"as far apart as can be", spec.OpDispatch, 1, 0, "its routing needs", weft.ErrMismatch,
			func(_ *host, n *header) { n.stride[0] = 1<<32 - 1 },
		},
		{
			"no window", spec.OpDispatch, 1, 0, "offers 0 bytes", weft.ErrMismatch,
			func(_ *host, n *header) { n.window[0] = 0 },
		},
		{
			"closed window", spec.OpDispatch, 1, 0, "which this rank has closed", weft.ErrClosed,
			func(_ *host, n *header) { n.window[0] = 1 << 50 },
		},
		{
			"behind the end", spec.OpCombine, 0, 1, "smaller than its routing", weft.ErrMismatch,
			func(h *host, n *header) { n.offset[0] = near(h, 32) },
		},
		{
			"no window", spec.OpCombine, 0, 1, "smaller than its routing", weft.ErrMismatch,
			func(_ *host, n *header) { n.window[0] = 0 },
		},
	} {
		t.Run(test.op+"/"+test.name, func(t *testing.T) {
			told := make(chan struct{})
			err := ranktest.Each(comms, func(c *weft.Comm) error {
				rank := c.Rank()
				h := made[rank]
				tokens := len(topk[rank])
				r, err := h.Prepare(ctx, nil, spec.PrepareArgs{
					TopK: weft.TensorOf(topk[rank], tokens, 1), Weights: weft.TensorOf(make([]float32, tokens), tokens, 1),
				})
				if err != nil {
					return err
				}
				defer r.Release()
				// Operands in a window: every rank waits until all have read them.
				offset, err := h.block()
				if err != nil {
					return err
				}
				defer h.pool.put(offset)
				h.Buffers.Fill(offset/h.pool.size, r.Epoch)
				mem := h.pool.window.Bytes()[offset:]
				var receive func() error
				if test.op == spec.OpDispatch {
					p, err := h.SendDispatch(ctx, nil, spec.MoveArgs{
						Batch: r, Data: weft.TensorAt(mem, weft.Float32, tokens, s.Hidden),
					})
					if err != nil {
						return err
					}
					receive = func() error {
						_, err := p.Receive(ctx)
						return err
					}
				} else {
					out := weft.TensorOf(make([]float32, tokens*s.Hidden), tokens, s.Hidden)
					w, err := h.SendCombine(ctx, nil, spec.SumArgs{
						Batch: r, Rows: weft.TensorAt(mem, weft.Float32, r.Info.Rows(), s.Hidden), Out: out,
					})
					if err != nil {
						return err
					}
					receive = func() error { return w.Wait(ctx) }
				}
				if rank == test.liar {
					test.lie(h, h.headerOf(rank, h.rounds.Last()))
					close(told)
				}
				select {
				case <-told:
				case <-ctx.Done():
					return ctx.Err()
				}
				err = receive()
				peer, ok := errors.AsType[*weft.PeerError](err)
				switch {
				case !ok:
					return fmt.Errorf("%w: no rank is named", err)
				case rank == test.reader && (peer.Rank != test.liar || !errors.Is(err, test.is) ||
					!strings.Contains(err.Error(), test.words)):
					return fmt.Errorf("%w, want rank %d and %q", err, test.liar, test.words)
				case rank == bystander && (peer.Rank != test.reader || !errors.Is(err, weft.ErrAborted)):
					return fmt.Errorf("%w, want rank %d, which gave up", err, test.reader)
				}
				return h.Comm.SetMask(ctx)
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	if err := ranktest.Each(comms, func(c *weft.Comm) error {
		_, err := made[c.Rank()].Close()
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestRoutingsComeBack has operations make a Routing and fail: it is idle again, for the next to
// use.
func TestRoutingsComeBack(t *testing.T) {
	_, made := joinHandles(t, 1, spec.Spec{Experts: 2, TopK: 1, Hidden: 8, MaxTokens: 1, Live: 1})
	h := made[0]
	ctx := context.Background()
	topk, weights := weft.TensorOf([]int32{1}, 1, 1), weft.TensorOf([]float32{1}, 1, 1)
	a := spec.MoveArgs{TopK: topk, Weights: weights, Data: weft.TensorOf(make([]weft.BF16, 8), 1, 8)}
	held, err := h.Dispatch(ctx, nil, a)
	if err != nil {
		t.Fatal(err)
	}
	idle := func(n int) {
		t.Helper()
		if len(h.idle) != n {
			t.Errorf("%d idle routings, want %d", len(h.idle), n)
		}
	}
	for range 3 {
		if _, err := h.Dispatch(ctx, nil, a); !errors.Is(err, weft.ErrUnsupported) {
			t.Fatalf("with a full pool: %v", err)
		}
		idle(1)
	}
	h.Put(held.Buffer)
	next, err := h.Dispatch(ctx, nil, a)
	if err != nil {
		t.Fatal(err)
	}
	h.Put(next.Buffer)
	next.Batch.Release()
	idle(1)
	held.Batch.Release()
	held.Batch.Release() // again: the memory may be another's by now
	idle(2)
	p, err := h.SendDispatch(ctx, nil, a)
	if err != nil {
		t.Fatal(err)
	}
	idle(1)
	if err := h.Comm.SetMask(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Receive(ctx); !errors.Is(err, weft.ErrAborted) {
		t.Fatalf("received across a mask: %v", err)
	}
	idle(2)
	if _, err := h.Close(); err != nil {
		t.Fatal(err)
	}
}

// FuzzOperands moves rows by operands that may be anything: a rank that was left behind reads what
// others write meanwhile. It reads from windows, or says whose operand makes no sense.
func FuzzOperands(f *testing.F) {
	_, made := joinHandles(f, 1, spec.Spec{Experts: 2, TopK: 2, Hidden: 128, MaxTokens: 3, Payload: spec.FP8})
	h := made[0]
	f.Cleanup(func() {
		if _, err := h.Close(); err != nil {
			f.Error(err)
		}
	})
	ctx := context.Background()
	topk, weights := weft.TensorOf([]int32{0, 1, -1, -1, 1, -1}, 3, 2), weft.TensorOf(make([]float32, 6), 3, 2)
	r, err := h.Prepare(ctx, nil, spec.PrepareArgs{TopK: topk, Weights: weights})
	if err != nil {
		f.Fatal(err)
	}
	routing := h.routingOf(r)
	windows := []uint64{0, 1 << 40}
	for _, w := range h.windows {
		windows = append(windows, w.ID())
	}
	notes := func(window [2]uint8, offset [2]uint64, stride [2]uint32) []byte {
		b := []byte{window[0], window[1]}
		for i := range 2 {
			b = binary.LittleEndian.AppendUint64(b, offset[i])
			b = binary.LittleEndian.AppendUint32(b, stride[i])
		}
		return b
	}
	for w := range uint8(len(windows)) {
		size := uint64(0)
		if w > 1 {
			size = uint64(h.windows[w-2].Size())
		}
		for _, offset := range []uint64{
			0, 64, size - 384, size - 129, size - 1, size, size + 1, 1<<64 - 1,
			1<<64 - 256, 1 << 63,
		} {
			for _, stride := range []uint32{128, 0, 1, 1 << 31, 1<<32 - 1} {
				f.Add(notes([2]uint8{w, 4}, [2]uint64{offset, 0}, [2]uint32{stride, 4}))
				f.Add(notes([2]uint8{4, w}, [2]uint64{0, offset}, [2]uint32{128, stride}))
			}
		}
	}
	rows, home := make([]byte, h.Geometry.Rows()*(128+4)), make([]weft.BF16, 3*128)
	f.Fuzz(func(t *testing.T, raw []byte) {
		raw = append(raw, make([]byte, 26)...)
		n := h.headerOf(0, h.rounds.Last())
		for i := range 2 {
			n.window[i] = windows[int(raw[i])%len(windows)]
			n.offset[i] = binary.LittleEndian.Uint64(raw[2+12*i:])
			n.stride[i] = binary.LittleEndian.Uint32(raw[10+12*i:])
		}
		said := *n
		base := unsafe.Pointer(unsafe.SliceData(rows))
		h.scratch.mover = mover{
			h: h, r: routing, rowBytes: 128, scaleBytes: 4, dst: base,
			dstScales: unsafe.Add(base, h.Geometry.Rows()*128), scaleRows: h.Geometry.Rows(),
		}
		h.scratch.gather = gather{
			h: h, r: routing, op: "test", weighted: true,
			SumArgs: spec.SumArgs{Out: weft.TensorOf(home, 3, 128)},
		}
		for _, move := range []func() error{
			func() error { return h.scratch.mover.pull(t.Context(), "test") },
			func() error { return h.scratch.gather.home(t.Context()) },
			func() error { return h.fetchScalars(t.Context(), routing, 1, weights, "test", 0) },
			func() error { return h.fetchScalars(t.Context(), routing, 1, weights, "test", 1) },
		} {
			err := move()
			if err == nil {
				continue
			}
			if peer, ok := errors.AsType[*weft.PeerError](err); !ok || peer.Rank != 0 ||
				!errors.Is(err, weft.ErrMismatch) && !errors.Is(err, weft.ErrClosed) {
				t.Fatal(err)
			}
			if err := h.Comm.SetMask(ctx); err != nil { // it has given up, and goes on
				t.Fatal(err)
			}
			if err := h.rounds.Begin("test"); err != nil {
				t.Fatal(err)
			}
			*h.headerOf(0, h.rounds.Last()) = said
		}
	})
}
