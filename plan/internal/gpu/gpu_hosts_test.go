package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/spec"
	"github.com/weftgo/weft/plan/synthesis"
)

type opener func(ctx context.Context, o fabric.Options) (*fabric.Domain, error)

// twin makes a network of a class, which must have seen no mistake in the end.
func twin(t *testing.T, class fabrictest.Class) opener {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	network := fabrictest.New(class, seed)
	t.Cleanup(func() {
		if err := network.Check(); err != nil {
			t.Error(err)
		}
	})
	return network.Open
}

// libfabric opens domains on libfabric's tcp, or skips the test.
func libfabric(t *testing.T) opener {
	o := fabric.Options{Size: 1, Provider: "tcp", Source: "127.0.0.1"}
	if err := fabrictest.Libfabric(t.Context(), t, o).Close(); err != nil {
		t.Error(err)
	}
	return func(ctx context.Context, o fabric.Options) (*fabric.Domain, error) {
		o.Provider, o.Source = "tcp", "127.0.0.1"
		return fabric.Open(ctx, o)
	}
}

// runAcross runs a body on ranks that have GPUs on hosts of the given names, each a letter.
func runAcross(t *testing.T, g *ranktest.GPUs, hosts string, open opener, deadline time.Duration,
	body func(ctx context.Context, r *rank) error,
) {
	t.Helper()
	t.Setenv("WEFT_HEARTBEAT", "60s")
	runWith(t, len(hosts), memoryBytes, executor.Options{}, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(deadline), weft.WithHostID(hosts[rank:][:1]),
			weft.WithFabric(open))
	}, body)
}

// across are programs for ranks on hosts, with every operation of ports.
func across(hosts string) []plantest.Program {
	all := append(plantest.Across(hosts), plantest.Program{
		Name: "to all at once", Build: func() *plan.Plan { return atOnce(hosts) },
	})
	if hosts == "aabb" {
		all = append(all, plantest.Program{
			Name: "hierarchical packets", Build: func() *plan.Plan { return plantest.Hierarchical(2, 2, 2, 2) },
		})
	}
	return all
}

// atOnce is an all-gather with two channels to each rank, of two blocks. What a block pushes follows each other without
// a word between, so one operation pushes all of it.
func atOnce(hosts string) *plan.Plan {
	n := len(hosts)
	p := plan.New("to all at once", plan.AllGather(n, 2), plan.Options{})
	var c [2][][]*plan.Channel
	for k := range c {
		c[k] = plantest.Ends(p, n, p.Port)
	}
	for r := range n {
		for k := range c {
			b, in := p.Rank(r).Block(k), p.Rank(r).Input().Chunk(k, 1)
			others := plantest.Others(c[k][r], r)
			b.Signal(others...)
			b.Wait(others...)
			b.Copy(p.Rank(r).Output().Chunk(2*r+k, 1), in)
			for i := 1; i < n; i++ {
				q := (r + i) % n
				to := p.Rank(q).Output().Chunk(2*r+k, 1)
				if k == 0 {
					b.PutWithSignal(c[k][r][q], to, in)
				} else {
					b.PutWithSignalAndFlush(c[k][r][q], to, in)
				}
			}
			b.Wait(others...)
			b.Signal(others...)
			b.Wait(others...)
		}
	}
	return p
}

// files are those of programs.
func files(t *testing.T, programs []plantest.Program) (all []*plan.File) {
	t.Helper()
	for _, p := range programs {
		all = append(all, build(t, p.Build()))
	}
	return all
}

