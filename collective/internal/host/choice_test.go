package host

import (
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/internal/choice"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
)

// A preference is for requests in which ranks send at most so many bytes each, on at most so many ranks, whose
// operands lie so. Zero means any.
type preference struct {
	form    *form
	bytes   int
	ranks   int
	windows spec.Windows
}

// preferences are what was measured on 2 and 4 ranks: the first that a request meets is the fastest.
var preferences = [spec.Collectives][]preference{
	spec.Barrier: {{form: &eager}},
	spec.AllReduce: {
		{form: &eager, bytes: 32 << 10},
		{form: &pull, bytes: 4 << 20, ranks: 2},
		// In place every line of the output is in the other rank's cache: until it has gone,
		// staging costs less than taking it back.
		{form: &pipeline, bytes: 2 << 20, ranks: 2, windows: spec.InPlace},
		{form: &window},
		{form: &pipeline, bytes: 1 << 20, ranks: 2},
		{form: &twoShot},
	},
	spec.Reduce: {
		{form: &eager, bytes: 32 << 10},
		{form: &pull, ranks: 2},
		{form: &window},
		{form: &pipeline, ranks: 2},
		{form: &twoShot},
	},
	spec.ReduceScatter:  {{form: &eager, bytes: 32 << 10}, {form: &pull}, {form: &pipeline}},
	spec.ReduceScatterV: {{form: &eager, bytes: 32 << 10}, {form: &pull}, {form: &pipeline}},
	spec.AllGather:      {{form: &eager, bytes: 16 << 10}, {form: &pull}, {form: &pipeline}},
	spec.AllGatherV:     {{form: &eager, bytes: 16 << 10}, {form: &pull}, {form: &pipeline}},
	spec.AllToAll:       {{form: &eager, bytes: 16 << 10}, {form: &pull}, {form: &pipeline}},
	spec.AllToAllV:      {{form: &eager}, {form: &pull}, {form: &pipeline}},
	spec.Broadcast:      {{form: &eager, bytes: 64 << 10}, {form: &pull}, {form: &pipeline}},
	spec.Gather:         {{form: &eager, bytes: 16 << 10}, {form: &pull}, {form: &pipeline}},
	spec.Scatter:        {{form: &eager, bytes: 32 << 10}, {form: &pull}, {form: &pipeline}},
}

func preferred(q *spec.Request, eager bool) *form {
	for _, p := range preferences[q.Collective] {
		if p.form.eager == eager && (p.bytes == 0 || q.Sent <= p.bytes) && (p.ranks == 0 || q.Ranks <= p.ranks) &&
			q.Windows&p.windows == p.windows && (p.form.supports == nil || p.form.supports(*q)) {
			return p.form
		}
	}
	return nil
}

// TestChoice has the costs of the library's table choose what was measured to be fastest: every algorithm
// for something, and only for what it supports.
func TestChoice(t *testing.T) {
	chosen := map[string]bool{}
	list := make([]*spec.Algorithm, len(algorithms))
	for i, a := range algorithms {
		list[i] = &a.Algorithm
	}
	by := choice.New(list, nil, model)
	for kind := range spec.Collectives {
		for _, ranks := range []int{1, 2, 3, 4, 8, 64} {
			for _, slot := range []int{512, scratchBytes / enginehost.RingShare} {
				for _, n := range sizesAround(kind) {
					for w := range spec.Windows(8) {
						q := spec.Request{
							Collective: kind, DType: weft.Uint8, Count: n, Bytes: n, Ranks: ranks, Slot: slot,
							Windows: w, Sent: n,
						}
						var i int
						want := preferred(&q, true)
						if want == nil {
							want = preferred(&q, false)
						}
						if kind == spec.AllToAllV {
							i = by.Choose(&q)
						} else if i = by.AtOnce(&q); i < 0 {
							i = by.AfterExchange(&q)
						}
						if i < 0 || algorithms[i].form != want {
							t.Fatalf("algorithm %d is chosen for %+v, want %s", i, q, want.name)
						}
						chosen[algorithms[i].Name] = true
					}
				}
			}
		}
	}
	for _, a := range Algorithms() {
		if !chosen[a.Name] && !strings.Contains(a.Name, "/hierarchical") { // which is for several hosts
			t.Errorf("%s is never chosen", a.Name)
		}
	}
}

// sizesAround are both ends of each class of sizes.
func sizesAround(kind spec.Collective) []int {
	all := []int{0}
	for n := 1; n <= 1<<30 && kind != spec.Barrier; n *= 2 {
		all = append(all, n, n+1)
	}
	return all
}

// BenchmarkChoice is what the choice adds to every operation.
func BenchmarkChoice(b *testing.B) {
	list := make([]*spec.Algorithm, len(algorithms))
	for i, a := range algorithms {
		list[i] = &a.Algorithm
	}
	by := choice.New(list, nil, model)
	q := spec.Request{
		Collective: spec.AllReduce, DType: weft.Float32, Count: 2, Bytes: 8, Ranks: 2, Slot: 1 << 19, Sent: 8,
	}
	b.Run("costs", func(b *testing.B) {
		for b.Loop() {
			by.AtOnce(&q)
		}
	})
	b.Run("preferences", func(b *testing.B) {
		for b.Loop() {
			preferred(&q, true)
		}
	})
}
