package ep_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// waits are a rank's two tensors of waits, in memory of its engine.
type waits struct {
	e   eptest.Engine
	c   *weft.Comm
	mem eptest.Memory
}

func newWaits(e eptest.Engine, c *weft.Comm) (*waits, error) {
	mem, err := e.Alloc(c, 2*8*c.Size(), false)
	return &waits{e, c, mem}, err
}

// tensors are where dispatches and combines count.
func (w *waits) tensors() (dispatch, combine weft.Tensor) {
	n := w.c.Size()
	return weft.Tensor{Data: w.mem.Data, DType: weft.Int64, Shape: []int{n}},
		weft.Tensor{Data: unsafe.Add(w.mem.Data, 8*n), DType: weft.Int64, Shape: []int{n}}
}

// set makes every number that of a wait of d.
func (w *waits) set(d time.Duration) error {
	var raw []byte
	for range 2 * w.c.Size() {
		raw = binary.NativeEndian.AppendUint64(raw, uint64(d))
	}
	return w.e.Upload(w.c, w.mem.Data, raw)
}

// get gives what was counted of each rank.
func (w *waits) get() (dispatch, combine []time.Duration, err error) {
	n := w.c.Size()
	raw := make([]byte, 2*8*n)
	err = w.e.Download(w.c, raw, w.mem.Data)
	all := make([]time.Duration, 2*n)
	for i := range all {
		all[i] = time.Duration(binary.NativeEndian.Uint64(raw[8*i:]))
	}
	return all[:n], all[n:], err
}

// lateness has one rank begin each kind of operation later than the others, and looks at what they
// count.
func lateness(ctx context.Context, e eptest.Engine, c *weft.Comm, h *ep.Handle, b *eptest.Batch, late int) error {
	const pause, base = 400 * time.Millisecond, time.Hour // machines that are loaded are late too
	w, err := newWaits(e, c)
	if err != nil {
		return err
	}
	round, err := b.Round(e, c, h)
	if err != nil {
		return err
	}
	stream := e.Stream(c)
	// whatever is made the first time
	if err := errors.Join(round.PrepareDispatch(ctx, stream), round.Combine(ctx, stream)); err != nil {
		return err
	}
	dispatch, combine := w.tensors()
	if err := h.CountWaits(dispatch, combine); err != nil {
		return err
	}
	for _, op := range []struct {
		name              string
		dispatch, combine bool // what it counts of the late rank
		call              func(context.Context, *weft.Stream) error
	}{
		{"prepare", true, false, round.Prepare},
		{"dispatch", true, false, round.Dispatch},
		{"prepare and dispatch", true, false, round.PrepareDispatch},
		{"combine", false, true, round.Combine},
		{"gradients", true, false, round.Backward}, // combine's is the first of them
	} {
		if err := errors.Join(e.Sync(c), w.set(base), eptest.Meet(c)); err != nil {
			return err
		}
		if c.Rank() == late {
			time.Sleep(pause)
		}
		if err := errors.Join(op.call(ctx, stream), e.Sync(c)); err != nil {
			return err
		}
		d, m, err := w.get()
		if err != nil {
			return err
		}
		for _, lane := range []struct {
			name   string
			got    []time.Duration
			counts bool
		}{{"dispatch", d, op.dispatch}, {"combine", m, op.combine}} {
			for rank, got := range lane.got {
				got -= base
				expected := lane.counts && rank == late && c.Rank() != late
				if expected && got < pause/2 || !expected && got > pause/2 || got < 0 || rank == c.Rank() && got != 0 {
					return fmt.Errorf("%s: rank %d was waited for %v in %s, where rank %d was %v late", op.name,
						rank, got, lane.name, late, pause)
				}
			}
		}
	}

	// What is counted no more.
	if err := errors.Join(w.set(base), h.CountWaits(weft.Tensor{}, weft.Tensor{}), eptest.Meet(c)); err != nil {
		return err
	}
	if err := errors.Join(round.PrepareDispatch(ctx, stream), round.Combine(ctx, stream), e.Sync(c)); err != nil {
		return err
	}
	d, m, err := w.get()
	for rank := range d {
		if d[rank] != base || m[rank] != base {
			err = errors.Join(err, fmt.Errorf("rank %d was waited for %v and %v when nobody counted", rank,
				d[rank]-base, m[rank]-base))
		}
	}
	return errors.Join(err, round.Check(), round.Free(), w.mem.Free())
}

