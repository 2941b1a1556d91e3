package gpu

import (
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// TestFits: what algorithms need of operands and of GPUs stands in their fields, so that Fits is the one to ask, and
// Supports alone says the rest.
func TestFits(t *testing.T) {
	const everywhere = spec.Inputs | spec.Outputs
	for _, tc := range []struct {
		name    string
		windows spec.Windows
		able    spec.Abilities
		op      weft.Op
		want    bool
	}{
		{"all-reduce/pull-push", everywhere, spec.BulkCopies, weft.Sum, true},
		{"all-reduce/pull-push", everywhere, spec.Lines, weft.Sum, false},
		{"all-reduce/pull-push", spec.Inputs, spec.BulkCopies, weft.Sum, false},
		{"all-reduce/push-push", 0, 0, weft.Sum, true},
		{"all-to-all/few-sm", everywhere, spec.BulkCopies, weft.Sum, true},
		{"all-to-all/few-sm", everywhere | spec.InPlace, spec.BulkCopies, weft.Sum, false},
		{"all-to-all/few-sm", everywhere, 0, weft.Sum, false},
		{"all-to-all/engine", everywhere | spec.InPlace, 0, weft.Sum, false},
		{"all-gather/engine", everywhere | spec.InPlace, 0, weft.Sum, true},
		{"all-to-all/lines", spec.InPlace, spec.Lines, weft.Sum, true},
		{relaxedRing, spec.Outputs, 0, weft.Sum, true},
		{relaxedRing, spec.Outputs, 0, weft.Avg, false},
		{relaxedRing, spec.Inputs, 0, weft.Sum, false},
	} {
		for _, a := range algorithms {
			q := spec.Request{
				Collective: a.Collective, DType: weft.Int32, Op: tc.op, Ranks: 4, Windows: tc.windows, Able: tc.able,
			}
			if a.Name != tc.name {
				continue
			}
			if got := a.Fits(q); got != tc.want {
				t.Errorf("%s fits %+v: %t", a.Name, q, got)
			}
			other := q
			other.Windows = (everywhere | spec.InPlace) &^ tc.windows
			if a.Supports != nil && a.Supports(q) != a.Supports(other) {
				t.Errorf("%s: Supports looks at windows", a.Name)
			}
		}
	}
}

// TestFitsWhole: what goes through whole operands leaves longer ones to algorithms that cut them.
func TestFitsWhole(t *testing.T) {
	for _, a := range algorithms {
		if a.Needs == 0 {
			continue
		}
		q := spec.Request{
			Collective: a.Collective, Op: weft.Sum, DType: weft.BFloat16, Ranks: 4, Bytes: mostWhole,
			Windows: a.Needs, Able: spec.BulkCopies | spec.Lines,
		}
		if !a.Fits(q) {
			t.Errorf("%s does not fit %d bytes", a.Name, q.Bytes)
		}
		if q.Bytes++; a.Fits(q) {
			t.Errorf("%s fits %d bytes", a.Name, q.Bytes)
		}
	}
}