// synthesised are plans that were made for two hosts of two ranks: of packets, and of data in windows.
func synthesised(t *testing.T) (all []*plan.File) {
	t.Helper()
	top := cost.TwoHosts(4, 60, 1, 50, 5)
	top.Hosts = []int{0, 0, 1, 1}
	for _, s := range []synthesis.Spec{
		{Collective: spec.AllReduce, Bytes: 1 << 10},
		{Collective: spec.AllGather, Bytes: 256 << 20},
		{Collective: spec.ReduceScatter, Bytes: 64 << 10, RankOrder: true},
		{Collective: spec.AllToAll, Bytes: 1 << 20},
	} {
		s.Topology = top
		f, _, err := synthesis.Synthesize(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

// runs runs plans at several sizes, types, and places of operands.
func runs(hosts string, files []*plan.File, launches []launchOf) func(ctx context.Context, r *rank) error {
	return func(ctx context.Context, r *rank) error {
		for _, f := range files {
			loaded, err := r.Load(ctx, f)
			if err != nil {
				return err
			}
			for i, l := range launches {
				if err := r.launch(ctx, loaded, l, uint64(i)); err != nil {
					return fmt.Errorf("on hosts %s: %w", hosts, err)
				}
			}
		}
		return nil
	}
}

// hostLayouts are ranks by the names of their hosts.
var hostLayouts = []string{"aabb", "ab", "abc", "aab"}

// TestHostsOnEmulatedGPUs runs plans between hosts, on networks of each class and on libfabric; what they leave has the
// bits of the oracle.
func TestHostsOnEmulatedGPUs(t *testing.T) {
	for i, hosts := range hostLayouts {
		if i > 1 && !emulate.Everything() {
			break
		}
		class := fabrictest.Classes()[i%len(fabrictest.Classes())]
		t.Run(hosts+" on "+class.Name, func(t *testing.T) {
			g := emulatedKernels(t, len(hosts), uint64(i+1))
			runAcross(t, g, hosts, twin(t, class), patience, runs(hosts, files(t, across(hosts)), few))
		})
	}
	t.Run("aab on libfabric", func(t *testing.T) {
		g := emulatedKernels(t, 3, 5)
		runAcross(t, g, "aab", libfabric(t), patience, runs("aab", files(t, plantest.Across("aab")[1:3]), few[3:5]))
	})
}

// TestSynthesisedOnEmulatedGPUs runs plans between the hosts that their topology names.
func TestSynthesisedOnEmulatedGPUs(t *testing.T) {
	made := synthesised(t)
	if !emulate.Everything() {
		made = made[:2]
	}
	g := emulatedKernels(t, 4, 3)
	runAcross(t, g, "aabb", twin(t, fabrictest.EFA()), patience, runs("aabb", made, few[3:]))
}

// TestHostsOnGPUs is the same as both on real GPUs, which ranks may share, without another host: they only play at
// several.
func TestHostsOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for i, hosts := range hostLayouts {
		t.Run(hosts, func(t *testing.T) {
			class := fabrictest.Classes()[i%len(fabrictest.Classes())]
			all := files(t, across(hosts))
			if hosts == "aabb" {
				all = append(all, synthesised(t)...)
			}
			runAcross(t, g, hosts, twin(t, class), patience, runs(hosts, all, few))
		})
	}
}

// TestHostGraphsOnEmulatedGPUs replays graphs of launches between hosts.
func TestHostGraphsOnEmulatedGPUs(t *testing.T) {
	const hosts = "aab"
	programs := across(hosts)
	if !emulate.Everything() {
		programs = []plantest.Program{programs[2], programs[4]}
	}
	for i, p := range programs {
		t.Run(p.Name, func(t *testing.T) {
			g := emulatedKernels(t, len(hosts), uint64(i+1))
			runAcross(t, g, hosts, twin(t, fabrictest.EFA()), patience, replays(build(t, p.Build()), 2))
		})
	}
}

// TestHostGraphsOnGPUs is the same on real ones.
func TestHostGraphsOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, p := range across("aab") {
		t.Run(p.Name, func(t *testing.T) {
			runAcross(t, g, "aab", twin(t, fabrictest.EFA()), patience, replays(build(t, p.Build()), 20))
		})
	}
}

// testAbsentAcross lets a rank of another host make no launch: the others' error names the plan, the block, the
// operation and that rank; a plan is refused while a rank is masked, and all go on after SetMask.
func testAbsentAcross(t *testing.T, g *ranktest.GPUs, hosts string, programs []plantest.Program) {
	absent := len(hosts) - 1
	l := launchOf{dtype: weft.BFloat16, chunk: 48}
	for _, p := range programs {
		t.Run(p.Name, func(t *testing.T) {
			f := build(t, p.Build())
			open := twin(t, fabrictest.TCP())
			runAcross(t, g, hosts, open, patience, runs(hosts, []*plan.File{f}, []launchOf{l})) // it is compiled
			var together, masked sync.WaitGroup
			together.Add(len(hosts))
			masked.Add(absent)
			runAcross(t, g, hosts, twin(t, fabrictest.TCP()), 5*time.Second, func(ctx context.Context, r *rank) error {
				x, err := r.Load(ctx, f)
				if err == nil {
					err = r.launch(ctx, x, l, 1)
				}
				if err == nil && r.comm.Rank() != absent {
					out, in, _, again := r.put(f, l, 2)
					late := x.Execute(ctx, nil, out, in)
					peer, ok := errors.AsType[*weft.PeerError](late)
					named := ok && peer.Rank == absent && errors.Is(late, weft.ErrTimeout)
					for _, word := range []string{"plan " + f.Name, "block", "operation"} {
						named = named && strings.Contains(late.Error(), word)
					}
					// The root of a broadcast serves the ranks one by one: those before the absent one have all that they need.
					served := f.Collective == spec.Broadcast && r.comm.Rank() > 0 && late == nil
					if !named && !served && !errors.Is(late, weft.ErrAborted) && !errors.Is(late, weft.ErrTimeout) {
						again = errors.Join(again, fmt.Errorf("without rank %d: %w", absent, late))
					}
					t.Logf("rank %d: %v", r.comm.Rank(), late)
					err = again
				}
				together.Done()
				together.Wait()
				if r.comm.Rank() != absent {
					if err == nil {
						err = r.comm.SetMask(ctx, absent)
					}
					if err == nil {
						if again := r.launch(ctx, x, l, 1); !errors.Is(again, weft.ErrMasked) {
							err = fmt.Errorf("with a masked rank: %w", again)
						}
					}
					masked.Done()
				}
				masked.Wait()
				if err := errors.Join(err, r.comm.SetMask(ctx)); err != nil {
					return err
				}
				for n := range 3 {
					if err := r.launch(ctx, x, l, uint64(n)); err != nil {
						return fmt.Errorf("after SetMask: %w", err)
					}
				}
				return nil
			})
		})
	}
}

func TestAbsentRankAcrossOnEmulatedGPUs(t *testing.T) {
	programs := across("aab")
	if !emulate.Everything() {
		programs = programs[2:3]
	}
	testAbsentAcross(t, emulated(t, 3, 1), "aab", programs)
}

// TestAbsentRankAcrossOnGPUs is the same on real ones.
func TestAbsentRankAcrossOnGPUs(t *testing.T) {
	testAbsentAcross(t, ranktest.Real(t), "aab", across("aab"))
}

func testAbortedAcross(t *testing.T, g *ranktest.GPUs, hosts string, programs []plantest.Program) {
	for i, p := range programs {
		t.Run(p.Name, func(t *testing.T) {
			class := fabrictest.Classes()[i%len(fabrictest.Classes())]
			runAcross(t, g, hosts, twin(t, class), patience, aborts(build(t, p.Build())))
		})
	}
}

// TestAbortedAcrossOnEmulatedGPUs aborts ranks of several hosts.
func TestAbortedAcrossOnEmulatedGPUs(t *testing.T) {
	programs := across("aab")
	if !emulate.Everything() {
		programs = programs[2:4]
	}
	testAbortedAcross(t, emulated(t, 3, 1), "aab", programs)
}

// TestAbortedAcrossOnGPUs is the same on real ones.
func TestAbortedAcrossOnGPUs(t *testing.T) {
	testAbortedAcross(t, ranktest.Real(t), "aab", across("aab"))
}

// TestHostRefusalsOnEmulatedGPUs has plans that GPUs of several hosts cannot run refused on all ranks, with the
// executor going on.
func TestHostRefusalsOnEmulatedGPUs(t *testing.T) {
	const hosts = "ab"
	shared := plan.New("shared", plan.AllGather(2, 1), plan.Options{})
	c := plantest.Ends(shared, 2, shared.Port)
	for r := range 2 {
		for k := range 2 {
			b := shared.Rank(r).Block(k)
			b.Signal(c[r][1-r])
			b.Wait(c[r][1-r])
		}
		shared.Rank(r).Block(0).Put(c[r][1-r], shared.Rank(1-r).Output().Chunk(r, 1), shared.Rank(r).Input().Chunk(0, 1))
	}
	wrong := []*plan.File{build(t, plantest.Gather(2, true)), build(t, plantest.Switched(2, true)), build(t, shared)}
	wants := []string{
		"which is on another host; make it a port channel", "which is on another host; make it",
		"into one that leads to another host a single block may push",
	}
	right := files(t, plantest.Across(hosts)[:1])
	g := emulated(t, len(hosts), 1)
	t.Setenv("WEFT_HEARTBEAT", "60s")
	open := twin(t, fabrictest.TCP())
	runWith(t, len(hosts), memoryBytes, executor.Options{Unverified: true}, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(patience), weft.WithHostID(hosts[rank:][:1]), weft.WithFabric(open))
	}, func(ctx context.Context, r *rank) error {
		for i, f := range wrong {
			if _, err := r.Load(ctx, f); !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), wants[i]) {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
		}
		return runs(hosts, right, []launchOf{{dtype: weft.Uint8, chunk: 16}})(ctx, r)
	})
}
