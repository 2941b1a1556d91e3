package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/optimizer"
	"github.com/weftgo/weft/plan/spec"
)

func TestMain(m *testing.M) {
	if err := os.Setenv("WEFT_TUNING", "none"); err != nil { // not what was measured on this machine
		panic(err)
	}
	if err := os.Setenv("WEFT_HEARTBEAT", "60s"); err != nil { // on a slow machine no host is lost for its silence
		panic(err)
	}
	if playPart() { // as a rank that a test has started
		return
	}
	goleak.VerifyTestMain(m)
}

// where says in what memory operands lie.
type where int

const (
	inWindows where = iota
	inNone
	mixed // ranks differ
)

// launches runs a plan on this rank at each size of chunk, and compares what it leaves with the oracle's.
func launches(ctx context.Context, c *weft.Comm, x *executor.Executor, f *plan.File, t weft.DType, at where,
	chunks ...int,
) error {
	p, err := x.Load(ctx, f)
	if err != nil {
		return err
	}
	return run(ctx, c, p, t, at, chunks...)
}

// run is launches of a plan that was loaded.
func run(ctx context.Context, c *weft.Comm, p *executor.Plan, t weft.DType, at where, chunks ...int) error {
	f := p.File()
	for n, chunk := range chunks {
		o := plantest.NewOracle(f, t, chunk)
		o.Fill(uint64(n))
		in, out, size := f.Place(c.Rank(), chunk)
		region := make([]byte, size)
		if at == inWindows || at == mixed {
			w, err := c.Alloc(ctx, largest(f, chunk))
			if err != nil {
				return err
			}
			defer w.Close()
			if at == inWindows || c.Rank()%2 == 1 {
				region = w.Bytes()[:size]
			}
		}
		ins, outs := region[in:][:f.Ranks[c.Rank()].Input*chunk], region[out:][:f.Ranks[c.Rank()].Output*chunk]
		copy(ins, o.Buffer(c.Rank(), spec.Input))
		if err := o.Run(); err != nil {
			return err
		}
		if err := p.Execute(ctx, nil, tensor(outs, t), tensor(ins, t)); err != nil {
			return fmt.Errorf("chunk of %d: %w", chunk, err)
		}
		if want := o.Buffer(c.Rank(), spec.Output); !bytes.Equal(outs, want) {
			i := 0
			for outs[i] == want[i] {
				i++
			}
			return fmt.Errorf("%s: chunks of %d bytes, %v: byte %d of the output of rank %d is wrong", f.Name, chunk, t, i,
				c.Rank())
		}
	}
	return nil
}

// largest is the most bytes of operands that a rank of a plan has.
func largest(f *plan.File, chunk int) (n int) {
	for r := range f.Ranks {
		_, _, size := f.Place(r, chunk)
		n = max(n, size)
	}
	return n
}

func tensor(b []byte, t weft.DType) weft.Tensor { return weft.TensorAt(b, t, len(b)/t.Size()) }

// all is every type whose elements plans can reduce.
var all = []weft.DType{
	weft.BFloat16, weft.Float16, weft.Float32, weft.Float64, weft.Float8E4M3, weft.Float8E5M2, weft.Int8, weft.Int16,
	weft.Int32, weft.Int64, weft.Uint8, weft.Uint16, weft.Uint32, weft.Uint64, weft.Bool,
}