func TestCountWaits(t *testing.T) {
	const ranks, late = 3, 1
	ctx := testContext(t)
	for _, s := range []ep.Spec{exactRows, tokenRows} {
		t.Run(s.Layout.String(), func(t *testing.T) {
			s := sized(s, ranks)
			group := join(t, ranks)
			made := handles(t, group, s)
			b := evenly(s, ranks, 1, min(s.MaxTokens, 20)).Batch()
			engine := eptest.NewHost()
			each(t, group, func(c *weft.Comm) error { return lateness(ctx, engine, c, made[c.Rank()], b, late) })
		})
	}
}

func TestCountWaitsOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks, late = 3, 1
		for i, way := range ways {
			if m.emulated && (i%2 != 0 || i > 0 && !emulate.Everything()) {
				continue // most of the time is spent in being late
			}
			t.Run(way.name, func(t *testing.T) {
				if !m.holds(ranks) {
					t.Skip("ranks would share a GPU")
				}
				s := sized(way.spec, ranks)
				b := evenly(s, ranks, 1, min(s.MaxTokens, 20)).Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					return lateness(ctx, r.e, r.Comm, r.handle, b, late)
				})
			})
		}
	})
}

// TestCountWaitsOfGradientsBetweenGPUs: one of two ranks begins after the other, which counts that, in gradients that
// port channels do not bring.
func TestCountWaitsOfGradientsBetweenGPUs(t *testing.T) {
	eachHost(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		s := sized(exactRows, ranks)
		b := evenly(s, ranks, 1, 5).Batch()
		var dispatch, combine atomic.Int64 // of all ranks together
		members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
			round, err := b.Round(r.e, r.Comm, r.handle)
			if err != nil {
				return err
			}
			w, err := newWaits(r.e, r.Comm)
			if err != nil {
				return err
			}
			d, c := w.tensors()
			if err := errors.Join(w.set(0), r.exchange(ctx, round), r.handle.CountWaits(d, c), round.Backward(ctx, r.stream),
				r.Wait(ctx, r.stream)); err != nil {
				return err
			}
			of, from, err := w.get()
			for i := range of {
				dispatch.Add(int64(of[i]))
				combine.Add(int64(from[i]))
			}
			return errors.Join(err, round.CheckGradients(), round.Free(), w.mem.Free())
		})
		if !t.Failed() && (dispatch.Load() <= 0 || combine.Load() <= 0) {
			t.Errorf("ranks have waited for %d ns in dispatches' kind of gradients and %d in combines'", dispatch.Load(),
				combine.Load())
		}
	})
}

func TestCountWaitsRefuses(t *testing.T) {
	h := handles(t, join(t, 2), sized(exactRows, 2))[0]
	numbers := make([]int64, 4)
	at := unsafe.Pointer(&numbers[0])
	good := weft.Tensor{Data: at, DType: weft.Int64, Shape: []int{2}}
	for name, bad := range map[string]weft.Tensor{
		"type":      {Data: at, DType: weft.Float32, Shape: []int{2}},
		"length":    {Data: at, DType: weft.Int64, Shape: []int{3}},
		"dimension": {Data: at, DType: weft.Int64, Shape: []int{1, 2}},
		"no memory": {DType: weft.Int64, Shape: []int{2}},
		"misplaced": {Data: unsafe.Add(at, 4), DType: weft.Int64, Shape: []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := h.CountWaits(bad, good); !errors.Is(err, weft.ErrInvalid) {
				t.Error(err)
			}
			if err := h.CountWaits(good, bad); !errors.Is(err, weft.ErrInvalid) {
				t.Error(err)
			}
		})
	}
	if err := h.CountWaits(good, weft.Tensor{}); err != nil {
		t.Error(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.CountWaits(good, good); !errors.Is(err, weft.ErrClosed) {
		t.Error(err)
	}
}
