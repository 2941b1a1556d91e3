package collective

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// workRank is a rank of a test on a GPU.
type workRank struct {
	*Group
	comm   *weft.Comm
	memory *cuda.Memory
}

// worksOnGPUs runs a body on two ranks with GPUs: emulated ones, and this machine's.
func worksOnGPUs(t *testing.T, deadline time.Duration,
	body func(ctx context.Context, r *workRank, emulated bool) error,
) {
	t.Run("emulated", func(t *testing.T) {
		g := ranktest.Emulated(t, cudatest.Config{Devices: 2}, emulate.Options{})
		runOn(t, g, deadline, func(ctx context.Context, r *workRank) error { return body(ctx, r, true) })
	})
	t.Run("real", func(t *testing.T) {
		runOn(t, ranktest.Real(t), deadline, func(ctx context.Context, r *workRank) error { return body(ctx, r, false) })
	})
}

func runOn(t *testing.T, g *ranktest.GPUs, deadline time.Duration, body func(ctx context.Context, r *workRank) error) {
	t.Helper()
	err := ranktest.Run(2, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(deadline))
	}, func(ctx context.Context, comm *weft.Comm) error {
		m, err := comm.Device().Context().Alloc(4096)
		if err != nil {
			return err
		}
		group, err := New(ctx, comm, Options{Staging: 192 << 10, SMs: 2})
		if err == nil {
			err = errors.Join(body(ctx, &workRank{group, comm, m}), group.Close())
		}
		return errors.Join(err, m.Close())
	})
	if err != nil {
		t.Error(err)
	}
}

// number is the i-th number of the rank's memory.
func (r *workRank) number(i int) weft.Tensor {
	return weft.DeviceTensor(r.memory.Pointer().Add(4*i), weft.Float32, 1)
}

func (r *workRank) set(i int, x float32) error {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&x)), 4)
	return r.comm.Device().Context().Upload(r.number(i).Pointer(), b)
}

func (r *workRank) want(i int, x float32) error {
	var got float32
	err := r.comm.Device().Context().Download(unsafe.Slice((*byte)(unsafe.Pointer(&got)), 4), r.number(i).Pointer())
	if err == nil && got != x {
		err = fmt.Errorf("number %d is %v, want %v", i, got, x)
	}
	return err
}

// sum adds the ranks' numbers from into number to.
func (r *workRank) sum(to, from int) Call {
	return Call{Collective: AllReduce, Op: weft.Sum, In: r.number(from), Out: r.number(to)}
}

// TestStartOnGPUs: Works end with the work in their streams, other streams wait for them, and what was
// captured runs with its graph.
func TestStartOnGPUs(t *testing.T) {
	worksOnGPUs(t, gpuDeadline, func(ctx context.Context, r *workRank, _ bool) error {
		var streams [2]*weft.Stream
		for i := range streams {
			s, err := r.comm.Device().Context().NewStream(cuda.StreamOptions{})
			if err != nil {
				return err
			}
			defer s.Close()
			streams[i] = weft.StreamOf(s)
		}
		if err := r.set(0, float32(1+r.comm.Rank())); err != nil {
			return err
		}
		// One stream's result is the other's input.
		a, err := r.Start(ctx, streams[0], r.sum(1, 0))
		if err != nil {
			return err
		}
		if err := a.WaitOn(streams[1]); err != nil {
			return err
		}
		b, err := r.Start(ctx, streams[1], r.sum(2, 1))
		if err != nil {
			return err
		}
		if err := errors.Join(b.Wait(ctx), b.Err(), a.Wait(ctx), r.want(1, 3), r.want(2, 6)); err != nil {
			return err
		}
		if !a.Done() || !b.Done() || a.Algorithm() != "all-reduce/one-shot" {
			return fmt.Errorf("done %t, %t, by %q", a.Done(), b.Done(), a.Algorithm())
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			return err
		}
		// The communicator's stream, and a Work that is used again.
		for i := range 5 {
			w, err := r.Start(ctx, nil, r.sum(3, 2))
			if err != nil {
				return err
			}
			for i%2 == 0 && !w.Done() {
				time.Sleep(time.Millisecond)
			}
			if err := errors.Join(w.Wait(ctx), r.want(3, 12), w.Close()); err != nil {
				return err
			}
		}
		if n := len(r.works.events); n != 2 {
			return fmt.Errorf("%d events", n)
		}
		if err := r.dropped(ctx); err != nil {
			return err
		}
		if err := r.refused(ctx, streams[0]); err != nil {
			return err
		}
		if err := r.messages(ctx, streams[1]); err != nil {
			return err
		}
		return r.captured(ctx, streams[0])
	})
}

