package lowering_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/lowering"
	"github.com/weftgo/weft/plan/spec"
)

// program is a program of two ranks, where block 0 of rank 0 does what a seed says.
func program(seed uint64) *lowering.Program {
	r := rand.New(rand.NewPCG(seed, 5))
	buffers := []string{"i", "o", "s"}
	place := func(rank int, buffer string, size int) lowering.Chunk {
		return lowering.Chunk{Rank: rank, Buffer: buffer, Index: r.IntN(5 - size), Size: size}
	}
	local := func(size int) lowering.Chunk { return place(0, buffers[r.IntN(3)], size) }
	remote := func(size int) lowering.Chunk { return place(1, buffers[r.IntN(3)], size) }
	slot := 8 // each is written once, beyond the data
	var ops []lowering.Op
	for len(ops) < 2+r.IntN(8) {
		size := 1 + r.IntN(2)
		o := lowering.Op{Src: []lowering.Chunk{local(size)}, Dst: []lowering.Chunk{local(size)}}
		switch r.IntN(9) {
		case 0:
			o.Kind = "copy"
		case 1, 2:
			o.Kind, o.Reduce = "re", "sum"
			o.Src = append(o.Src, local(size))
			if r.IntN(2) == 0 {
				o.Dst[0] = o.Src[0]
			}
		case 3:
			o.Kind, o.Reduce, o.Via, o.Channels = "rre", "sum", "memory", []int{0}
			o.Src = append(o.Src, remote(size))
			if r.IntN(2) == 0 {
				o.Dst[0] = o.Src[0]
			}
		case 4, 5:
			o.Kind, o.Via, o.Channels = "put", "memory", []int{r.IntN(2)}
			o.Dst[0] = remote(size)
		case 6:
			o.Kind, o.Via, o.Channels = "get", "memory", []int{r.IntN(2)}
			o.Src[0] = remote(size)
		case 7: // packets of what is somewhere, folded into something
			o.Src[0].Size, o.Dst[0].Size, size = 1, 1, 1
			at := lowering.Chunk{Buffer: "s", Index: slot, Size: 1}
			slot++
			ops = append(ops, lowering.Op{Kind: "cpkt", Src: []lowering.Chunk{local(1)}, Dst: []lowering.Chunk{at}})
			o.Kind, o.Reduce, o.Src = "repkt", "sum", append(o.Src, at)
			if r.IntN(2) == 0 {
				o.Dst[0] = o.Src[0]
			}
		case 8:
			o.Kind = "nop"
			o.Src, o.Dst = nil, nil
		}
		// What one operation writes and reads at once, in other places than its own, no order mends.
		if !clashes(o) {
			ops = append(ops, o)
		}
		// The same again, of another source.
		if o.Kind == "re" && r.IntN(2) == 0 && !clashes(o) {
			again := o
			again.Src = []lowering.Chunk{o.Src[0], local(size)}
			if !clashes(again) {
				ops = append(ops, again)
			}
		}
		// A chain: what comes next uses what this one made.
		if last := len(ops) - 1; r.IntN(3) == 0 && last >= 0 && len(ops[last].Dst) == 1 && ops[last].Dst[0].Rank == 0 &&
			ops[last].Kind != "cpkt" {
			from := ops[last].Dst[0]
			ops = append(ops, lowering.Op{
				Kind: "put", Via: "memory", Channels: []int{0}, Src: []lowering.Chunk{from},
				Dst: []lowering.Chunk{remote(from.Size)},
			})
		}
	}
	peer := lowering.Rank{Input: 4, Output: 4, Scratch: 24}
	me := peer
	me.Channels, me.Ops = []lowering.Channel{{Type: "memory", Peer: 1}, {Type: "memory", Peer: 1}}, ops
	return &lowering.Program{
		Name: "n", Collective: "test", Protocol: spec.LL, Threads: 64, Alignment: 16, MaxBytes: spec.DefaultMaxBytes,
		Instances: 1, Sync: true, Sound: true, Ranks: []lowering.Rank{me, peer},
	}
}

// clashes says whether an operation writes a range that it also reads, unless it is the same.
func clashes(o lowering.Op) bool {
	for _, d := range o.Dst {
		for _, s := range o.Src {
			if d.Rank == s.Rank && d.Buffer == s.Buffer && d.Index != s.Index && d.Index < s.Index+s.Size &&
				s.Index < d.Index+d.Size {
				return true
			}
		}
	}
	return false
}

// TestSound: by the sound rules a program means what its operations say one after the other, and no barrier of a
// block's threads is missing. The rules of MSCCL++ keep neither: the same programs show that.
func TestSound(t *testing.T) {
	otherwise, races := 0, 0
	for seed := range uint64(400) {
		p := program(seed)
		apart := lower(t, p, seed)
		p.Fuse = true
		fused := lower(t, p, seed)
		if where := plan.Same(fused, apart); where != "" {
			t.Fatalf("seed %d: fusion changes %s\n%s\n%s", seed, where, fused.Compact(), apart.Compact())
		}
		if n := missing(fused) + missing(apart); n > 0 {
			t.Fatalf("seed %d: %d barriers are missing\n%s", seed, n, fused.Compact())
		}
		if n := changed(t, p); n > 0 {
			t.Fatalf("seed %d: %d findings say that fusion changes something\n%s", seed, n, fused.Compact())
		}
		p.Sound = false
		theirs := lower(t, p, seed)
		where, found := plan.Same(theirs, apart), changed(t, p)
		if (where != "") != (found > 0) {
			t.Fatalf("seed %d: fusion changes %q, and %d findings say so\n%s", seed, where, found, theirs.Compact())
		}
		if where != "" {
			otherwise++
		}
		if missing(theirs) > 0 {
			races++
		}
	}
	t.Logf("by MSCCL++'s rules %d programs mean something else, and %d lack a barrier", otherwise, races)
	if otherwise == 0 || races == 0 {
		t.Error("the programs show nothing")
	}
}

func lower(t *testing.T, p *lowering.Program, seed uint64) *spec.File {
	t.Helper()
	f, err := p.File()
	if err == nil {
		err = f.Check()
	}
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return f
}

// missing is how many findings say that a block's threads are not ordered.
func missing(f *spec.File) (n int) {
	for _, finding := range plan.Verify(f).Findings {
		if finding.Class == plan.RaceInBlock {
			n++
		}
	}
	return n
}

// changed is how many findings say that fusion changed what the program means.
func changed(t *testing.T, p *lowering.Program) (n int) {
	t.Helper()
	v, err := plan.VerifyProgram(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range v.Findings {
		if finding.Class == plan.Fusion {
			if !finding.Warning || len(finding.Events) != 1 && finding.More == 0 {
				t.Fatal(finding)
			}
			n++
		}
	}
	return n
}
