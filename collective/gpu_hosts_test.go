package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
)

// spanStaging cuts calls of some thousand elements in pieces.
const spanStaging = 64 << 10

// onSpan runs a body on ranks that have GPUs on hosts of the given names, with ranks of such hosts without GPUs beside
// them, whose results are the right ones.
func onSpan(t *testing.T, names string, open opener, deadline time.Duration, o Options,
	body func(ctx context.Context, r *gpuRank) error,
) {
	t.Helper()
	onSpanOf(t, emulatedGPUs(t, len(names)), names, open, deadline, o, body)
}

func onSpanOf(t *testing.T, g *ranktest.GPUs, names string, open opener, deadline time.Duration, o Options,
	body func(ctx context.Context, r *gpuRank) error,
) {
	t.Helper()
	t.Setenv("WEFT_HEARTBEAT", "60s")
	prompt := fabrictest.TCP()
	prompt.Prompt = true
	beside, _ := newSpan(t, names, twin(t, prompt, 1).Open)
	onGPURanks(t, beside.comms, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(deadline), weft.WithHostID(names[rank:][:1]),
			weft.WithFabric(open))
	}, o, func(ctx context.Context, r *gpuRank) error {
		r.span = true
		return body(ctx, r)
	})
}

// spanLayouts are ranks by the names of their hosts: 2 x 1, 2 x 2, 3 x 1.
var spanLayouts = []string{"ab", "aabb", "abc"}

// everySpanCase makes calls of every kind, of some types, with every reduction, count, place and algorithm between
// hosts.
func everySpanCase(ctx context.Context, r *gpuRank, types []weft.DType) error {
	counts := []int{1, 257, 0, 7, 20_003, 96, 1, 33, 6001}
	number := 0
	for kind := Barrier; kind <= Scatter; kind++ {
		for _, d := range types {
			for op := weft.Sum; op <= weft.PreMulSum; op++ {
				if d == weft.Bool && op >= weft.Avg && kind.Reduces() || !kind.Reduces() && op > weft.Sum+1 {
					continue
				}
				c := gpuCase{
					kind: kind, dtype: d, op: op, count: counts[number%len(counts)], root: number % r.comm.Size(),
					inPlace: number%2 == 0, shift: []int{0, 1, 3, 0}[number%4], onDevice: number%3 == 0,
				}
				if kind.Reduces() && (op != weft.Avg || isFloat(d)) {
					c.name = []string{"", kind.String() + "/hierarchical", kind.String() + "/hierarchical-exact"}[number%3]
				}
				if err := r.check(ctx, c); err != nil {
					return fmt.Errorf("call %d, %v: %w", number, &c, err)
				}
				number++
			}
		}
	}
	return nil
}

// TestGPUsOfHosts compares all collectives of GPUs on several hosts with those of the host engine, bit by bit: in one
// to three types, the fewer the more ranks there are, and with WEFT_TEST_ALL=1 in all.
func TestGPUsOfHosts(t *testing.T) {
	for i, names := range spanLayouts {
		if testing.Short() && i > 0 {
			return
		}
		class := fabrictest.Classes()[i%len(fabrictest.Classes())]
		types := allTypes
		if !emulate.Everything() {
			types = nil
			for k, d := range allTypes {
				if k%6 == i && (len(types)+1)*len(names) <= 6 {
					types = append(types, d)
				}
			}
		}
		if testing.Short() {
			types = types[:1]
		}
		t.Run(names+" on "+class.Name, func(t *testing.T) {
			o := Options{Staging: spanStaging, SMs: 1}
			onSpan(t, names, twin(t, class, 3).Open, 30*time.Second, o, func(ctx context.Context, r *gpuRank) error {
				return everySpanCase(ctx, r, types)
			})
		})
	}
	t.Run("aabb on libfabric", func(t *testing.T) {
		o := Options{SMs: 1}
		onSpan(t, "aabb", libfabric(t), 30*time.Second, o, func(ctx context.Context, r *gpuRank) error {
			return everySpanCase(ctx, r, []weft.DType{weft.BFloat16})
		})
	})
}

