package executor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// across are options of ranks on hosts of the given names, each a letter.
func across(hosts string, open func(context.Context, fabric.Options) (*fabric.Domain, error)) func(int) []weft.Option {
	return func(rank int) []weft.Option {
		return []weft.Option{weft.WithHostID(hosts[rank:][:1]), weft.WithFabric(open)}
	}
}

// twin makes a network of a class, which must have seen no mistake in the end.
func twin(t testing.TB, class fabrictest.Class) *fabrictest.Network {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	network := fabrictest.New(class, seed)
	t.Cleanup(func() {
		if err := network.Check(); err != nil {
			t.Error(err)
		}
	})
	return network
}

// libfabric opens domains on libfabric's tcp, or skips the test.
func libfabric(t testing.TB) func(context.Context, fabric.Options) (*fabric.Domain, error) {
	o := fabric.Options{Size: 1, Provider: "tcp", Source: "127.0.0.1"}
	if err := fabrictest.Libfabric(t.Context(), t, o).Close(); err != nil {
		t.Error(err)
	}
	return func(ctx context.Context, o fabric.Options) (*fabric.Domain, error) {
		o.Provider, o.Source = "tcp", "127.0.0.1"
		return fabric.Open(ctx, o)
	}
}

// layouts are ranks by the names of their hosts.
var layouts = []string{"ab", "aabb", "abc", "aab"}

// programsAcross are those for ranks on hosts.
func programsAcross(hosts string) []plantest.Program {
	all := plantest.Across(hosts)
	if hosts == "aabb" {
		all = append(all, plantest.Program{
			Name: "hierarchical packets", Build: func() *plan.Plan { return plantest.Hierarchical(2, 2, 2, 2) },
		})
	}
	return all
}

// TestHosts runs plans between hosts, on networks of each class and on libfabric.
func TestHosts(t *testing.T) {
	for i, hosts := range layouts {
		class := fabrictest.Classes()[i]
		t.Run(hosts+" on "+class.Name, func(t *testing.T) { runAcross(t, hosts, twin(t, class).Open) })
	}
	t.Run("aabb on libfabric", func(t *testing.T) { runAcross(t, "aabb", libfabric(t)) })
}

func runAcross(t *testing.T, hosts string, open func(context.Context, fabric.Options) (*fabric.Domain, error)) {
	var files []*plan.File
	for _, p := range programsAcross(hosts) {
		files = append(files, build(t, p.Build()))
	}
	err := ranktest.Run(len(hosts), across(hosts, open), func(ctx context.Context, c *weft.Comm) error {
		x, err := executor.New(ctx, c, executor.Options{})
		if err != nil {
			return err
		}
		for i, f := range files {
			for k, at := range []where{inWindows, inNone, mixed} {
				if testing.Short() && k != i%3 { // each place has programs, and each program a place
					continue
				}
				for n, d := range all {
					if os.Getenv("WEFT_TEST_ALL") == "" && n != (i+5*k)%len(all) {
						continue
					}
					if err := launches(ctx, c, x, f, d, at, 16, 16, 4096, 48, 0, 20_000); err != nil {
						return fmt.Errorf("%s: %w", f.Name, err)
					}
				}
			}
		}
		if err := x.Reset(); err != nil {
			return err
		}
		return errors.Join(launches(ctx, c, x, files[0], weft.Int32, inNone, 64), x.Close())
	})
	if err != nil {
		t.Error(err)
	}
}