// TestPrograms has every operation, in every type, on chunks from the smallest on, with operands wherever they may lie.
func TestPrograms(t *testing.T) {
	for i, p := range slices.Concat(plantest.Programs(), plantest.Larger()) {
		t.Run(p.Name, func(t *testing.T) {
			f, err := p.Build().Build()
			if err != nil {
				t.Fatal(err)
			}
			err = ranktest.Run(len(f.Ranks), ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
				x, err := executor.New(ctx, c, executor.Options{})
				if err != nil {
					return err
				}
				chunks := []int{16, 16, 4096, 48, 0}
				if len(f.Ranks) < 8 {
					chunks = append(chunks, 20_000)
				}
				for k, at := range []where{inWindows, inNone, mixed} {
					if testing.Short() && k != i%3 { // each place has programs, and each program a place
						continue
					}
					for n, d := range all {
						if os.Getenv("WEFT_TEST_ALL") == "" && n != (i+5*k)%len(all) {
							continue
						}
						if err := launches(ctx, c, x, f, d, at, chunks...); err != nil {
							return err
						}
					}
				}
				return x.Close()
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOptimised runs what the optimiser makes of the programs.
func TestOptimised(t *testing.T) {
	if testing.Short() {
		t.Skip("the optimiser is one goroutine, and TestPrograms has the same ranks")
	}
	for _, p := range plantest.Programs() {
		t.Run(p.Name, func(t *testing.T) {
			o := optimizer.Options{Instances: 2, Bytes: 64 << 10, Moves: 200}
			f, _, err := optimizer.Optimize(t.Context(), build(t, p.Build()), o)
			if err != nil {
				t.Fatal(err)
			}
			err = ranktest.Run(len(f.Ranks), ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
				x, err := executor.New(ctx, c, executor.Options{})
				if err != nil {
					return err
				}
				return errors.Join(launches(ctx, c, x, f, weft.BFloat16, mixed, 16, 16, 4096, 48), x.Close())
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLargeMessages has messages of 64 MiB: of several plans in make test-all, of one otherwise, of 8 MiB.
func TestLargeMessages(t *testing.T) {
	bytes, programs := 64<<20, []*plan.Plan{
		plantest.TwoShotApart(2), plantest.TwoPhasePackets(2), plantest.Pipelined(2), plantest.Gather(2, true),
	}
	if os.Getenv("WEFT_TEST_ALL") == "" {
		bytes, programs = 8<<20, programs[:1]
	}
	for _, p := range programs {
		f := build(t, p)
		err := ranktest.Run(len(f.Ranks), ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
			x, err := executor.New(ctx, c, executor.Options{})
			if err != nil {
				return err
			}
			chunk := bytes / max(f.Ranks[0].Input, f.Ranks[0].Output)
			return errors.Join(launches(ctx, c, x, f, weft.BFloat16, mixed, chunk), x.Close())
		})
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
}

// TestRealPlans runs the plans of another project's package that the folder WEFT_PLANS has.
func TestRealPlans(t *testing.T) {
	folder := os.Getenv("WEFT_PLANS")
	if folder == "" {
		t.Skip("WEFT_PLANS names no folder with plans")
	}
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no plans in %s: %v", folder, err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := plan.Load(text)
		if err != nil {
			t.Fatal(err)
		}
		rank := &f.Ranks[0]
		chunks := rank.Input
		if f.Collective == spec.AllGather {
			chunks = rank.Output
		}
		least := (int(f.MinBytes)/chunks + 15) &^ 15
		err = ranktest.Run(len(f.Ranks), ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
			x, err := executor.New(ctx, c, executor.Options{})
			if err != nil {
				return err
			}
			for _, at := range []where{inWindows, mixed} {
				for _, d := range []weft.DType{weft.Float32, weft.BFloat16, weft.Uint8} {
					if err := launches(ctx, c, x, f, d, at, max(least, 16), least+48, least+4096); err != nil {
						return err
					}
				}
			}
			return x.Close()
		})
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(name), err)
		}
	}
}

// TestRefusals has what is wrong on one rank, or differs among them, fail on all, and the executor go on.
func TestRefusals(t *testing.T) {
	f := build(t, plantest.Gather(2, true))
	other := build(t, plantest.Gather(2, false))
	err := ranktest.Run(2, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
		x, err := executor.New(ctx, c, executor.Options{})
		if err != nil {
			return err
		}
		for _, wrong := range []struct {
			what string
			file *plan.File
			want error
		}{
			{"another plan", [](*plan.File){f, other}[c.Rank()], weft.ErrMismatch},
			{"another number of ranks", build(t, plantest.Gather(3, true)), weft.ErrUnsupported},
			{"what the verifier finds", build(t, unready()), weft.ErrInvalid},
			{"a broken rule", &spec.File{}, weft.ErrInvalid},
			{"no plan", nil, weft.ErrInvalid},
			{"no plan on one rank", [](*plan.File){f, nil}[c.Rank()], weft.ErrInvalid},
		} {
			if _, err := x.Load(ctx, wrong.file); !errors.Is(err, wrong.want) {
				return fmt.Errorf("%s: %v", wrong.what, err)
			}
		}
		p, err := x.Load(ctx, f)
		if err != nil {
			return err
		}
		out := make([]byte, 256)
		for _, wrong := range []struct {
			what      string
			at, n     int
			to        int
			t, others weft.DType
			want      error
		}{
			{"a length", 24, 24, 48, weft.Uint8, weft.Uint8, weft.ErrInvalid},
			{"a placement", 16, 16, 32, weft.Uint8, weft.Uint8, weft.ErrUnsupported},
			{"chunks of another length", 32 * c.Rank(), 32, 64, weft.Uint8, weft.Uint8, weft.ErrMismatch},
			{"another type", 16 * c.Rank(), 16, 32, weft.Int8, weft.Uint8, weft.ErrMismatch},
		} {
			at, n, to, d := wrong.at, wrong.n, wrong.to, wrong.t
			if c.Rank() == 1 { // whose launch is right
				at, n, to, d = 16, 16, 32, wrong.others
			}
			err := p.Execute(ctx, nil, tensor(out[:to], d), tensor(out[at:][:n], d))
			if !errors.Is(err, wrong.want) {
				return fmt.Errorf("%s: %v", wrong.what, err)
			}
		}
		if err := launches(ctx, c, x, f, weft.Uint8, inNone, 16); err != nil {
			return err
		}
		if err := x.Close(); err != nil {
			return err
		}
		if err := p.Execute(ctx, nil, weft.Tensor{}, weft.Tensor{}); !errors.Is(err, weft.ErrClosed) {
			return fmt.Errorf("a closed executor: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestUnverified runs what the verifier would refuse, but for what no run survives.
func TestUnverified(t *testing.T) {
	f := build(t, unready())
	cycle := build(t, plantest.Gather(2, true))
	for r := range cycle.Ranks {
		ops := cycle.Ranks[r].Blocks[0].Ops
		ops[0], ops[1] = ops[1], ops[0]
	}
	err := ranktest.Run(2, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
		x, err := executor.New(ctx, c, executor.Options{Unverified: true})
		if err != nil {
			return err
		}
		if _, err := x.Load(ctx, cycle); !errors.Is(err, weft.ErrInvalid) {
			return fmt.Errorf("a deadlock: %v", err)
		}
		p, err := x.Load(ctx, f)
		if err != nil {
			return err
		}
		if p.Verdict().Errors() == 0 || p.File() != f {
			return errors.New("the plan is another, or right")
		}
		return errors.Join(p.Execute(ctx, nil, tensor(make([]byte, 32), weft.Int8), tensor(make([]byte, 16), weft.Int8)),
			x.Close())
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAborted aborts ranks in the midst of launches. The error says where; when all go on, launches are right again.
func TestAborted(t *testing.T) {
	for _, p := range []*plan.Plan{
		plantest.TwoShotApart(2), plantest.OneShotPackets(2, plan.Sum), plantest.Pipelined(2), plantest.Gather(2, false),
	} {
		f := build(t, p)
		err := ranktest.Run(2, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
			x, err := executor.New(ctx, c, executor.Options{})
			if err != nil {
				return err
			}
			loaded, err := x.Load(ctx, f)
			if err != nil {
				return err
			}
			for step := 1; step < 3; step++ {
				done := 0
				loaded.OnStep(func() {
					if done++; c.Rank() == 1 && done == step {
						c.Abort()
					}
				})
				// A launch may have a single step.
				err := launches(ctx, c, x, f, weft.Float32, inNone, 64, 64)
				for err == nil { // its packets were there before
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
			t.Errorf("%s: %v", f.Name, err)
		}
	}
}

// TestFailureNames has a rank that waits in a plan say in which operation, and for whom.
func TestFailureNames(t *testing.T) {
	f := build(t, plantest.Ring(3))
	err := ranktest.Run(3, func(int) []weft.Option {
		return []weft.Option{weft.WithDeadline(time.Second)}
	}, func(ctx context.Context, c *weft.Comm) error {
		x, err := executor.New(ctx, c, executor.Options{})
		if err != nil {
			return err
		}
		p, err := x.Load(ctx, f)
		if err != nil {
			return err
		}
		p.OnStep(func() {
			if c.Rank() == 1 {
				for c.Err() == nil { // until rank 0 gives it up
					time.Sleep(time.Millisecond)
				}
			}
		})
		err = launches(ctx, c, x, f, weft.Float32, inNone, 64)
		peer, ok := errors.AsType[*weft.PeerError](err)
		switch {
		case !ok || peer.Rank != 1 || !errors.Is(err, weft.ErrTimeout):
			return fmt.Errorf("rank %d: %v", c.Rank(), err)
		case c.Rank() == 2 && peer.Op != "plan ring: rank 2, block 0, operation 6 (wait)":
			return fmt.Errorf("rank 2 waits in %q", peer.Op)
		}
		return x.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSharedScratch has plans take turns in one scratch, with data where the other has packets, and be loaded again
// after a reset.
func TestSharedScratch(t *testing.T) {
	var files []*plan.File
	for _, p := range []*plan.Plan{
		plantest.OneShotPackets(2, plan.Sum), plantest.SumsSentOn(), plantest.TwoPhasePackets(2),
	} {
		f := build(t, p)
		f.ReuseResources = true
		files = append(files, f)
	}
	err := ranktest.Run(2, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
		x, err := executor.New(ctx, c, executor.Options{})
		if err != nil {
			return err
		}
		for range 2 {
			for _, chunk := range []int{64, 4096, 16, 64} {
				for _, f := range files {
					if err := launches(ctx, c, x, f, weft.Int32, inNone, chunk, chunk); err != nil {
						return err
					}
				}
			}
			if err := x.Reset(); err != nil {
				return err
			}
		}
		return x.Close()
	})
	if err != nil {
		t.Error(err)
	}
}
