package verify

import (
	"fmt"

	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// Fused says where a plan leaves something else than the same program whose operations are apart: where fusion changed
// what it means. Of a plan that does not end it says nothing.
func Fused(fused, apart *spec.File) (all []Finding) {
	for _, shape := range program.Shapes(apart, fused) {
		x, y := newEngine(program.Of(fused, shape), model{}, false), newEngine(program.Of(apart, shape), model{}, false)
		if !x.run() || !y.run() {
			return nil
		}
		for r := range fused.Ranks {
			for _, buffer := range []spec.Buffer{spec.Input, spec.Output} {
				whole := x.p.Whole(r, buffer)
				got, want := &x.memories[whole.Memory], &y.memories[whole.Memory]
				for c := whole.From; c < whole.To; c++ {
					if got.value[c] == want.value[c] {
						continue
					}
					f := Finding{
						Class: Fusion, Warning: true, Text: fmt.Sprintf(
							"chunk %d of the %v of rank %d is not what the program's operations leave one by one; some that "+
								"became one mean something else together", (c-whole.From)/shape.Chunk, buffer, r),
						Events: []Event{{Site: spec.Site{Rank: r, Block: -1, Op: -1, Inner: -1}}},
					}
					if w := got.cells[c].write; w > 0 {
						f.Events[0] = x.event(w)
					}
					all = append(all, f)
				}
			}
		}
	}
	return all
}
