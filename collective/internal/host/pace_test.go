package host

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
)

// TestPacesAgree: ranks that find every write slow, or every write fast, go their ways, and their
// results are the same.
func TestPacesAgree(t *testing.T) {
	const ranks, count = 3, 200_001
	for _, past := range []bool{false, true} {
		j := newJob(t, ranks, 256<<10, "all-reduce/two-shot")
		for _, e := range j.engines {
			for _, p := range []*enginehost.Pace{&e.call.moves.Staging, &e.call.moves.Sharing} {
				p.Enough = 0
				if past {
					p.Enough = math.MaxInt64 / int64(time.Hour)
				}
			}
		}
		j.must(t, func(ctx context.Context, r int) error {
			in, out, want := make([]int32, count), make([]int32, count), make([]int32, count)
			for i := range in {
				in[i] = int32(i * (r + 1))
				want[i] = int32(i * ranks * (ranks + 1) / 2)
			}
			e := j.engines[r]
			c := &spec.Call{Collective: spec.AllReduce, Out: weft.TensorOf(out), In: weft.TensorOf(in)}
			if err := e.Begin("test"); err != nil {
				return err
			}
			_, err := e.Run(ctx, nil, c, c.Check(r, ranks))
			if err == nil && !slices.Equal(out, want) {
				t.Errorf("past the caches %t: rank %d has another sum", past, r)
			}
			return err
		})
		for r, e := range j.engines {
			if e.call.moves.Staging.Past() != past || e.call.moves.Sharing.Past() != past {
				t.Errorf("rank %d stages past the caches: %t, shares: %t, want %t", r, e.call.moves.Staging.Past(),
					e.call.moves.Sharing.Past(), past)
			}
		}
	}
}
