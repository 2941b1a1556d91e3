package weft_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestManyRanks has more ranks than a word has bits join, gather, leave some of them out, sum and
// exchange. "make test-all" does it with as many as there can be.
func TestManyRanks(t *testing.T) {
	ranks, deadline := 80, 30*time.Second
	if emulate.Everything() {
		ranks, deadline = weft.MaxRanks, 5*time.Minute
	}
	start := time.Now()
	done := func(what string) {
		t.Logf("%d ranks: %s took %v", ranks, what, time.Since(start))
		start = time.Now()
	}
	all := func(group []*weft.Comm, body func(c *weft.Comm) error) {
		t.Helper()
		if err := ranktest.Each(group, body); err != nil {
			t.Fatal(err)
		}
	}
	group := join(t, ranks, weft.WithDeadline(deadline))
	done("join")
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	all(group, func(c *weft.Comm) error {
		notes, err := c.Operations().GatherNotes(ctx, "test", fmt.Append(nil, "rank ", c.Rank()))
		if err != nil {
			return err
		}
		for r, note := range notes {
			if want := fmt.Sprint("rank ", r); string(note) != want {
				return fmt.Errorf("rank %d says %q", r, note)
			}
		}
		return nil
	})
	done("a gather")

	spec := ep.Spec{
		Experts: ranks, TopK: 3, Hidden: 8, MaxTokens: 2, Payload: ep.FP32,
		Layout: ep.TokenMajor, Reduction: ep.Partial, Weighting: ep.Plain,
	}
	engine := eptest.NewHost()
	out := weft.RankSetOf(0, 63, 64, ranks-1)
	var living []*weft.Comm
	for _, c := range group {
		if !out.Has(c.Rank()) {
			living = append(living, c)
		}
	}
	masked := slices.Collect(out.All())
	all(living, func(c *weft.Comm) error {
		if err := c.SetMask(ctx, masked...); err != nil {
			return err
		}
		if c.Mask() != out {
			return fmt.Errorf("mask %v", c.Mask())
		}
		return nil
	})
	done("a mask")
	batch := eptest.Full(spec, ranks, 1).Batch(masked...)
	total := 0
	for _, c := range living {
		total += c.Rank()
	}
	all(living, func(c *weft.Comm) error {
		g, err := collective.New(ctx, c, collective.Options{Scratch: 1 << 10})
		if err != nil {
			return err
		}
		sum := []float32{float32(c.Rank())}
		if err := g.AllReduce(ctx, nil, weft.TensorOf(sum), weft.TensorOf(sum), weft.Sum); err != nil {
			return err
		}
		if sum[0] != float32(total) {
			return fmt.Errorf("the sum is %v, want %d", sum, total)
		}
		return g.Close()
	})
	done("an all-reduce")
	all(living, func(c *weft.Comm) error { return batch.Do(engine, c) })
	done("an exchange")
	all(group, func(c *weft.Comm) error { return c.SetMask(ctx) })
	done("an empty mask")
}