// TestHosts_takenBack masks a rank of another host that is well, and takes it back: plans run as before.
func TestHosts_takenBack(t *testing.T) {
	const hosts = "aabb"
	last := len(hosts) - 1
	for _, class := range fabrictest.Classes() {
		t.Run(class.Name, func(t *testing.T) {
			var files []*plan.File
			for _, p := range programsAcross(hosts) {
				files = append(files, build(t, p.Build()))
			}
			var masks sync.WaitGroup
			masks.Add(last)
			err := ranktest.Run(len(hosts), across(hosts, twin(t, class).Open), func(ctx context.Context, c *weft.Comm) error {
				x, err := executor.New(ctx, c, executor.Options{})
				if err != nil {
					return err
				}
				run := func() error {
					for i, f := range files {
						if err := launches(ctx, c, x, f, weft.Int32, []where{inWindows, inNone, mixed}[i%3], 16, 4096); err != nil {
							return fmt.Errorf("%s: %w", f.Name, err)
						}
					}
					return nil
				}
				if err := run(); err != nil {
					return err
				}
				if c.Rank() != last {
					if err := c.SetMask(ctx, last); err != nil {
						return err
					}
					masks.Done()
				}
				masks.Wait()
				if err := c.SetMask(ctx); err != nil {
					return err
				}
				return errors.Join(run(), x.Close())
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHosts_algorithms has plans run the calls of a group between hosts, with the bits of the library's algorithms.
func TestHosts_algorithms(t *testing.T) {
	const hosts = "aabb"
	files := []*plan.File{
		build(t, plantest.GatherAcross(hosts)), build(t, plantest.ExchangeAcross(hosts)),
		build(t, plantest.TwoShotAcross(hosts)),
	}
	err := ranktest.Run(len(hosts), across(hosts, twin(t, fabrictest.EFA()).Open), func(ctx context.Context,
		c *weft.Comm,
	) error {
		g, err := groupOf(ctx, c, collective.Options{}, files...)
		if err != nil {
			return err
		}
		w, err := c.Alloc(ctx, 1<<20)
		if err != nil {
			return err
		}
		for i, kind := range []collective.Collective{collective.AllGather, collective.AllToAll, collective.AllReduce} {
			for _, windows := range []bool{true, false} {
				for _, chunk := range []int{16, 48, 4096} {
					native := ""
					if kind.Reduces() {
						native = "all-reduce/hierarchical-exact"
					}
					if err := compare(ctx, c, g, kind, files[i], chunk, w, windows, native); err != nil {
						return fmt.Errorf("%v, chunk %d, windows %t: %w", kind, chunk, windows, err)
					}
				}
			}
		}
		return g.Close()
	})
	if err != nil {
		t.Error(err)
	}
	near := build(t, plantest.Gather(2, true))
	err = ranktest.Run(2, across("ab", twin(t, fabrictest.TCP()).Open), func(ctx context.Context, c *weft.Comm) error {
		_, err := groupOf(ctx, c, collective.Options{}, near)
		if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "which is on another host") {
			return fmt.Errorf("a plan of one host: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestHosts_refusals has plans that ranks of several hosts cannot run refused on all, with the executor going on.
func TestHosts_refusals(t *testing.T) {
	drifting := build(t, plantest.GatherAcross("ab")) // a signal too many
	for r := range drifting.Ranks {
		b := &drifting.Ranks[r].Blocks[0]
		b.Ops = append(b.Ops, b.Ops[0])
	}
	network := twin(t, fabrictest.TCP())
	err := ranktest.Run(2, across("ab", network.Open), func(ctx context.Context, c *weft.Comm) error {
		x, err := executor.New(ctx, c, executor.Options{Unverified: true})
		if err != nil {
			return err
		}
		for _, wrong := range []struct {
			file *plan.File
			want string
		}{
			{build(t, plantest.Gather(2, true)), "memory channel 0 of rank 0 leads to rank 1, which is on another host; " +
				"make it a port channel, or start the two on one host"},
			{build(t, plantest.Switched(2, true)), "on another host; make it"},
			{drifting, "the counters of its channels end elsewhere than they began"},
		} {
			_, err := x.Load(ctx, wrong.file)
			if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), wrong.want) {
				return fmt.Errorf("%s: %v", wrong.file.Name, err)
			}
		}
		f := build(t, plantest.GatherAcross("ab"))
		return errors.Join(launches(ctx, c, x, f, weft.Uint8, inNone, 16), x.Close())
	})
	if err != nil {
		t.Error(err)
	}
}

// TestHosts_aborted aborts ranks in the midst of launches between hosts; when all go on, launches are right again.
func TestHosts_aborted(t *testing.T) {
	const hosts = "aab"
	for i, p := range plantest.Across(hosts) {
		f := build(t, p.Build())
		network := twin(t, fabrictest.Classes()[i%len(fabrictest.Classes())])
		err := ranktest.Run(len(hosts), across(hosts, network.Open), func(ctx context.Context, c *weft.Comm) error {
			x, err := executor.New(ctx, c, executor.Options{})
			if err != nil {
				return err
			}
			loaded, err := x.Load(ctx, f)
			if err != nil {
				return err
			}
			for step := 1; step < 6; step += 2 {
				done := 0
				loaded.OnStep(func() {
					if done++; c.Rank() == 1 && done == step {
						c.Abort()
					}
				})
				err := launches(ctx, c, x, f, weft.Float32, inNone, 64)
				if c.Rank() == 1 && done < step { // it has done all that it has to do
					c.Abort()
				}
				for err == nil {
					time.Sleep(time.Millisecond)
					err = c.Err()
				}
				if !errors.Is(err, weft.ErrAborted) {
					return fmt.Errorf("step %d: %v", step, err)
				}
				loaded.OnStep(nil)
				if err := c.SetMask(ctx); err != nil {
					return err
				}
				if err := launches(ctx, c, x, f, weft.Float32, inNone, 64, 64, 16); err != nil {
					return fmt.Errorf("after step %d: %w", step, err)
				}
			}
			return x.Close()
		})
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
}
