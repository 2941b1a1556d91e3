package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// directTwoShot is an all-reduce in place whose blocks each read a part of all inputs, and write the sums to all ranks.
func directTwoShot(ranks, blocks int) *plan.Plan {
	p := plan.New("direct two-shot", plan.AllReduce(ranks, blocks), plan.Options{InPlace: true})
	for r := range ranks {
		for k := range blocks {
			b, at := p.Rank(r).Block(k), r*blocks+k
			own := p.Rank(r).Input().Chunk(at, 1)
			var peers []*plan.Channel
			var theirs []plan.Chunk
			for i := 1; i < ranks; i++ {
				peer := (r + i) % ranks
				peers = append(peers, p.Memory(r, peer))
				theirs = append(theirs, p.Rank(peer).Input().Chunk(at, 1))
			}
			b.RelaxedSignal(peers...)
			b.RelaxedWait(peers...)
			b.Reduce(own, append([]plan.Chunk{own}, theirs...)...)
			for i, c := range peers {
				b.Put(c, theirs[i], own)
			}
			b.Signal(peers...)
			b.Wait(peers...)
		}
	}
	return p
}

// onePacketShot is an all-reduce in which several blocks each send a part of the input to all, and fold.
func onePacketShot(ranks, blocks int) *plan.Plan {
	p := plan.New("packet one-shot", plan.AllReduce(ranks, blocks), plan.Options{
		Protocol: plan.LL, InPlace: true, DoubleScratch: true,
	})
	c := plantest.Ends(p, ranks, p.Memory)
	n := ranks * blocks
	var inbox []plan.Buffer
	for r := range ranks {
		inbox = append(inbox, p.Rank(r).Scratch(ranks*n))
	}
	for r := range ranks {
		for k := range blocks {
			b, own := p.Rank(r).Block(k), p.Rank(r).Input().Chunk(k*ranks, ranks)
			var slots []plan.Chunk
			for i := 1; i < ranks; i++ {
				peer := (r + i) % ranks
				b.PutPackets(c[r][peer], inbox[peer].Chunk(r*n+k*ranks, ranks), own)
				slots = append(slots, inbox[r].Chunk(peer*n+k*ranks, ranks))
			}
			b.ReducePackets(own, own, slots...)
		}
	}
	return p
}

