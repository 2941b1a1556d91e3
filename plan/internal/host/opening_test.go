package host

import (
	"fmt"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/plantest"
)

func TestOpenings(t *testing.T) {
	for _, c := range []struct {
		name string
		of   *plan.Plan
		want string
	}{
		{"handshake", plantest.Pulled(3), "[[3] [3] [3]]"},
		{"no handshake", plantest.OneShotPackets(2, plan.Sum), "[[0] [0]]"},
		{"handshake that ends behind data", late(), "[[2] [2]]"},
		{"loop", plantest.Pipelined(2), "[[0 0] [0 0]]"},
	} {
		f, err := c.of.Build()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(openings(f)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestClosings(t *testing.T) {
	for _, c := range []struct {
		name string
		of   *plan.Plan
		want string
	}{
		{"handshake", plantest.Pulled(3), "[[3] [3] [3]]"},
		{"handshake of the second block", plantest.TwoShotApart(3), "[[0 2] [0 2] [0 2]]"},
		{"neighbours alone", plantest.Ring(4), "[[0] [0] [0] [0]]"},
		{"loop", plantest.Pipelined(2), "[[0 0] [0 0]]"},
		{"two blocks signal through one channel", shared(), "[[0 0] [0 0]]"},
	} {
		f, err := c.of.Build()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(closings(f, openings(f))); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// shared has blocks that use the same sides of a channel, one in its middle and one at its end.
func shared() *plan.Plan {
	p := plan.New("shared", plan.AllGather(2, 2), plan.Options{Explicit: true})
	for r := range 2 {
		rank, c := p.Rank(r), p.Memory(r, 1-r)
		in, out := rank.Input(), rank.Output()
		for k := range 2 {
			b := rank.Block(k)
			b.Copy(out.Chunk(2*r+k, 1), in.Chunk(k, 1))
			b.Signal(c)
			b.Wait(c)
			if k == 0 {
				b.Copy(out.Chunk(2*r, 1), in.Chunk(0, 1))
			}
		}
	}
	return p
}

// late has two handshakes, of which the second ends behind a copy.
func late() *plan.Plan {
	p := plan.New("late", plan.AllGather(2, 1), plan.Options{Explicit: true})
	for r := range 2 {
		b, rank := p.Rank(r).Block(0), p.Rank(r)
		first, second := p.Memory(r, 1-r), p.Memory(r, 1-r)
		b.Signal(first)
		b.Wait(first)
		b.Signal(second)
		b.Copy(rank.Output().Chunk(r, 1), rank.Input().Chunk(0, 1))
		b.Wait(second)
	}
	return p
}