// dropped starts calls that it does not close: the group keeps no operand, and events are used again.
func (r *workRank) dropped(ctx context.Context) error {
	for i := range 50 {
		w, err := r.Start(ctx, nil, r.sum(3, 2))
		if err != nil {
			return err
		}
		if i%2 == 0 { // of the others nobody asks
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if w.event != nil || w.call.In.Data != nil {
				return fmt.Errorf("a Work that was waited for has its event or operands")
			}
			if err := w.WaitOn(nil); err != nil {
				return err
			}
		} else if err := r.comm.Wait(ctx, nil); err != nil {
			return err
		}
	}
	if n := len(r.works.events); n > 4 {
		return fmt.Errorf("%d events of calls one after the other", n)
	}
	return nil
}

// TestWorkKeepsItsResult: a call that ended well stays so when a later one fails, and when ranks are masked.
func TestWorkKeepsItsResult(t *testing.T) {
	worksOnGPUs(t, time.Second, func(ctx context.Context, r *workRank, _ bool) error {
		first, err := r.Start(ctx, nil, Call{Collective: Barrier})
		if err != nil {
			return err
		}
		if err := r.comm.Wait(ctx, nil); err != nil {
			return err
		}
		if r.comm.Rank() == 0 {
			late, err := r.Start(ctx, nil, Call{Collective: Barrier})
			if err != nil {
				return err
			}
			if err := late.Wait(ctx); !errors.Is(err, weft.ErrTimeout) {
				return fmt.Errorf("without its peer: %w", err)
			}
			if err := first.Err(); err != nil {
				return fmt.Errorf("after another's failure: %w", err)
			}
		} else {
			for r.comm.Err() == nil {
				time.Sleep(time.Millisecond)
			}
		}
		if err := r.comm.SetMask(ctx); err != nil {
			return err
		}
		if err := first.Wait(ctx); err != nil {
			return fmt.Errorf("after SetMask: %w", err)
		}
		return first.Close()
	})
}

// refused starts calls that are refused, with nothing enqueued.
func (r *workRank) refused(ctx context.Context, s *weft.Stream) error {
	wrong, unknown := r.sum(0, 0), r.sum(0, 0)
	wrong.Op, unknown.Algorithm = 99, "all-reduce/none"
	for _, c := range []struct {
		Call
		want error
	}{
		{wrong, weft.ErrInvalid},
		{unknown, weft.ErrInvalid},
		{Call{Collective: PointToPoint, Transfers: []Transfer{{Tensor: r.number(0), Peer: r.comm.Rank()}}}, weft.ErrInvalid},
	} {
		if w, err := r.Start(ctx, s, c.Call); w != nil || !errors.Is(err, c.want) {
			return fmt.Errorf("want %w, got %w", c.want, err)
		}
	}
	named := r.sum(3, 2)
	named.Algorithm = "all-reduce/two-shot"
	w, err := r.Start(ctx, s, named)
	if err == nil {
		err = errors.Join(w.Wait(ctx), r.want(3, 12))
	}
	if err == nil && w.Algorithm() != named.Algorithm {
		err = fmt.Errorf("it ran by %q", w.Algorithm())
	}
	return errors.Join(err, w.Close())
}