// BenchmarkOnGPUs times plans beside the native algorithms of the same protocol, in graphs, interleaved: medians of
// rounds, of the slowest rank. Ranks share GPUs where there are fewer.
func BenchmarkOnGPUs(b *testing.B) {
	for _, x := range []struct {
		name   string
		native string
		bytes  int
		calls  int // of a graph
		build  func(ranks int) *plan.Plan
		window bool
	}{
		{
			"packets/1KiB", "all-reduce/one-shot", 1 << 10, 200,
			func(n int) *plan.Plan { return onePacketShot(n, 1) }, false,
		},
		{
			"packets/two phases/1KiB", "all-reduce/two-shot", 1 << 10, 200,
			func(n int) *plan.Plan { return plantest.TwoPhasePackets(n) }, false,
		},
		{
			"packets/64KiB", "all-reduce/one-shot", 64 << 10, 100,
			func(n int) *plan.Plan { return onePacketShot(n, 8) }, false,
		},
		{
			"direct/1MiB", "all-reduce/direct", 1 << 20, 50,
			func(n int) *plan.Plan { return directTwoShot(n, 16) }, true,
		},
		{
			"direct/16MiB", "all-reduce/direct", 16 << 20, 10,
			func(n int) *plan.Plan { return directTwoShot(n, 64/n) }, true,
		},
	} {
		for _, ranks := range []int{2, 4} {
			b.Run(fmt.Sprintf("%s/%d", x.name, ranks), func(b *testing.B) {
				p, err := x.build(ranks).Build()
				if err != nil {
					b.Fatal(err)
				}
				ours, native := make([]float64, ranks), make([]float64, ranks)
				run(b, ranktest.Real(b), ranks, 2*x.bytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
					me := r.comm.Rank()
					var err error
					ours[me], native[me], err = r.compare(ctx, p, x.native, x.bytes, x.calls, x.window)
					return err
				})
				b.ReportMetric(slices.Max(ours), "us/plan")
				b.ReportMetric(slices.Max(native), "us/native")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// rounds are how often the two take turns.
const rounds = 9

// compare times a plan and a native algorithm, in microseconds a call.
func (r *rank) compare(ctx context.Context, f *plan.File, name string, size, calls int, window bool,
) (ours, native float64, err error) {
	most := 0
	for i := range f.Ranks {
		most = max(most, len(f.Ranks[i].Blocks))
	}
	group, err := collective.New(ctx, r.comm, collective.Options{
		DTypes: []weft.DType{weft.BFloat16}, SMs: max(most, 16) * r.comm.Size(),
	})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, group.Close()) }()
	p, err := r.Load(ctx, f)
	if err != nil {
		return 0, 0, err
	}
	at := r.memory.Pointer()
	if window {
		at = r.window.Pointer()
	}
	unit := f.Alignment * f.Ranks[0].Input
	size = (size + unit - 1) / unit * unit
	x := weft.DeviceTensor(at, weft.BFloat16, size/2)
	if err := r.comm.Device().Context().Upload(at, make([]byte, size)); err != nil {
		return 0, 0, err
	}
	call := collective.Call{
		Collective: collective.AllReduce, Op: weft.Sum, In: x, Out: x, Algorithm: name, Symmetric: window,
	}
	return r.turns(ctx, calls, func(s *weft.Stream) error { return p.Execute(ctx, s, x, x) },
		func(s *weft.Stream) error { return group.Do(ctx, s, call) })
}

// turns times graphs of calls of two kinds, in turns, in microseconds a call.
func (r *rank) turns(ctx context.Context, calls int, of ...func(s *weft.Stream) error,
) (first, second float64, err error) {
	var times [2][]float64
	err = r.capture(many(of[0], calls), func(s *cuda.Stream, a *cuda.GraphExec) error {
		return r.capture(many(of[1], calls), func(_ *cuda.Stream, b *cuda.GraphExec) error {
			for round := range rounds + 2 {
				for i, g := range []*cuda.GraphExec{a, b} {
					t, err := r.time(ctx, s, g)
					if err != nil {
						return err
					}
					if round >= 2 {
						times[i] = append(times[i], t/float64(calls))
					}
				}
			}
			return nil
		})
	}, of...)
	for i := range times {
		slices.Sort(times[i])
	}
	if err != nil {
		return 0, 0, err
	}
	return times[0][rounds/2], times[1][rounds/2], nil
}

// BenchmarkRealPlansOnGPUs times the plans of the folder WEFT_PLANS beside what the library chooses for the same
// operands, which lie in windows. Sizes are those of nccl-tests; a plan that takes others has the next one.
func BenchmarkRealPlansOnGPUs(b *testing.B) {
	eachReal(b, func(b *testing.B, _ string, f *plan.File) {
		g := ranktest.Real(b)
		for _, size := range []int{1 << 10, 8 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20} {
			chunks := max(f.Ranks[0].Input, f.Ranks[0].Output)
			chunk := max(legal(f, 0), size/chunks/f.Alignment*f.Alignment, f.Alignment)
			if whole := uint64(chunk * chunks); whole > f.MaxBytes || whole > uint64(2*size) {
				continue // it takes none of about this size
			}
			b.Run(strconv.Itoa(chunk*chunks), func(b *testing.B) {
				ranks := len(f.Ranks)
				ours, native := make([]float64, ranks), make([]float64, ranks)
				var algorithm string
				run(b, g, ranks, 2*chunk*chunks, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
					me := r.comm.Rank()
					var chosen string
					var err error
					ours[me], native[me], chosen, err = r.real(ctx, f, chunk, min(100, max(5, 20<<20/size)))
					if me == 0 {
						algorithm = chosen
					}
					return err
				})
				b.ReportMetric(slices.Max(ours), "us/plan")
				b.ReportMetric(slices.Max(native), "us/"+strings.ReplaceAll(algorithm, " ", "-"))
				b.ReportMetric(0, "ns/op")
			})
		}
	})
}

// real times a plan of another project's package, and what the library chooses, in microseconds a call.
func (r *rank) real(ctx context.Context, f *plan.File, chunk, calls int,
) (ours, native float64, algorithm string, err error) {
	group, err := collective.New(ctx, r.comm, collective.Options{DTypes: []weft.DType{weft.BFloat16}})
	if err != nil {
		return 0, 0, "", err
	}
	defer func() { err = errors.Join(err, group.Close()) }()
	p, err := r.Load(ctx, f)
	if err != nil {
		return 0, 0, "", err
	}
	me, ranks := r.comm.Rank(), len(f.Ranks)
	inAt, outAt, size := f.Place(me, chunk)
	if err := r.comm.Device().Context().Upload(r.window.Pointer(), make([]byte, size)); err != nil {
		return 0, 0, "", err
	}
	const element = 2
	in := weft.DeviceTensor(r.window.Pointer().Add(inAt), weft.BFloat16, f.Ranks[me].Input*chunk/element)
	out := weft.DeviceTensor(r.window.Pointer().Add(outAt), weft.BFloat16, f.Ranks[me].Output*chunk/element)
	call := collective.Call{Op: weft.Sum, In: in, Out: out, Symmetric: true, Collective: map[string]collective.Collective{
		"allreduce": collective.AllReduce, "allgather": collective.AllGather,
		"reducescatter": collective.ReduceScatter, "alltoall": collective.AllToAll,
	}[f.Collective]}
	other := func(s *weft.Stream) error { return group.Do(ctx, s, call) }
	if f.Collective == "sendrecv" { // to the same position in the next half of the ranks
		other = func(s *weft.Stream) error {
			return group.Batch(ctx, s, func(b *collective.Batch) error {
				b.Send(in, (me+ranks/2)%ranks)
				b.Recv(out, (me+ranks/2)%ranks)
				return nil
			})
		}
	}
	ours, native, err = r.turns(ctx, calls, func(s *weft.Stream) error { return p.Execute(ctx, s, out, in) }, other)
	return ours, native, group.Algorithm(), err
}

// many makes a call several times.
func many(f func(s *weft.Stream) error, n int) func(s *weft.Stream) error {
	return func(s *weft.Stream) error {
		for range n {
			if err := f(s); err != nil {
				return err
			}
		}
		return nil
	}
}

// time is how many microseconds a graph takes, when all ranks launch it together.
func (r *rank) time(ctx context.Context, s *cuda.Stream, g *cuda.GraphExec) (us float64, err error) {
	gpu := r.comm.Device().Context()
	var events [2]*cuda.Event
	for i := range events {
		if events[i], err = gpu.NewEvent(cuda.EventOptions{Timing: true}); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, events[i].Close()) }()
	}
	if err := r.comm.Operations().VerifySame(ctx, "benchmark", "", nil); err != nil {
		return 0, err
	}
	err = errors.Join(g.Launch(s), events[0].Record(s), g.Launch(s), g.Launch(s), events[1].Record(s),
		r.comm.Wait(ctx, weft.StreamOf(s)))
	if err != nil {
		return 0, err
	}
	d, err := events[1].Since(events[0])
	return float64(d) / float64(2*time.Microsecond), err
}
