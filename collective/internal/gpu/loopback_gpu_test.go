package gpu

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/ranktest"
)

// BenchmarkLoopbackOnGPU measures what operations cost without links, in a graph of many.
func BenchmarkLoopbackOnGPU(b *testing.B) {
	g := ranktest.Real(b)
	for _, n := range []int{4, 2, 8} {
		if err := ranktest.Run(1, g.Options, func(ctx context.Context, comm *weft.Comm) error {
			return loopbackTimes(ctx, b, comm, n)
		}); err != nil {
			b.Fatal(err)
		}
	}
}

func loopbackTimes(ctx context.Context, b *testing.B, comm *weft.Comm, n int) (err error) {
	e, err := New(ctx, comm, Options{Staging: 48 << 20, SMs: 132, Loopback: n})
	if err != nil {
		return err
	}
	defer func() { _, again := e.Close(); err = errors.Join(err, again) }()
	c := comm.Device().Context()
	m, err := c.Alloc(256 << 20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	in, out := uint64(m.Pointer()), uint64(m.Pointer().Add(128<<20))
	stream, err := c.NewStream(cuda.StreamOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	for _, d := range []weft.DType{weft.BFloat16, weft.Int32} {
		if _, err := e.Enter(ctx, "test", nil); err != nil {
			return err
		}
		if err := e.Prepare(ctx, "test", d); err != nil {
			return err
		}
		for _, size := range []int{1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 64 << 20} {
			r := &Reduction{Out: out, In: in, Elements: size / d.Size(), DType: d}
			part := &Reduction{Out: out, In: in, Elements: size / d.Size() / n, DType: d}
			move := Transfer{Out: out, In: in, Part: size / n, DType: d}
			for _, o := range []struct {
				name string
				run  func(*cuda.Stream) error
			}{
				{"one-shot", func(s *cuda.Stream) error { return e.AllReduce(s, r, OneShot) }},
				{"two-shot", func(s *cuda.Stream) error { return e.AllReduce(s, r, TwoShot) }},
				{"reduce-scatter", func(s *cuda.Stream) error { return e.ReduceScatter(s, part) }},
				{"all-gather", func(s *cuda.Stream) error { return e.AllGather(s, move) }},
				{"all-to-all", func(s *cuda.Stream) error { return e.AllToAll(s, move) }},
				{"barrier", e.Barrier},
			} {
				b.Run(fmt.Sprintf("%d ranks/%s/%v/%d bytes", n, o.name, d, size), func(b *testing.B) {
					var took time.Duration
					for b.Loop() {
						one, err := graphTime(ctx, e, stream, o.run)
						if err != nil {
							b.Fatal(err)
						}
						if took == 0 || one < took {
							took = one
						}
					}
					b.ReportMetric(float64(took.Nanoseconds())/1000, "us")
				})
			}
		}
	}
	return nil
}

// graphTime is what one of 150 operations in a graph takes, the shortest of several launches.
func graphTime(ctx context.Context, e *Engine, stream *cuda.Stream, op func(*cuda.Stream) error) (took time.Duration,
	err error,
) {
	const operations = 150
	graph, err := stream.Capture(func() error {
		for range operations {
			s, err := e.Enter(ctx, "test", weft.StreamOf(stream))
			if err := errors.Join(err, op(s)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, graph.Close()) }()
	exec, err := graph.Instantiate()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, exec.Close()) }()
	var events [2]*cuda.Event
	for i := range events {
		if events[i], err = e.comm.Device().Context().NewEvent(cuda.EventOptions{Timing: true}); err != nil {
			return 0, err
		}
		defer events[i].Close()
	}
	took = time.Hour
	for range 5 {
		if err := errors.Join(events[0].Record(stream), exec.Launch(stream), events[1].Record(stream),
			e.comm.Wait(ctx, weft.StreamOf(stream))); err != nil {
			return 0, err
		}
		one, err := events[1].Since(events[0])
		if err != nil {
			return 0, err
		}
		took = min(took, one/operations)
	}
	return took, nil
}
