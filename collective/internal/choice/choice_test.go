package choice

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// drawAlgorithms draws algorithms of an all-reduce and a barrier, and a model that has measured some.
func drawAlgorithms(t *rapid.T) (all []*spec.Algorithm, m *spec.Model) {
	m = &spec.Model{}
	for i := range rapid.IntRange(1, 6).Draw(t, "algorithms") {
		a := &spec.Algorithm{
			Name: fmt.Sprintf("all-reduce/%d", i), Collective: spec.AllReduce,
			Needs:     rapid.SampledFrom([]spec.Windows{0, spec.Inputs, spec.Inputs | spec.Outputs}).Draw(t, "needs"),
			InPlace:   spec.Placement(rapid.IntRange(0, 2).Draw(t, "in place")),
			MinBytes:  rapid.SampledFrom([]int{0, 0, 100}).Draw(t, "least"),
			MaxBytes:  rapid.SampledFrom([]int{0, 0, 1 << 16}).Draw(t, "most"),
			WorldSize: rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "ranks"),
			Eager:     rapid.IntRange(0, 3).Draw(t, "eager") == 0,
		}
		if a.Eager {
			a.Needs = 0
		}
		base, slope := rapid.Float64Range(0, 9).Draw(t, "base"), rapid.Float64Range(0, 1).Draw(t, "slope")
		switch rapid.IntRange(0, 4).Draw(t, "cost") {
		case 0: // only by name
		case 1:
			m.Measured = append(m.Measured, spec.Measured{
				Algorithm: a.Name, Ranks: rapid.IntRange(1, 3).Draw(t, "from ranks"),
				Points: []spec.Point{{Bytes: 0, Micros: base}, {Bytes: 1 << 20, Micros: base + slope}},
			})
		default:
			a.Cost = func(q spec.Request, _ *spec.Model) float64 { return base + slope*float64(q.Sent)/1e4 }
		}
		all = append(all, a)
	}
	return all, m
}

func drawRequest(t *rapid.T, bytes int) spec.Request {
	return spec.Request{
		Collective: spec.AllReduce, DType: weft.Uint8, Count: bytes, Bytes: bytes, Sent: bytes,
		Ranks: rapid.IntRange(1, 5).Draw(t, "ranks"), Windows: spec.Windows(rapid.IntRange(0, 7).Draw(t, "windows")),
		Slot: 1 << 20,
	}
}

// chosen is what both steps of the host choose.
func (c *Chooser) chosen(q spec.Request) int {
	if i := c.AtOnce(&q); i >= 0 {
		return i
	}
	return c.AfterExchange(&q)
}

// TestPure: whatever was chosen before, a request gets the algorithm that a new chooser, of another rank,
// gives it; that one fits, and none that fits costs less.
func TestPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, m := drawAlgorithms(t)
		var forced []string
		if rapid.IntRange(0, 3).Draw(t, "forces") == 0 {
			forced = []string{all[0].Name}
		}
		c := New(all, forced, m)
		for range rapid.IntRange(1, 100).Draw(t, "requests") {
			q := drawRequest(t, rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 1<<30)).Draw(t, "bytes"))
			one, two := c.chosen(q), New(all, forced, m).chosen(q)
			if one != two || c.Choose(&q) != New(all, forced, m).Choose(&q) {
				t.Fatalf("%+v: algorithm %d on one rank, %d on another", q, one, two)
			}
			one = c.Choose(&q)
			best := math.Inf(1)
			typical := q.Typical()
			for _, a := range all {
				if us, known := a.Estimate(&typical, m); known && a.Fits(q) {
					best = min(best, us)
				}
			}
			if one < 0 {
				if !math.IsInf(best, 1) {
					t.Fatalf("%+v: nothing is chosen", q)
				}
				continue
			}
			us, _ := all[one].Estimate(&typical, m)
			if !all[one].Fits(q) || us > best && len(forced) == 0 {
				t.Fatalf("%+v: algorithm %d of %v us is chosen, and one of %v us fits", q, one, us, best)
			}
		}
	})
}

