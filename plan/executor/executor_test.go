package executor_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// goroutines are ranks that tests share.
var goroutines = ranktest.Goroutines("goroutines", ranktest.OnHost)

// where says in what memory operands lie.
type where int

const (
	inWindows where = iota
	inNone
	mixed // ranks differ
)

// launches runs a plan on this rank at each size of chunk, and compares what it leaves with the oracle's.
func launches(ctx context.Context, c *weft.Comm, x *executor.Executor, f *plan.File, t weft.DType, at where, chunks ...int,
) error {
	p, err := x.Load(ctx, f)
	if err != nil {
		return err
	}
	for n, chunk := range chunks {
		o := plantest.NewOracle(f, t, chunk)
		o.Fill(uint64(n))
		in, out, size := plantest.Place(f, c.Rank(), chunk)
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
		_, _, size := plantest.Place(f, r, chunk)
		n = max(n, size)
	}
	return n
}

func tensor(b []byte, t weft.DType) weft.Tensor { return weft.TensorAt(b, t, len(b)/t.Size()) }

func TestPrograms(t *testing.T) {
	for _, p := range plantest.Programs() {
		t.Run(p.Name, func(t *testing.T) {
			f, err := p.Build().Build()
			if err != nil {
				t.Fatal(err)
			}
			t.Log(len(f.Ranks))
			err = ranktest.Run(len(f.Ranks), ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
				x, err := executor.New(ctx, c, executor.Options{})
				if err != nil {
					return err
				}
				for _, at := range []where{inWindows, inNone, mixed} {
					for _, d := range []weft.DType{weft.Float32, weft.BFloat16} {
						if err := launches(ctx, c, x, f, d, at, 16, 16, 4096, 48, 0, 48); err != nil {
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