// TestGPUsOfHostsOnGPUs is the same on real GPUs, which ranks may share, without another host: they only play at
// several.
func TestGPUsOfHostsOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for i, names := range spanLayouts {
		t.Run(names, func(t *testing.T) {
			o := Options{Staging: spanStaging << (4 * i), SMs: 4}
			onSpanOf(t, g, names, twin(t, fabrictest.TCP(), 3).Open, 30*time.Second, o,
				func(ctx context.Context, r *gpuRank) error { return everySpanCase(ctx, r, allTypes) })
		})
	}
}

// TestGPUMessagesOfHosts sends messages between GPUs of several hosts, and to oneself.
func TestGPUMessagesOfHosts(t *testing.T) {
	onSpan(t, "aab", twin(t, fabrictest.EFA(), 3).Open, 30*time.Second, Options{Staging: spanStaging, SMs: 1},
		func(ctx context.Context, r *gpuRank) error {
			var all []gpuMessage
			number := 0
			for _, count := range []int{0, 1, 40, 333, 70_001} {
				for from := range 3 {
					for to := range 3 {
						number++
						all = append(all, gpuMessage{
							from: from, to: to, number: number, dtype: []weft.DType{weft.Int8, weft.Uint16}[number%2], count: count,
							shifts: [2]int{2 * (number % 3), 2 * (number % 5)},
						})
					}
				}
			}
			p, err := r.place(all, r.base())
			if err != nil {
				return err
			}
			if err := r.upload(p); err != nil {
				return err
			}
			if err := r.Batch(ctx, nil, func(b *Batch) error {
				for i := range all {
					if all[i].from == r.comm.Rank() {
						b.Send(p.tensors[0][i], all[i].to)
					}
					if all[i].to == r.comm.Rank() {
						b.Recv(p.tensors[1][i], all[i].from)
					}
				}
				return nil
			}); err != nil {
				return err
			}
			return r.arrived(p)
		})
}

