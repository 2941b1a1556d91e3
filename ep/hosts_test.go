package ep_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/eptest"
)

// TestHosts runs the conformance suite unchanged on ranks of several hosts, on networks of each class.
func TestHosts(t *testing.T) {
	cases, layouts := 10, []string{"aabb", "aaaabbbb", "aabbcc", "abcd", "ababc"}
	if os.Getenv("WEFT_TEST_ALL") != "" {
		cases = 240
	}
	if testing.Short() {
		layouts = layouts[:1]
	}
	for i, names := range layouts {
		class := fabrictest.Classes()[i%len(fabrictest.Classes())]
		t.Run(fmt.Sprint(names, " on ", class.Name), func(t *testing.T) {
			eptest.RunSome(t, onHosts(t, names, class), cases)
		})
	}
}

// onHosts makes ranks on hosts of the given names, which a network connects.
func onHosts(t *testing.T, names string, class fabrictest.Class) *eptest.Host {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	network := fabrictest.New(class, seed)
	e := eptest.NewHosts(names, weft.WithFabric(network.Open))
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := network.Check(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// TestHostBytes compares the bytes that each operation sends to other hosts with the formulas of the package's
// documentation.
func TestHostBytes(t *testing.T) {
	layouts := []string{"aabbb", "abcd", "aabbcc", "aabb"}
	if os.Getenv("WEFT_TEST_ALL") == "" {
		layouts = layouts[:2]
	}
	if testing.Short() { // the formulas have nothing that runs at once; TestHosts has
		layouts = layouts[:1]
	}
	for i, names := range layouts {
		e := onHosts(t, names, fabrictest.Classes()[i%len(fabrictest.Classes())])
		n := len(names)
		for k, s := range []ep.Spec{
			{Layout: ep.ExpertMajor},
			{Layout: ep.ExpertPacked, Reduction: ep.Partial, Payload: ep.FP8},
			{Layout: ep.ExpertMajor, Reduction: ep.PartialByHost, Payload: ep.FP8UE8M0},
			{Layout: ep.ExpertPacked, Reduction: ep.PartialByHost},
			{Layout: ep.ExpertPacked, Reduction: ep.PartialByHostFP32},
			{Layout: ep.RankMajor, Reduction: ep.Partial, Weighting: ep.Plain},
			{Layout: ep.TokenMajor, Reduction: ep.PartialByHost, Weighting: ep.Plain},
		} {
			if testing.Short() && k%3 > 0 {
				continue
			}
			s.Experts, s.TopK, s.Hidden, s.MaxTokens = 3*n, 4, 512, 150
			t.Run(fmt.Sprint(names, " ", s), func(t *testing.T) { checkBytes(t, e, e.Hosts(), s) })
		}
	}
}

func checkBytes(t *testing.T, e eptest.Engine, hosts []int, s ep.Spec) {
	ctx, n := testContext(t), len(hosts)
	c := eptest.Fixed(s, n, 8) // a seed with which both gradients bring those of weights
	c.Hosts = hosts
	batch := c.Batch()
	if err := e.Ranks(n, func(comm *weft.Comm) error {
		h, err := ep.NewHandle(ctx, comm, s)
		if err != nil {
			return err
		}
		defer h.Close()
		steps, err := batch.Steps(e, comm, h)
		if err != nil {
			return err
		}
		defer steps.Free()
		want := bytesOf(c, comm.Rank())
		for _, step := range []struct {
			name string
			do   func() error
			want int
		}{
			{"prepare", func() error { return steps.Prepare(ctx) }, 0},
			{"dispatch", func() error { return steps.Dispatch(ctx, 0) }, want.there},
			{"combine", func() error { return steps.Combine(ctx) }, want.back},
			{"dispatch backward", func() error { return steps.DispatchBackward(ctx) }, want.back + want.numbers},
			{"combine backward", func() error { return steps.CombineBackward(ctx) }, want.gradients},
		} {
			before := ep.Shipped(h)
			if err := step.do(); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
			if got := int(ep.Shipped(h) - before); got != step.want {
				return fmt.Errorf("%s sends %d bytes to other hosts, want %d", step.name, got, step.want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// fabricBytes are those that a rank sends to other hosts.
type fabricBytes struct{ there, back, numbers, gradients int }

// bytesOf counts what a rank sends in a case in which nothing is dropped.
func bytesOf(c eptest.Case, rank int) (b fabricBytes) {
	s := c.Spec.Normalize()
	local := s.Experts / c.Ranks
	host := func(e int32) int { return c.Hosts[int(e)/local] }
	var sent int // tokens, once for each other host
	for src, ids := range c.TopK {
		far := c.Hosts[src] != c.Hosts[rank]
		for t := 0; t < len(ids); t += s.TopK {
			var hosts, ranks []int
			selections := 0
			for _, e := range ids[t : t+s.TopK] {
				if e < 0 {
					continue
				}
				if !slices.Contains(hosts, host(e)) {
					hosts = append(hosts, host(e))
				}
				if r := int(e) / local; r == rank {
					ranks = []int{r}
					selections++
				}
			}
			if src == rank {
				for _, h := range hosts {
					if h != c.Hosts[rank] {
						sent++
					}
				}
			}
			if !far {
				continue
			}
			b.numbers += 4 * selections
			switch {
			case s.Reduction.ByHost():
				if slices.Contains(hosts, c.Hosts[rank]) && sumsFor(c, c.Hosts[rank], src) == rank {
					b.back += s.SumSize()
				}
			case s.Reduction == ep.Exact:
				b.back += selections * s.OutputSize()
			default:
				b.back += len(ranks) * s.OutputSize()
			}
		}
	}
	b.there = sent * (s.RowSize() + s.ScaleSize())
	b.gradients = sent*s.OutputSize() + b.numbers
	if s.Weighting == ep.Plain {
		b.gradients = sent * s.OutputSize()
	}
	return b
}

// sumsFor is the rank of a host that sends a home on another one its sums: that with the home's number among the ranks
// of its host, in turns.
func sumsFor(c eptest.Case, here, home int) int {
	number := 0
	for r := range home {
		if c.Hosts[r] == c.Hosts[home] {
			number++
		}
	}
	var ranks []int
	for r := range c.Ranks {
		if c.Hosts[r] == here {
			ranks = append(ranks, r)
		}
	}
	return ranks[number%len(ranks)]
}

// TestHostCountWaits has a rank that others of two hosts wait for.
func TestHostCountWaits(t *testing.T) {
	const ranks, late = 3, 1
	ctx, e, s := testContext(t), onHosts(t, "aab", fabrictest.TCP()), sized(exactRows, ranks)
	b := evenly(s, ranks, 1, min(s.MaxTokens, 20)).Batch()
	if err := e.Ranks(ranks, func(c *weft.Comm) error {
		h, err := ep.NewHandle(ctx, c, s)
		if err != nil {
			return err
		}
		return errors.Join(lateness(ctx, e, c, h, b, late), h.Close())
	}); err != nil {
		t.Fatal(err)
	}
}