// messages starts a batch, in which the ranks exchange numbers.
func (r *workRank) messages(ctx context.Context, s *weft.Stream) error {
	me := r.comm.Rank()
	if err := r.set(5, float32(7+me)); err != nil {
		return err
	}
	w, err := r.Start(ctx, s, Call{Collective: PointToPoint, Transfers: []Transfer{
		{Tensor: r.number(5), Peer: 1 - me},
		{Tensor: r.number(6), Peer: 1 - me, Receive: true},
		{Tensor: r.number(5), Peer: me},
		{Tensor: r.number(7), Peer: me, Receive: true},
	}})
	if err != nil {
		return err
	}
	return errors.Join(w.Wait(ctx), r.want(6, float32(8-me)), r.want(7, float32(7+me)), w.Close())
}

// captured starts a call in a capture.
func (r *workRank) captured(ctx context.Context, s *weft.Stream) error {
	var w *Work
	graph, err := s.CUDA().Capture(func() (err error) {
		w, err = r.Start(ctx, s, r.sum(4, 0))
		return err
	})
	if err != nil {
		return err
	}
	defer graph.Close()
	if err := w.Wait(ctx); !errors.Is(err, weft.ErrUnsupported) || w.Done() || w.Err() != nil {
		return fmt.Errorf("a captured call: %w, done %t, %w", err, w.Done(), w.Err())
	}
	exec, err := graph.Instantiate()
	if err != nil {
		return err
	}
	defer exec.Close()
	return errors.Join(exec.Launch(s.CUDA()), r.comm.Wait(ctx, s), r.want(4, 3), w.Close())
}

// TestStartFailsOnGPUs: a Work whose peer does not come ends at the deadline, and says which peer.
func TestStartFailsOnGPUs(t *testing.T) {
	worksOnGPUs(t, time.Second, func(ctx context.Context, r *workRank, emulated bool) error {
		if r.comm.Rank() == 0 {
			w, err := r.Start(ctx, nil, Call{Collective: Barrier})
			if err != nil {
				return err
			}
			if !emulated { // emulated kernels run when they are enqueued
				short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
				defer cancel()
				if err := w.Wait(short); !errors.Is(err, context.DeadlineExceeded) || w.Done() {
					return fmt.Errorf("before the deadline: %w, done %t", err, w.Done())
				}
			}
			err = w.Wait(ctx)
			peer, ok := errors.AsType[*weft.PeerError](err)
			if !errors.Is(err, weft.ErrTimeout) || !ok || peer.Rank != 1 || !errors.Is(w.Err(), weft.ErrTimeout) {
				return fmt.Errorf("at the deadline: %w, %w", err, w.Err())
			}
			for !w.Done() {
				time.Sleep(time.Millisecond)
			}
			if err := w.Close(); err != nil {
				return err
			}
		} else {
			for r.comm.Err() == nil {
				time.Sleep(time.Millisecond)
			}
		}
		if err := r.comm.SetMask(ctx); err != nil {
			return err
		}
		w, err := r.Start(ctx, nil, Call{Collective: Barrier})
		if err != nil {
			return err
		}
		return errors.Join(w.Wait(ctx), w.Close())
	})
}

// TestDuplicateOnGPUs: groups of a communicator and of its duplicate run side by side on the same GPUs.
func TestDuplicateOnGPUs(t *testing.T) {
	worksOnGPUs(t, gpuDeadline, func(ctx context.Context, r *workRank, _ bool) error {
		twin, err := r.comm.Duplicate(ctx)
		if err != nil {
			return err
		}
		other, err := New(ctx, twin, Options{Staging: 192 << 10, SMs: 2})
		if err != nil {
			return errors.Join(err, twin.Close())
		}
		err = r.set(0, float32(1+r.comm.Rank()))
		for range 3 {
			if err == nil {
				err = errors.Join(r.Do(ctx, nil, r.sum(1, 0)), other.Do(ctx, nil, r.sum(2, 1)), r.want(1, 3), r.want(2, 6))
			}
		}
		return errors.Join(err, other.Close(), twin.Close())
	})
}
