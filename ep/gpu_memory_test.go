package ep

import (
	"testing"

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
		layout Layout
		most   int // percent
		beside int // the same of what is not received rows, which the caller has with any library
	}{{RankMajor, 6, 5}, {ExpertMajor, 54, 5}} {
		s := Spec{
			Experts: experts, TopK: 8, Hidden: hidden, MaxTokens: tokens, Layout: c.layout,
			Reduction: Partial, Weighting: Plain,
			Payload: BF16, Output: weft.BFloat16, Live: 2,
		}
		g, tuned := newGeometry(s, ranks), tune(s, ranks)
		h := gpu{Base: &Base{spec: s, geometry: g}}
		b := blocks{
			dispatch: tuned.dispatchBlocks, dispatchClerks: 2, combine: tuned.combineBlocks,
			combineClerks: 1, gradients: tuned.combineBlocks,
		}
		window, own := newRegions(&g, s, tuned, b), newLocals(&g, false, b)
		ours := int(window.Size()+own.Size()) + s.Live*int(window.block.bytes) + (s.Live+1)*h.routingBytes()
		t.Logf("%v: %d MB, %d of them received rows, %.1f%% of %d MB", c.layout, ours/1e6,
			s.Live*int(window.block.bytes)/1e6, 100*float64(ours)/theirs, theirs/1000000)
		if 100*ours > c.most*theirs {
			t.Errorf("%v takes %d bytes, more than %d%% of %d", c.layout, ours, c.most, theirs)
		}
		if beside := ours - s.Live*int(window.block.bytes); 100*beside > c.beside*theirs {
			t.Errorf("%v takes %d bytes beside received rows, more than %d%% of %d", c.layout, beside, c.beside, theirs)
		}
	}
}
