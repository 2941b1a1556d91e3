package gpu

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/launch"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/port"
)

func launchOf(tb testing.TB, p *plan.Plan) *launch.Plan {
	tb.Helper()
	f, err := p.Build()
	if err != nil {
		tb.Fatal(err)
	}
	l, err := launch.Of(f)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// operations are the kinds of a block's operations, with their flags above 8 bits, and how many sources those on data
// have.
func operations(p *program, block int) (kinds, sources []uint32) {
	word := func(at int) uint32 {
		return binary.LittleEndian.Uint32(p.code[block*p.stride+p.operands*entryBytes+4*at:])
	}
	for at := 4 * ((p.uses + 1) / 2); word(at)&0xFF != kindEnd; at += 4 * int(word(at+2)) {
		kinds = append(kinds, word(at)&0xFFFF)
		switch word(at) & 0xFF {
		case kindPairs, kindReceive, kindFold:
			sources = append(sources, word(at+7))
		}
	}
	return kinds, sources
}

func oneHost(int) int { return 0 }

func encoded(t *testing.T, p *plan.Plan, rank int) *program {
	t.Helper()
	e, err := encode(launchOf(t, p), rank, oneHost)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestNeighbours: what unpacks packets is one operation, and so is what goes to several ranks from one place.
func TestNeighbours(t *testing.T) {
	const send, uncut = flagSend<<8 | flagFirst<<8, flagUncut << 8
	kinds, sources := operations(encoded(t, plantest.TwoPhasePackets(4), 1), 0)
	want := []uint32{kindPairs | send | uncut, kindFold | uncut | flagEarly<<8, kindReceive | uncut}
	if !slices.Equal(kinds, want) || !slices.Equal(sources, []uint32{3, 4, 3}) {
		t.Errorf("%#x with %d sources, want %#x", kinds, sources, want)
	}
	kinds, sources = operations(encoded(t, plantest.OneShotPackets(4, plan.Sum), 1), 0)
	if want = want[:2]; !slices.Equal(kinds, want) || !slices.Equal(sources, []uint32{1, 4}) {
		t.Errorf("%#x with %d sources, want %#x", kinds, sources, want)
	}
}

// TestEarly: a plain source is read before the packets are there only if no other block writes it.
func TestEarly(t *testing.T) {
	for _, other := range []bool{false, true} {
		p := plan.New("early", plan.AllReduce(1, 1), plan.Options{Protocol: plan.LL})
		r := p.Rank(0)
		s := r.Scratch(2)
		a, b := r.Block(0), r.Block(1)
		a.ReducePackets(r.Output().Chunk(0, 1), r.Input().Chunk(0, 1), s.Chunk(0, 1))
		if other {
			b.Copy(r.Input().Chunk(0, 1), s.Chunk(1, 1))
		} else {
			b.Copy(s.Chunk(1, 1), r.Input().Chunk(0, 1))
		}
		kinds, _ := operations(encoded(t, p, 0), 0)
		if early := kinds[0]>>8&flagEarly != 0; early == other {
			t.Errorf("another block writes the source: %t, and it is read early: %t", other, early)
		}
	}
}

// TestFirst: a block may read before it knows the number of the launch what has one place in all launches, and nothing
// that follows another operation.
func TestFirst(t *testing.T) {
	for _, x := range []struct {
		name  string
		build func(b *plan.Block, r *plan.Rank, scratch plan.Buffer)
		want  []bool // of each pairs
	}{
		{"input", func(b *plan.Block, r *plan.Rank, s plan.Buffer) {
			b.Copy(s.Chunk(0, 1), r.Input().Chunk(0, 1))
			b.Copy(r.Output().Chunk(0, 1), s.Chunk(0, 1))
		}, []bool{true, false}},
		{"scratch", func(b *plan.Block, r *plan.Rank, s plan.Buffer) {
			b.Copy(r.Output().Chunk(0, 1), s.Chunk(0, 1))
		}, []bool{false}},
		{"behind a nop", func(b *plan.Block, r *plan.Rank, s plan.Buffer) {
			b.Nop()
			b.Copy(s.Chunk(0, 1), r.Input().Chunk(0, 1))
		}, []bool{false}},
	} {
		p := plan.New(x.name, plan.AllReduce(1, 1), plan.Options{DoubleScratch: true})
		r := p.Rank(0)
		x.build(r.Block(0), r, r.Scratch(1))
		var got []bool
		kinds, _ := operations(encoded(t, p, 0), 0)
		for _, k := range kinds {
			if k&0xFF == kindPairs {
				got = append(got, k>>8&flagFirst != 0)
			}
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%s: %v begin their block, want %v", x.name, got, x.want)
		}
	}
}

// TestEnds: a block has words for the channels by which it signals or waits, and none for those that packets take.
func TestEnds(t *testing.T) {
	if n := encoded(t, plantest.TwoPhasePackets(4), 1).uses; n != 0 {
		t.Errorf("%d ends of a plan that neither signals nor waits", n)
	}
	if n := encoded(t, plantest.TwoShot(4), 1).uses; n != 3 {
		t.Errorf("%d ends of a plan that signals three peers", n)
	}
}

// TestRelaxed: a relaxed signal behind stores to other ranks is none.
func TestRelaxed(t *testing.T) {
	p := plan.New("relaxed", plan.AllGather(2, 1), plan.Options{})
	c := plantest.Ends(p, 2, p.Memory)
	for r := range 2 {
		b := p.Rank(r).Block(0)
		b.RelaxedSignal(c[r][1-r])
		b.RelaxedWait(c[r][1-r])
		b.Put(c[r][1-r], p.Rank(1-r).Output().Chunk(r, 1), p.Rank(r).Input().Chunk(0, 1))
		b.RelaxedSignal(c[r][1-r])
	}
	kinds, _ := operations(encoded(t, p, 0), 0)
	var relaxed []bool
	for _, k := range kinds {
		if k&0xFF == kindSignal {
			relaxed = append(relaxed, k>>8&flagRelaxed != 0)
		}
	}
	if !slices.Equal(relaxed, []bool{true, false}) {
		t.Errorf("%v are relaxed, want the first alone", relaxed)
	}
}

// BenchmarkEncode is what a rank does when it loads a plan, beside verifying it.
func BenchmarkEncode(b *testing.B) {
	for _, x := range []struct {
		name string
		plan *plan.Plan
	}{
		{"8 ranks", plantest.TwoPhasePackets(8)},
		{"64 ranks", plantest.Hierarchical(8, 8, 1, 2)},
	} {
		l := launchOf(b, x.plan)
		b.Run(x.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := encode(l, 1, oneHost); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestSwitches: operations of a switch that has all ranks may take its multicast addresses, and no other may.
func TestSwitches(t *testing.T) {
	for _, whole := range []bool{true, false} {
		var got []uint32
		kinds, _ := operations(encoded(t, plantest.Switched(3, whole), 1), 0)
		for _, k := range kinds {
			if flags := k >> 8 & (flagFromAll | flagToAll); flags != 0 {
				got = append(got, flags)
			}
		}
		want := []uint32{flagFromAll | flagToAll}
		if !whole {
			want = []uint32{flagFromAll, flagToAll}
		}
		if !slices.Equal(got, want) {
			t.Errorf("whole %t: flags %v, want %v", whole, got, want)
		}
	}
	if encoded(t, plantest.TwoShot(3), 0).switches {
		t.Error("a plan without a switch")
	}
	for r := range 2 { // ranks make the same memory, whichever of them has the switch's operations
		if !encoded(t, plantest.SwitchedBroadcast(2), r).switches {
			t.Errorf("rank %d does not know of the switch", r)
		}
	}
}

// TestChannels: plans of an engine share channels, of which each rank has so many in all.
func TestChannels(t *testing.T) {
	const ranks, half = 20, port.MaxKernelChannels / 2
	from := func(first int) (all []stream) { // half a rank's channels, to ranks from the given one on
		for n := range half {
			all = append(all, stream{from: 1, to: first + n/mostStreams, number: 1 + 2*(n%mostStreams)})
		}
		return all
	}
	var all channels
	for _, first := range []int{2, 2, 10} { // the same streams twice, and others
		var err error
		if all, err = all.with("plan", from(first)); err != nil {
			t.Fatal(err)
		}
	}
	if len(all) != port.MaxKernelChannels {
		t.Errorf("%d channels", len(all))
	}
	one := []stream{{from: ranks - 1, to: 1, number: 2}}
	if _, err := all.with("plan", one); !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "rank 1,") {
		t.Error(err)
	}
	one[0].to = 2 // which has some left
	if more, err := all.with("plan", one); err != nil || len(more) != len(all)+1 {
		t.Error(len(more), err)
	}
}
