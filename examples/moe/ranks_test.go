package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"
)

// outcome is what a training leaves behind, as bits, in an order that does not depend on the number
// of ranks.
type outcome struct {
	losses  []uint32
	dense   []uint32
	experts []uint32 // layer by layer
}

func bits(v []float32) []uint32 {
	b := make([]uint32, len(v))
	for i, x := range v {
		b[i] = math.Float32bits(x)
	}
	return b
}

// train trains on n ranks, and fails the test unless these agree on what they all have.
func train(t *testing.T, n int, cfg Config) outcome { return trainOn(t, n, cfg, onHost) }

func trainOn(t *testing.T, n int, cfg Config, meet meeting) outcome {
	t.Helper()
	text, _ := puzzle(1 << 12)
	got := make([]outcome, n)
	all := modelsOn(t, n, cfg, meet, func(ctx context.Context, m *model) error {
		o := &got[m.comm.Rank()]
		for step := range cfg.Steps {
			loss, err := m.step(ctx, text, step)
			if err != nil {
				return err
			}
			if !(loss > 0 && loss < 20) {
				return fmt.Errorf("step %d: loss %v", step, loss)
			}
			o.losses = append(o.losses, math.Float32bits(loss))
		}
		o.dense = bits(m.dense.value)
		if want := cfg.Steps / cfg.Verify * cfg.Layers; m.verified != want {
			return fmt.Errorf("%d verified, want %d", m.verified, want)
		}
		return nil
	})
	for r, o := range got {
		if !slices.Equal(o.losses, got[0].losses) || !slices.Equal(o.dense, got[0].dense) {
			t.Errorf("rank %d of %d has other losses or parameters than rank 0", r, n)
		}
	}
	for i := range cfg.Layers {
		for _, m := range all {
			size := len(m.experts.value) / cfg.Layers
			got[0].experts = append(got[0].experts, bits(m.experts.value[i*size:(i+1)*size])...)
		}
	}
	return got[0]
}

// TestRanks trains on 1, 2 and 4 ranks: losses and parameters are the same bits.
func TestRanks(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
	}{
		{"sizes that no inner loop likes", func(*Config) {}},
		{"every expert for every token", func(c *Config) { c.Experts, c.TopK = 4, 4 }},
		{"most experts get nothing", func(c *Config) { c.Experts, c.TopK, c.Tokens = 64, 1, 2 }},
		// Gonum cuts matrices into blocks of 64, which it gives to several goroutines.
		{"several blocks", func(c *Config) { c.Hidden, c.Inner, c.Tokens, c.Steps, c.Verify = 132, 70, 130, 2, 2 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := small
			c.change(&cfg)
			one := train(t, 1, cfg)
			for _, ranks := range []int{2, 4} {
				got := train(t, ranks, cfg)
				for step, loss := range got.losses {
					if loss != one.losses[step] {
						t.Fatalf("%d ranks, step %d: loss %v, on one rank %v", ranks, step,
							math.Float32frombits(loss), math.Float32frombits(one.losses[step]))
					}
				}
				if !slices.Equal(got.dense, one.dense) {
					t.Errorf("%d ranks: the parameters that all have differ from those of one rank", ranks)
				}
				if !slices.Equal(got.experts, one.experts) {
					t.Errorf("%d ranks: the experts differ from those of one rank", ranks)
				}
			}
		})
	}
}

// TestSeed trains twice with a seed, and once with another.
func TestSeed(t *testing.T) {
	text, _ := puzzle(1 << 12)
	hash := func(seed uint64) uint64 {
		cfg, hashes := small, make([]uint64, 2)
		cfg.Seed = seed
		models(t, 2, cfg, func(ctx context.Context, m *model) (err error) {
			_, hashes[m.comm.Rank()], err = m.train(ctx, text, io.Discard)
			return err
		})
		if hashes[0] != hashes[1] {
			t.Errorf("seed %d: ranks with different hashes", seed)
		}
		return hashes[0]
	}
	first, again, other := hash(1), hash(1), hash(2)
	if first != again {
		t.Errorf("seed 1 gave %016x, then %016x", first, again)
	}
	if first == other {
		t.Errorf("seeds 1 and 2 both gave %016x", first)
	}
}