// TestDeviceCountsOfHosts reads the counts of an all-to-all-v on the GPU, in a graph that is replayed with others, and
// refuses those of which parts do not fit.
func TestDeviceCountsOfHosts(t *testing.T) {
	onSpan(t, "ab", twin(t, fabrictest.TCP(), 3).Open, 30*time.Second, Options{Staging: spanStaging, SMs: 1},
		func(ctx context.Context, r *gpuRank) error {
			me := r.comm.Rank()
			matrices := []matrix{{{5, 300}, {0, 7}}, {{0, 1}, {2000, 3}}, {{1, 0}, {0, 0}}}
			most := matrix{{3000, 3000}, {3000, 3000}}
			in, out, err := r.fill(most)
			if err != nil {
				return err
			}
			d, err := r.putCounts(most.counts(me))
			if err != nil {
				return err
			}
			whole := func(s *weft.Stream) error { return r.AllToAllVDevice(ctx, s, out, in, d) }
			if err := r.capture(whole, func(*cuda.Stream, *cuda.GraphExec) error { return nil }); !errors.Is(err,
				weft.ErrUnsupported) || !strings.Contains(err.Error(), "make the call once before") {
				return fmt.Errorf("a capture that needs memory: %w", err)
			}
			if err := errors.Join(whole(nil), r.received(most)); err != nil {
				return err
			}
			err = r.capture(whole, func(s *cuda.Stream, g *cuda.GraphExec) error {
				for _, m := range matrices {
					if _, _, err := r.fill(m); err != nil {
						return err
					}
					if _, err := r.putCounts(m.counts(me)); err != nil {
						return err
					}
					if err := errors.Join(g.Launch(s), r.comm.Wait(ctx, weft.StreamOf(s)), r.received(m)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			bad := most.counts(me)
			bad.RecvAt[1] = 1 << 40
			if _, err := r.putCounts(bad); err != nil {
				return err
			}
			if err := whole(nil); !errors.Is(err, weft.ErrMismatch) {
				return fmt.Errorf("counts that do not fit: %w", err)
			}
			return r.host.Barrier(ctx, nil) // a rank that closes its group tells others
		})
}

// TestGraphsOfHosts captures calls, also of several pieces, and replays them among others.
func TestGraphsOfHosts(t *testing.T) {
	onSpan(t, "aab", twin(t, fabrictest.TCP(), 3).Open, 30*time.Second, Options{Staging: spanStaging, SMs: 1},
		func(ctx context.Context, r *gpuRank) error {
			const n = 20_000
			x, y := r.tensorOf(0, weft.Int32, n), r.tensorOf(1<<20, weft.Int32, n)
			enqueue := func(s *weft.Stream) error {
				return errors.Join(r.AllReduce(ctx, s, y, x, weft.Sum), r.Barrier(ctx, s),
					r.AllReduce(ctx, s, y, y, weft.Max), r.Broadcast(ctx, s, y, 1))
			}
			return r.capture(enqueue, func(s *cuda.Stream, g *cuda.GraphExec) error {
				for replay := range 4 {
					raw := make([]byte, 4*n)
					for i := range n {
						raw[4*i] = byte(i%17 + r.comm.Rank() + replay)
					}
					if err := errors.Join(r.write(r.base(), raw), g.Launch(s), r.Barrier(ctx, weft.StreamOf(s)),
						r.comm.Wait(ctx, weft.StreamOf(s)), r.read(raw, r.base().Add(1<<20))); err != nil {
						return err
					}
					for i := range n {
						if want := 3*(i%17+replay) + 3; int(raw[4*i]) != want {
							return fmt.Errorf("replay %d: element %d is %d, want %d", replay, i, raw[4*i], want)
						}
					}
				}
				return nil
			})
		})
}

// TestGraphsWithinHosts captures an all-reduce of which each host's kernels do a part, and replays it. A capture cannot
// load those kernels.
func TestGraphsWithinHosts(t *testing.T) {
	for _, loaded := range []bool{false, true} {
		o := Options{Staging: spanStaging, SMs: 1}
		if loaded {
			o.DTypes = []weft.DType{weft.Int32}
		}
		onSpan(t, "aabb", twin(t, fabrictest.TCP(), 3).Open, 30*time.Second, o, func(ctx context.Context, r *gpuRank) error {
			const n = 12_345
			x, y := r.tensorOf(0, weft.Int32, n), r.tensorOf(1<<20, weft.Int32, n)
			err := r.capture(func(s *weft.Stream) error { return r.AllReduce(ctx, s, y, x, weft.Sum) },
				func(s *cuda.Stream, g *cuda.GraphExec) error {
					for replay := range 3 {
						raw := make([]byte, 4*n)
						for i := range n {
							raw[4*i] = byte(i%17 + r.comm.Rank() + replay)
						}
						if err := errors.Join(r.write(r.base(), raw), g.Launch(s), r.comm.Wait(ctx, weft.StreamOf(s)),
							r.read(raw, r.base().Add(1<<20))); err != nil {
							return err
						}
						for i := range n {
							if want := 4*(i%17+replay) + 6; int(raw[4*i]) != want {
								return fmt.Errorf("replay %d: element %d is %d, want %d", replay, i, raw[4*i], want)
							}
						}
					}
					return nil
				})
			if !loaded && !errors.Is(err, weft.ErrUnsupported) || loaded && err != nil {
				return fmt.Errorf("loaded %t: %w", loaded, err)
			}
			return r.check(ctx, gpuCase{kind: AllReduce, dtype: weft.Int32, count: 12_345})
		})
	}
}

// TestRefusalsOfGPUsOfHosts: what is wrong with a rank's arguments is refused with nothing enqueued, and what groups
// between hosts have not, alike on all ranks.
func TestRefusalsOfGPUsOfHosts(t *testing.T) {
	onSpan(t, "ab", twin(t, fabrictest.TCP(), 3).Open, 30*time.Second, Options{Staging: spanStaging, SMs: 1},
		func(ctx context.Context, r *gpuRank) error {
			f := func(at, n int) weft.Tensor { return r.tensorOf(at, weft.Float32, n) }
			words := Words{Progress: r.tensorOf(8192, weft.Uint64, 2)}
			for i, c := range []Call{
				{Collective: AllReduce, Out: f(0, 8), In: f(1024, 7)},
				{Collective: AllReduce, Out: f(1026, 8), In: f(0, 8)},
				{Collective: AllReduce, Out: f(0, 8), In: f(1024, 8), Algorithm: "all-reduce/one-shot"},
				{Collective: AllReduce, Out: f(0, 8), In: f(1024, 8), Algorithm: "all-gather/pull"},
				{Collective: AllReduce, Out: f(0, 8), In: f(1024, 8), Blocks: 1},
				{
					Collective: AllReduce, Out: r.tensorOf(0, weft.Int32, 8), In: r.tensorOf(1024, weft.Int32, 8), Op: weft.Avg,
					Algorithm: "all-reduce/hierarchical",
				},
				{Collective: AllGather, Out: f(0, 16), In: f(1024, 8), Words: words},
				{Collective: Broadcast, Out: f(0, 8), In: f(0, 8), Root: 2},
			} {
				err := r.Do(ctx, nil, c)
				if !errors.Is(err, weft.ErrInvalid) && !errors.Is(err, weft.ErrUnsupported) || r.comm.Err() != nil {
					return fmt.Errorf("call %d: %w", i, err)
				}
			}
			for _, o := range []Options{{Staging: 4}, {Force: []string{"all-reduce/one-shot"}}} {
				if _, err := New(ctx, r.comm, o); !errors.Is(err, weft.ErrInvalid) {
					return fmt.Errorf("%+v: %w", o, err)
				}
			}
			return r.check(ctx, gpuCase{kind: AllReduce, dtype: weft.Float32, count: 77})
		})
}

// TestMismatchOfGPUsOfHosts: calls that differ are the failure of all ranks, in words that say how; also those of
// which only later pieces would. Ranks go on after a mask.
func TestMismatchOfGPUsOfHosts(t *testing.T) {
	onSpan(t, "aab", twin(t, fabrictest.TCP(), 3).Open, 30*time.Second, Options{Staging: spanStaging, SMs: 1},
		func(ctx context.Context, r *gpuRank) error {
			for _, n := range []int{100, 40_000} {
				if r.comm.Rank() == 2 {
					n += 5000
				}
				x := r.tensorOf(0, weft.Float32, n)
				err := r.AllReduce(ctx, nil, x, x, weft.Sum)
				if !errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), fmt.Sprintf("all-reduce sum of %d", n)) {
					return fmt.Errorf("rank %d, %d elements: %w", r.comm.Rank(), n, err)
				}
				if again := r.Barrier(ctx, nil); !errors.Is(again, weft.ErrMismatch) {
					return fmt.Errorf("the call after: %w", again)
				}
				if err := r.comm.SetMask(ctx); err != nil {
					return err
				}
				if err := r.check(ctx, gpuCase{kind: AllReduce, dtype: weft.Float32, count: 77}); err != nil {
					return err
				}
			}
			return nil
		})
}

// TestGPUsOfHostsWithoutRanks masks ranks: what they bring is left out, and their parts stay as they are.
func TestGPUsOfHostsWithoutRanks(t *testing.T) {
	onSpan(t, "aabb", twin(t, fabrictest.TCP(), 3).Open, 30*time.Second, Options{Staging: spanStaging, SMs: 1},
		func(ctx context.Context, r *gpuRank) error {
			for round, masked := range [][]int{{2}, {}} {
				if slices.Contains(masked, r.comm.Rank()) {
					for !r.comm.Masked(0) && r.comm.Err() == nil { // it is told, or taken back
						time.Sleep(time.Millisecond)
					}
				}
				if err := errors.Join(r.comm.SetMask(ctx, masked...), r.beside.SetMask(ctx, masked...)); err != nil {
					if slices.Contains(masked, r.comm.Rank()) {
						continue
					}
					return err
				}
				for kind := Barrier; kind <= Scatter; kind++ {
					for _, n := range []int{3, 5003} {
						r.calls = 1000*round + 10*int(kind) + n%2 // also on a rank that has made none
						if err := r.check(ctx, gpuCase{kind: kind, dtype: weft.BFloat16, count: n, root: 1, shift: n % 2}); err != nil {
							return fmt.Errorf("%v of %d: %w", kind, n, err)
						}
					}
				}
			}
			return nil
		})
}

// TestGPUsOfHostsCut cuts the network between two hosts: all ranks have an error that names one of them at the
// deadline, their streams go on, and when it is whole again so do they.
func TestGPUsOfHostsCut(t *testing.T) {
	network := twin(t, fabrictest.TCP(), 5)
	onSpan(t, "aabb", network.Open, 3*time.Second, Options{Staging: spanStaging, SMs: 1},
		func(ctx context.Context, r *gpuRank) error {
			for _, n := range []int{3000, 9000} { // by the host engine alone, and with kernels of each host
				if err := cutOnce(ctx, r, network, n); err != nil {
					return fmt.Errorf("%d elements: %w", n, err)
				}
			}
			return nil
		})
}

func cutOnce(ctx context.Context, r *gpuRank, network *fabrictest.Network, n int) error {
	c := gpuCase{kind: AllReduce, dtype: weft.Int32, count: n}
	if err := r.check(ctx, c); err != nil {
		return err
	}
	if err := r.host.Barrier(ctx, nil); err != nil { // none is in the call before
		return err
	}
	if r.comm.Rank() == 0 {
		network.Cut(1, 3)
	}
	if err := r.host.Barrier(ctx, nil); err != nil {
		return err
	}
	x := r.tensorOf(0, weft.Int32, n)
	err := r.AllReduce(ctx, nil, x, x, weft.Sum)
	if p, ok := errors.AsType[*weft.PeerError](err); !ok || !errors.Is(err, weft.ErrTimeout) || p.Rank >= 0 &&
		p.Rank != 1 && p.Rank != 3 {
		return fmt.Errorf("rank %d: %w", r.comm.Rank(), err)
	}
	if err := r.host.Barrier(ctx, nil); err != nil {
		return err
	}
	network.Heal(1, 3)
	if err := r.comm.SetMask(ctx); err != nil {
		return err
	}
	for i := range 5 {
		if err := r.check(ctx, c); err != nil {
			return fmt.Errorf("call %d after the cut: %w", i, err)
		}
	}
	return nil
}

// TestStartedOnGPUsOfHosts starts calls, and waits for them by their Work.
func TestStartedOnGPUsOfHosts(t *testing.T) {
	onSpan(t, "ab", twin(t, fabrictest.TCP(), 3).Open, 30*time.Second, Options{Staging: spanStaging, SMs: 1},
		func(ctx context.Context, r *gpuRank) error {
			x := r.tensorOf(0, weft.Float32, 100)
			if err := r.write(r.base(), make([]byte, 400)); err != nil {
				return err
			}
			var works []*Work
			for range 3 {
				w, err := r.Start(ctx, nil, Call{Collective: AllReduce, Out: x, In: x})
				if err != nil {
					return err
				}
				works = append(works, w)
			}
			for _, w := range works {
				if err := w.Wait(ctx); err != nil || !strings.HasPrefix(w.Algorithm(), "all-reduce/") {
					return fmt.Errorf("%v by %q: %w", w, w.Algorithm(), err)
				}
				if err := w.Close(); err != nil {
					return err
				}
			}
			return nil
		})
}
