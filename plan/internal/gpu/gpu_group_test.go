package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// calls has plans run the calls of a group: of a plan whose sums are in rank order the bits are those of the library's
// algorithms, of which exact is the one for reductions; "" is any.
func calls(files []*plan.File, exact string) func(ctx context.Context, r *rank) error {
	return func(ctx context.Context, r *rank) (err error) {
		o := collective.Options{DTypes: []weft.DType{weft.BFloat16}, SMs: 4 * r.comm.Size()}
		for _, f := range files {
			a, err := executor.Algorithm(f)
			if err != nil {
				return err
			}
			o.Algorithms = append(o.Algorithms, a)
		}
		group, err := collective.New(ctx, r.comm, o)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, group.Close()) }()
		for i, a := range o.Algorithms {
			native := ""
			if a.Collective.Reduces() && exact != "" {
				native = a.Collective.String() + exact
			}
			for n, chunk := range []int{32, 2048, 48} {
				l := launchOf{dtype: weft.BFloat16, chunk: chunk, window: n%2 == 0}
				c := collective.Call{Collective: a.Collective, Op: weft.Sum}
				if len(a.Ops) > 0 {
					c.Op = a.Ops[0]
				}
				for root := range files[i].Ranks {
					if a.Collective.Rooted() && files[i].Ranks[root].Input > 0 {
						c.Root = root
					}
				}
				var outputs [2][]byte
				for k, name := range []string{a.Name, native} {
					out, in, want, err := r.put(files[i], l, uint64(n))
					if err != nil {
						return err
					}
					c.In, c.Out, c.Algorithm = in, out, name
					if err = group.Do(ctx, nil, c); err == nil && k == 0 {
						err = r.check(files[i], l, out, want)
					}
					outputs[k] = make([]byte, out.Bytes())
					if err := errors.Join(err, r.comm.Device().Context().Download(outputs[k], out.Pointer())); err != nil {
						return fmt.Errorf("%q: %w", name, err)
					}
				}
				if a.Tags["opt-in"] == "" && !bytes.Equal(outputs[0], outputs[1]) {
					return fmt.Errorf("%s leaves other bits than the library's algorithm", a.Name)
				}
			}
		}
		return nil
	}
}

// testGroup makes calls within a host.
func testGroup(t *testing.T, g *ranktest.GPUs) {
	const ranks = 3
	files := []*plan.File{
		build(t, plantest.Switched(ranks, true)), build(t, plantest.Gather(ranks, true)), build(t, plantest.SumsByReading()),
		build(t, plantest.Pipelined(ranks)), build(t, plantest.Broadcast(ranks, 1, false)),
		build(t, plantest.Broadcast(ranks, 1, true)),
	}
	files[len(files)-1].Name = "reading broadcast"
	run(t, g, ranks, memoryBytes, executor.Options{}, patience, calls(files, ""))
}

func TestGroupOnEmulatedGPUs(t *testing.T) { testGroup(t, emulatedKernels(t, 3, 5)) }

// TestGroupOnGPUs is the same on real ones.
func TestGroupOnGPUs(t *testing.T) { testGroup(t, ranktest.Real(t)) }

// testGroupAcross makes calls between hosts, and has what works on one host alone refused on all ranks.
func testGroupAcross(t *testing.T, g *ranktest.GPUs) {
	const hosts = "aab"
	files := []*plan.File{
		build(t, plantest.GatherAcross(hosts)), build(t, plantest.ExchangeAcross(hosts)),
		build(t, plantest.TwoShotAcross(hosts)), build(t, plantest.BroadcastAcross(hosts)),
	}
	near := build(t, plantest.Gather(len(hosts), true))
	kernel := collective.Algorithm{
		Name: "all-reduce/mine", Collective: collective.AllReduce, Kernel: &collective.Kernel{Source: "//", Name: "mine"},
	}
	runAcross(t, g, hosts, twin(t, fabrictest.EFA()), patience, func(ctx context.Context, r *rank) error {
		a, err := executor.Algorithm(near)
		if err != nil {
			return err
		}
		for _, wrong := range []struct {
			algorithm collective.Algorithm
			says      string
		}{{a, "which is on another host"}, {kernel, "ranks 0 and 2 are on different hosts"}} {
			_, err := collective.New(ctx, r.comm, collective.Options{Algorithms: []collective.Algorithm{wrong.algorithm}})
			if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), wrong.says) {
				return fmt.Errorf("%s: %w", wrong.algorithm.Name, err)
			}
		}
		return calls(files, "/hierarchical-exact")(ctx, r)
	})
}

func TestGroupAcrossOnEmulatedGPUs(t *testing.T) { testGroupAcross(t, emulatedKernels(t, 3, 5)) }

// TestGroupAcrossOnGPUs is the same on real ones.
func TestGroupAcrossOnGPUs(t *testing.T) { testGroupAcross(t, ranktest.Real(t)) }
