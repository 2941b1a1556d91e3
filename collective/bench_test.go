package collective

import (
	"context"
	"fmt"
	"testing"

	"github.com/weftgo/weft"
)

// operation is a collective on operands of so many bytes that a benchmark repeats.
type operation struct {
	name  string
	sizes []int // in bytes, in nccl-tests' sense: of the whole vector
	call  func(ctx context.Context, g *Group, out, in weft.Tensor, part func(weft.Tensor) weft.Tensor) error
}

var operations = []operation{
	{"all-reduce", []int{8, 1 << 10, 16 << 10, 1 << 20, 8 << 20}, func(ctx context.Context, g *Group,
		out, in weft.Tensor, _ func(weft.Tensor) weft.Tensor,
	) error {
		return g.AllReduce(ctx, nil, out, in, weft.Sum)
	}},
	{"all-gather", []int{16, 1 << 10, 16 << 10, 1 << 20, 8 << 20}, func(ctx context.Context, g *Group,
		out, in weft.Tensor, part func(weft.Tensor) weft.Tensor,
	) error {
		return g.AllGather(ctx, nil, out, part(in))
	}},
	{"broadcast", []int{8, 16 << 10, 1 << 20, 8 << 20}, func(ctx context.Context, g *Group,
		out, in weft.Tensor, _ func(weft.Tensor) weft.Tensor,
	) error {
		return g.Broadcast(ctx, nil, in, 0)
	}},
}

// BenchmarkCollectives times operations of ranks that are goroutines, on memory of their own and in
// windows.
func BenchmarkCollectives(b *testing.B) {
	for _, ranks := range []int{1, 2, 4} {
		j := newJob(b, ranks)
		groups := j.group(b, Options{})
		windows := make([]*weft.Window, ranks)
		j.must(b, func(ctx context.Context, r int) (err error) {
			windows[r], err = j.comms[r].Alloc(ctx, 16<<20)
			return err
		})
		for _, o := range operations {
			for _, n := range o.sizes {
				for _, inWindow := range []bool{false, true} {
					if inWindow && n < 1<<15 {
						continue
					}
					b.Run(fmt.Sprintf("%s/ranks=%d/bytes=%d/windows=%t", o.name, ranks, n, inWindow), func(b *testing.B) {
						b.SetBytes(int64(n))
						j.must(b, func(ctx context.Context, r int) error {
							mem := windows[r].Bytes()
							if !inWindow {
								mem = make([]byte, 2*n)
							}
							in, out := weft.TensorAt(mem, weft.Float32, n/4), weft.TensorAt(mem[n:], weft.Float32, n/4)
							first := weft.TensorAt(mem, weft.Float32, n/4/ranks)
							part := func(weft.Tensor) weft.Tensor { return first }
							for range b.N {
								if err := o.call(ctx, groups[r], out, in, part); err != nil {
									return err
								}
							}
							return nil
						})
					})
				}
			}
		}
	}
}
