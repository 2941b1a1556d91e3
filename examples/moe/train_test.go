package main

import (
	"context"
	"io"
	"math"
	"testing"
)

// learner is a model that learns the puzzle in a few seconds.
var learner = Config{
	Context: 2, Hidden: 16, Inner: 32, Layers: 2, Experts: 4, TopK: 2, Tokens: 32, Steps: 200,
	Rate: 3e-2, Seed: 1,
}

// learn trains on a text with n ranks, which must end at the same loss.
func learn(t *testing.T, n int, text []byte, cfg Config, meet meeting, prepare func(m *model)) float64 {
	t.Helper()
	losses := make([]float64, n)
	modelsOn(t, len(losses), cfg, meet, func(ctx context.Context, m *model) (err error) {
		prepare(m)
		losses[m.comm.Rank()], _, err = m.train(ctx, text, io.Discard)
		return err
	})
	for _, loss := range losses {
		if loss != losses[0] {
			t.Errorf("losses %v", losses)
		}
	}
	return losses[0]
}

// TestLearns trains on a text of known entropy, on two ranks. The loss must come close to that
// entropy, which is far below the unigram entropy; and it must not go below it, as that of a model
// that sees what it is to predict would. A model whose experts do not learn shows that it takes
// them.
func TestLearns(t *testing.T) {
	text, least := puzzle(1 << 16)
	unigram, with := entropy(text), learn(t, 2, text, learner, onHost, func(*model) {})
	t.Logf("loss %.4f; unigram entropy %.4f, least %.4f", with, unigram, least)
	if !(with < least+0.15 && with > least-0.05) || unigram < least+1 {
		t.Errorf("loss %.4f, want a little more than %.4f; unigram entropy %.4f", with, least, unigram)
	}
	if testing.Short() {
		return
	}
	without := learn(t, 2, text, learner, onHost, func(m *model) {
		clear(m.experts.value)
		m.experts = newParameters(nil)
	})
	t.Logf("loss %.4f without experts", without)
	if without < with+0.3 {
		t.Errorf("loss %.4f without experts, %.4f with them", without, with)
	}
}

// TestUpdate compares Adam's first steps with numbers worked out by hand: with bias correction, the
// first step against any gradient is the rate.
func TestUpdate(t *testing.T) {
	cfg := Config{Steps: 100, Rate: 0.5}
	p := newParameters([]float32{3, -1e-3, 0})
	p.update(cfg, 0)
	rate := cfg.Rate / 20
	for i, want := range []float64{-rate, rate, 0} {
		if got := float64(p.value[i]); math.Abs(got-want) > 1e-4*rate {
			t.Errorf("number %d is %v after the first step, want %v", i, got, want)
		}
	}
	// Then the gradient turns round: mean = 0.9*0.3 - 0.1*3 = -0.03, corrected by 1-0.81; the
	// corrected mean square stays 9.
	p.grad[0] = -3
	p.update(cfg, 1)
	rate = cfg.Rate * 2 / 20 * 0.99
	if got, want := float64(p.value[0]), -cfg.Rate/20-rate*(-0.03/0.19)/3; math.Abs(got-want) > 1e-5 {
		t.Errorf("number 0 is %v after the second step, want %v", got, want)
	}
	// The last step is next to nothing.
	before := p.value[0]
	p.update(cfg, 99)
	if d := math.Abs(float64(p.value[0] - before)); d == 0 || d > cfg.Rate/100 {
		t.Errorf("the last step is %v", d)
	}
}
