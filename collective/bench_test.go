package collective

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// BenchmarkCollectives times operations of ranks that are goroutines, on memory of their own and in
// windows. Bytes are those of the whole vector: of all parts, where an operand has parts.
func BenchmarkCollectives(b *testing.B) {
	const most = 8 << 20
	for _, ranks := range []int{1, 2, 4} {
		j := newJob(b, ranks)
		groups := j.group(b, Options{})
		windows := make([]*weft.Window, ranks)
		j.must(b, func(ctx context.Context, r int) (err error) {
			windows[r], err = j.comms[r].Alloc(ctx, 2*most+128)
			return err
		})
		for kind := AllReduce; kind < spec.Collectives; kind++ {
			for _, n := range []int{16, 1 << 10, 16 << 10, 1 << 20, most} {
				for _, inWindow := range []bool{false, true} {
					if inWindow && n < 1<<15 {
						continue
					}
					s := &shape{
						kind: kind, dtype: weft.Float32, align: make([]int, ranks), inPlace: make([]bool, ranks),
						window: slices.Repeat([]bool{inWindow}, ranks),
					}
					part := n / 4
					if kind != AllReduce && kind != Broadcast && kind != Reduce {
						part /= ranks
					}
					s.lay(slices.Repeat([][]int{slices.Repeat([]int{part}, ranks)}, ranks), false)
					b.Run(fmt.Sprintf("%v/ranks=%d/bytes=%d/windows=%t", kind, ranks, n, inWindow), func(b *testing.B) {
						b.SetBytes(int64(n))
						calls := make([]Call, ranks)
						for r := range calls {
							calls[r] = s.call(r, s.operands(r, windows[r].Bytes()))
						}
						b.ResetTimer()
						j.must(b, func(ctx context.Context, r int) error {
							for range b.N {
								if err := groups[r].Do(ctx, nil, calls[r]); err != nil {
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