// TestClasses: sizes of one class that the same algorithms fit go the same way.
func TestClasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, m := drawAlgorithms(t)
		for _, a := range all {
			a.MinBytes, a.MaxBytes = 0, 0
		}
		c := New(all, nil, m)
		class := rapid.IntRange(1, 30).Draw(t, "class")
		size := rapid.IntRange(1<<(class-1)+1, 1<<class)
		q := drawRequest(t, size.Draw(t, "one"))
		other := q
		other.Sent = size.Draw(t, "other")
		other.Bytes, other.Count = other.Sent, other.Sent
		if one, two := c.chosen(q), c.chosen(other); one != two || q.Class() != class {
			t.Fatalf("algorithm %d for %d bytes, %d for %d", one, q.Sent, two, other.Sent)
		}
	})
}

// TestVariants: plain calls and others of one collective have rankings of their own.
func TestVariants(t *testing.T) {
	cost := func(plain, other float64) func(spec.Request, *spec.Model) float64 {
		return func(q spec.Request, _ *spec.Model) float64 {
			if q.Variant == spec.Plain {
				return plain
			}
			return other
		}
	}
	q := spec.Request{Collective: spec.AllReduce, DType: weft.Float32, Ranks: 2}
	q.SetSent(64)
	normed := q
	normed.Variant = spec.WithNorm
	c := New([]*spec.Algorithm{
		{Name: "a", Collective: spec.AllReduce, Cost: cost(1, 9)}, {Name: "b", Collective: spec.AllReduce, Cost: cost(2, 3)},
	}, nil, &spec.Model{})
	if order := c.ranked(&q); fmt.Sprint(order) != "[0 1]" {
		t.Errorf("plain calls: %v", order)
	}
	if order := c.ranked(&normed); fmt.Sprint(order) != "[1 0]" {
		t.Errorf("calls with a norm: %v", order)
	}
}

// TestForcedInPlace: an algorithm that is forced, and takes operands in place alone, keeps an eager one from running
// before ranks know whether they are.
func TestForcedInPlace(t *testing.T) {
	cheap := func(spec.Request, *spec.Model) float64 { return 1 }
	all := []*spec.Algorithm{
		{Name: "eager", Collective: spec.AllReduce, Eager: true, Cost: cheap},
		{Name: "placed", Collective: spec.AllReduce, InPlace: spec.OnlyInPlace},
		{Name: "large", Collective: spec.AllReduce, InPlace: spec.OnlyInPlace, MinBytes: 128},
	}
	q := spec.Request{Collective: spec.AllReduce, DType: weft.Float32, Ranks: 2}
	q.SetSent(64)
	for forced, want := range map[string]int{"": 0, "placed": -1, "large": 0, "eager": 0} {
		c := New(all, strings.Fields(forced), &spec.Model{})
		if i := c.AtOnce(&q); i != want || q.Windows != 0 {
			t.Errorf("forced %q: algorithm %d, want %d; windows %v", forced, i, want, q.Windows)
		}
	}
	placed := q
	placed.Windows = spec.InPlace
	if i := New(all, []string{"placed"}, &spec.Model{}).AfterExchange(&placed); i != 1 {
		t.Errorf("algorithm %d in place, want 1", i)
	}
}

// TestUnknown: who names an algorithm that is not there learns which are.
func TestUnknown(t *testing.T) {
	c := New([]*spec.Algorithm{
		{Name: "all-reduce/a", Collective: spec.AllReduce},
		{Name: "barrier/b", Collective: spec.Barrier},
		{Name: "all-reduce/c", Collective: spec.AllReduce},
	}, nil, &spec.Model{})
	want := `invalid argument: all-reduce: there is no algorithm "ring" here; ` +
		"name one of all-reduce/a, all-reduce/c, or none"
	if err := c.Unknown(spec.AllReduce, "ring", "here"); err.Error() != want {
		t.Error(err)
	}
	want = `invalid argument: gather: there is no algorithm "ring" here; leave the name out`
	if err := c.Unknown(spec.Gather, "ring", "here"); err.Error() != want {
		t.Error(err)
	}
}
