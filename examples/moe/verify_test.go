package main

import (
	"context"
	"io"
	"math"
	"strings"
	"testing"

	"gonum.org/v1/gonum/blas/blas32"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestVerify tampers with a forward pass on the last of two ranks. Both hear of it, and whose rows
// are wrong.
func TestVerify(t *testing.T) {
	cfg := small
	text, _ := puzzle(1 << 12)
	for _, c := range []struct {
		name   string
		tamper func(m *model)
		want   string // the rows that are wrong, by rank
	}{
		{"nothing", func(*model) {}, ""},
		{"a row that came back", func(m *model) { row(m.layers[1].out, 4)[7] += 0.01 }, "[0 1]"},
		{"by as little as a few roundings", func(m *model) {
			got := row(m.layers[1].out, 4)
			got[0] += 5e-6 * (1 + blas32.Nrm2(vector(got)))
		}, "[0 1]"},
		{"a number that is none", func(m *model) { row(m.layers[1].out, 0)[0] = float32(math.NaN()) }, "[0 1]"},
		{"two rows exchanged", func(m *model) {
			a, b := row(m.layers[1].out, 0), row(m.layers[1].out, 1)
			for i := range a {
				a[i], b[i] = b[i], a[i]
			}
		}, "[0 2]"},
		{"the weights of a token", func(m *model) { row(m.layers[1].weights, 3)[0] *= 0.99 }, "[0 1]"},
		{"the experts of a token", func(m *model) { m.layers[1].selected[0] ^= 1 }, "[0 1]"},
		// which is wrong then, too
		{"what goes into the next layer", func(m *model) { row(m.layers[0].out, 4)[7] += 0.01 }, "[0 2]"},
		{"an expert", func(m *model) { clear(m.layers[1].experts[0].down.Data) }, "of both"},
	} {
		t.Run(c.name, func(t *testing.T) {
			models(t, 2, cfg, func(ctx context.Context, m *model) error {
				before, target := sample(text, cfg, 0, m.comm.Rank())
				if _, err := m.forward(ctx, before, target); err != nil {
					return err
				}
				if err := m.verify(ctx); err != nil {
					t.Errorf("before anything was done to it: %v", err)
				}
				if m.comm.Rank() == 1 {
					c.tamper(m)
				}
				err := m.verify(ctx)
				switch {
				case c.want == "":
					if err != nil {
						t.Errorf("rank %d: %v", m.comm.Rank(), err)
					}
				case err == nil:
					t.Errorf("rank %d noticed nothing", m.comm.Rank())
				case c.want == "of both":
					if strings.Contains(err.Error(), "[0") || strings.Contains(err.Error(), " 0]") {
						t.Errorf("rank %d: %v, want wrong rows on both ranks", m.comm.Rank(), err)
					}
				case !strings.HasSuffix(err.Error(), ": "+c.want):
					t.Errorf("rank %d: %v, want %s", m.comm.Rank(), err, c.want)
				}
				return nil
			})
		})
	}
}

// TestVerifyStopsTraining lets one expert of four ranks compute with other numbers than it has. All
// ranks stop at the step that verifies.
func TestVerifyStopsTraining(t *testing.T) {
	cfg := small
	text, _ := puzzle(1 << 12)
	ctx := testContext(t)
	err := ranktest.Each(join(t, 4), func(c *weft.Comm) error {
		m, err := newModel(ctx, c, c, cfg)
		if err != nil {
			return err
		}
		if c.Rank() == 2 {
			other := cfg.expert(make([]float32, cfg.expertSize()), 0)
			copy(other.up.Data, m.layers[0].experts[1].up.Data)
			m.layers[0].experts[1] = other
		}
		_, _, err = m.train(ctx, text, io.Discard)
		if err == nil || !strings.HasPrefix(err.Error(), "step 4: experts returned wrong rows") {
			t.Errorf("rank %d: %v", c.Rank(), err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
