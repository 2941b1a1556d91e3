package gpu

import (
	"testing"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// TestMemory compares what a rank of eight has for 128 tokens and 288 experts with the buffer that
// DeepEP's low-latency mode asks for, whose every expert has a slot for every token of every rank,
// twice, to send from and to receive in.
func TestMemory(t *testing.T) {
	const ranks, tokens, hidden, experts = 8, 128, 7168, 288
	const message = 2*hidden + 4*hidden/128 // of a combine, the larger one, with what goes before a row
	const theirs = 2 * (2*experts*tokens*message + (4*experts+127)/128*128)
	for _, c := range []struct {
		layout spec.Layout
		most   int // percent
		beside int // the same of what is not received rows, which the caller has with any library
	}{{spec.RankMajor, 6, 5}, {spec.ExpertMajor, 54, 5}} {
		s := spec.Spec{
			Experts: experts, TopK: 8, Hidden: hidden, MaxTokens: tokens, Layout: c.layout,
			Reduction: spec.Partial, Weighting: spec.Plain,
			Payload: spec.BF16, Output: weft.BFloat16, Live: 2,
		}
		s = s.Normalize()
		h := newHandle(&spec.Base{Spec: s, Geometry: spec.NewGeometry(s, ranks)}, spec.Choose(s, ranks))
		for _, m := range h.movers { // as if there were room for all
			if d := m.want(); d != nil {
				d.moving = max(d.moving, h.grids[ofCombine].moving)
				h.counts += d.blocks()
				h.grids[d.of] = d.grid
			}
		}
		h.layout()
		rows := s.Live * int(h.received.block.Bytes)
		ours := int(h.window.Size()+h.local.Size()) + rows + (s.Live+1)*h.routing.total
		t.Logf("%v: %d MB, %d of them received rows, %.1f%% of %d MB", c.layout, ours/1e6,
			rows/1e6, 100*float64(ours)/theirs, theirs/1000000)
		if 100*ours > c.most*theirs {
			t.Errorf("%v takes %d bytes, more than %d%% of %d", c.layout, ours, c.most, theirs)
		}
		if beside := ours - rows; 100*beside > c.beside*theirs {
			t.Errorf("%v takes %d bytes beside received rows, more than %d%% of %d", c.layout, beside, c.beside, theirs)
		}
	}
}
