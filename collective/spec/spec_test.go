package spec

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/internal/rankset"
)

// TestFingerprints: equal words are equal calls.
func TestFingerprints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) Call {
			c := Call{
				Collective: Collective(rapid.IntRange(0, int(Collectives)-1).Draw(t, name)),
				DType:      weft.DType(rapid.IntRange(0, int(weft.Bool)).Draw(t, name)),
				Count:      rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(0, maxElems)).Draw(t, name),
			}
			if c.Collective.Reduces() {
				c.Op = weft.Op(rapid.IntRange(0, int(weft.PreMulSum)).Draw(t, name))
			}
			if c.Collective.Rooted() {
				c.Root = rapid.IntRange(0, weft.MaxRanks-1).Draw(t, name)
			}
			return c
		}
		a, b := draw("a"), draw("b")
		same := a.Collective == b.Collective && a.DType == b.DType && a.Count == b.Count && a.Op == b.Op &&
			a.Root == b.Root
		if f, g := a.Fingerprint(), b.Fingerprint(); (f == g) != same || uint64(f)&host.RefusedCall != 0 {
			t.Fatalf("%v: %x, %v: %x", f, uint64(f), g, uint64(g))
		}
	})
}

// FuzzCall compares calls with what a peer may say: errors can be printed.
func FuzzCall(f *testing.F) {
	f.Add(uint64(0), uint64(0))
	f.Add(uint64(AllReduce)<<kindShift|uint64(7)<<opShift|uint64(31)<<dtypeShift|maxElems, uint64(math.MaxUint64))
	f.Add(uint64(Broadcast)<<kindShift|uint64(1023)<<rootShift, uint64(15)<<kindShift)
	f.Fuzz(func(t *testing.T, own, peer uint64) {
		calls := rankset.CampsOf(slices.All([]uint64{own, peer}))
		words := Differ(calls)
		if calls.Differ() && (!strings.Contains(words, "rank 0") || !strings.Contains(words, "rank 1")) ||
			len(words) > host.RefusalBytes {
			t.Fatalf("%#x against %#x: %q", own, peer, words)
		}
	})
}

// TestTransfersDiffer: the words of messages that differ are those of both sides.
func TestTransfersDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) Transfer {
			return Transfer{
				Tensor: weft.Tensor{
					DType: weft.DType(rapid.IntRange(0, int(weft.Bool)).Draw(t, name)),
					Shape: []int{rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(0, maxElems)).Draw(t, name)},
				},
			}
		}
		a, b := draw("a"), draw("b")
		b.Receive = true
		same := a.Tensor.DType == b.Tensor.DType && a.Tensor.Elems() == b.Tensor.Elems()
		f, g := a.Fingerprint(), b.Fingerprint()
		if (f == g) != same || uint64(f)&host.RefusedCall != 0 {
			t.Fatalf("%v: %x, %v: %x", a, uint64(f), b, uint64(g))
		}
		sends := fmt.Sprintf("sends %d %v", a.Tensor.Elems(), a.Tensor.DType)
		receives := fmt.Sprintf("receives %d %v", b.Tensor.Elems(), b.Tensor.DType)
		if got, want := a.Differs(uint64(g)), "it "+receives+", this rank "+sends; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		if got, want := b.Differs(uint64(f)), "it "+sends+", this rank "+receives; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

// TestMisfits: what does not fit says why, and what fits says nothing.
func TestMisfits(t *testing.T) {
	q := Request{Collective: AllGather, DType: weft.Float32, Bytes: 64, Ranks: 4, Windows: Inputs}
	for _, tc := range []struct {
		a    Algorithm
		want string
	}{
		{Algorithm{}, ""},
		{Algorithm{Collective: Gather}, "another collective"},
		{Algorithm{Variant: WithWords}, "norm or words"},
		{Algorithm{Needs: Inputs | Outputs}, "needs outputs in windows"},
		{Algorithm{MinBytes: 65}, "more bytes"},
		{Algorithm{MaxBytes: 63}, "fewer bytes"},
		{Algorithm{InPlace: OnlyInPlace}, "outputs that are inputs alone"},
		{Algorithm{WorldSize: 5}, "number of ranks"},
		{Algorithm{Supports: func(Request) bool { return false }}, "refuses the call"},
		{Algorithm{Supports: func(Request) bool { return false }, Demands: "needs rain"}, "needs rain"},
		{Algorithm{Needs: Inputs, MinBytes: 64, MaxBytes: 64, InPlace: OnlyApart, WorldSize: 4}, ""},
	} {
		a := tc.a
		if a.Name = "mine"; a.Collective == Barrier {
			a.Collective = AllGather
		}
		got := a.misfit(&q)
		if !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") || a.Fits(q) != (got == "") {
			t.Errorf("%+v: %q, want %q", a, got, tc.want)
		}
		if err := a.Misfit(q); tc.want != "" && (!strings.Contains(err.Error(), "mine "+got) ||
			!strings.Contains(err.Error(), "64 bytes of fp32 on 4 ranks, windows: inputs; name another")) {
			t.Error(err)
		}
	}
	q.Windows |= InPlace
	a := Algorithm{Collective: AllGather, InPlace: OnlyApart}
	if a.Fits(q) || !strings.Contains(a.misfit(&q), "no outputs") {
		t.Errorf("in place: %q", a.misfit(&q))
	}
}
