package main

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// network is the model once more, in float64, token by token, with no exchange and none of the
// model's code.
type network struct {
	cfg                          Config
	embed, routers, out, experts []float64 // as the model lays them out
}

// objective is what backward differentiates: the loss of a micro-batch and the balancing loss of
// the layers. Which experts tokens select is given, by layer: it is constant wherever the objective
// has a gradient.
func (n *network) objective(before, target []byte, selected [][]int32) (sum, balance float64) {
	c := n.cfg
	tokens := float64(len(target))
	chosen, mean := make([]float64, c.Layers*c.Experts), make([]float64, c.Layers*c.Experts)
	for t, b := range target {
		x := make([]float64, c.Hidden)
		for at, b := range before[t*c.Context : (t+1)*c.Context] {
			for h := range x {
				x[h] += n.embed[(at*256+int(b))*c.Hidden+h]
			}
		}
		for i := range c.Layers {
			probs := softmax64(product(x, n.routers[i*c.Hidden*c.Experts:], c.Experts))
			for e, p := range probs {
				mean[i*c.Experts+e] += p / tokens
			}
			selection, y, total := selected[i][t*c.TopK:(t+1)*c.TopK], slices.Clone(x), 0.0
			for _, e := range selection {
				total += probs[e]
				chosen[i*c.Experts+int(e)] += 1 / (tokens * float64(c.TopK))
			}
			for _, e := range selection {
				up := n.experts[(i*c.Experts+int(e))*2*c.Hidden*c.Inner:]
				inner := product(x, up, c.Inner)
				for j, v := range inner {
					inner[j] = max(v, 0)
				}
				for h, v := range product(inner, up[c.Hidden*c.Inner:], c.Hidden) {
					y[h] += probs[e] / total * v
				}
			}
			x = y
		}
		sum -= math.Log(softmax64(product(x, n.out, 256))[b])
	}
	for i := range chosen {
		balance += 0.01 * float64(c.Experts) * chosen[i] * mean[i]
	}
	return sum / (4 * tokens), balance / 4
}

// product is x·w, of which w has that many columns.
func product(x, w []float64, columns int) []float64 {
	y := make([]float64, columns)
	for i, v := range x {
		for j := range y {
			y[j] += v * w[i*columns+j]
		}
	}
	return y
}

func softmax64(v []float64) []float64 {
	sum := 0.0
	for i, x := range v {
		v[i] = math.Exp(x)
		sum += v[i]
	}
	for i := range v {
		v[i] /= sum
	}
	return v
}

func doubles(v []float32) []float64 {
	d := make([]float64, len(v))
	for i, x := range v {
		d[i] = float64(x)
	}
	return d
}

// TestGradients compares the gradient of every parameter with central differences of a second
// implementation in float64.
//
// There the differences are as good as exact: with steps of 1e-5 their own error is about 1e-10,
// and float64's rounding, divided by the step, 1e-11. No unit is so near zero that the step takes
// it across relu's bend, and selections are held as they are; seeds are fixed, so this is always
// true. What is left is the model's fp32, some tens of roundings of 6e-8 relative to the largest
// numbers of a sum: 3e-7 of the largest gradient of a kind was seen, and 3e-6 is allowed. The
// smallest term there is, that of the balancing loss, is a thousand times larger.
func TestGradients(t *testing.T) {
	cfg := Config{Context: 2, Hidden: 8, Inner: 8, Layers: 2, Experts: 4, TopK: 2, Tokens: 12, Steps: 1, Seed: 5}
	text, _ := puzzle(1 << 10)
	before, target := sample(text, cfg, 0, 0)
	var loss float32
	m := models(t, 1, cfg, func(ctx context.Context, m *model) (err error) {
		// At the start logits are next to nothing, which would hide mistakes. Here all kinds of
		// parameters matter.
		rng := rand.New(rand.NewPCG(11, 12))
		fill(m.weights.embed, rng, 0.7)
		fill(m.weights.routers, rng, 0.5)
		fill(m.weights.out, rng, 0.5)
		fill(matrixOf(m.experts.value, 1, len(m.experts.value)), rng, 0.5)
		if loss, err = m.forward(ctx, before, target); err == nil {
			err = m.backward(ctx, cfg.dense(m.own))
		}
		return err
	})[0]

	reference, grads := network{cfg: cfg, experts: doubles(m.experts.value)}, cfg.dense(m.own)
	reference.embed, reference.routers = doubles(m.weights.embed.Data), doubles(m.weights.routers.Data)
	reference.out = doubles(m.weights.out.Data)
	var selected [][]int32
	for _, l := range m.layers {
		selected = append(selected, l.selected)
	}
	if want, _ := reference.objective(before, target, selected); math.Abs(float64(loss)-want) > 1e-6*want {
		t.Errorf("loss %v, want %v", loss, want)
	}

	stride := 1
	if testing.Short() {
		stride = 5
	}
	half := cfg.expertSize() / 2
	for _, kind := range []struct {
		name  string
		value []float64
		grad  []float32
		of    func(i int) bool
	}{
		{"embed", reference.embed, grads.embed.Data, nil},
		{"router", reference.routers, grads.routers.Data, nil},
		{"out", reference.out, grads.out.Data, nil},
		{"expert up", reference.experts, m.experts.grad, func(i int) bool { return i/half%2 == 0 }},
		{"expert down", reference.experts, m.experts.grad, func(i int) bool { return i/half%2 == 1 }},
	} {
		t.Run(kind.name, func(t *testing.T) {
			const h = 1e-5
			var largest, worst float64
			var checked, zeros, where int
			for i := range kind.grad {
				if kind.of != nil && !kind.of(i) {
					continue
				}
				got := float64(kind.grad[i])
				largest = max(largest, math.Abs(got))
				if kind.name == "embed" && !slices.Contains(before, byte(i/cfg.Hidden)) {
					if got != 0 {
						t.Fatalf("%v is the gradient of number %d, of a byte that does not occur", got, i)
					}
					continue
				}
				if checked++; checked%stride != 0 {
					continue
				}
				value := kind.value[i]
				at := func(v float64) float64 {
					kind.value[i] = v
					sum, balance := reference.objective(before, target, selected)
					return sum + balance
				}
				want := (at(value+h) - at(value-h)) / (2 * h)
				kind.value[i] = value
				if want == 0 {
					zeros++
				}
				if off := math.Abs(got - want); !(off <= worst) {
					worst, where = off, i
				}
			}
			t.Logf("%d numbers, of which %d without influence; largest gradient %.3g, off by at most "+
				"%.2g of it", checked, zeros, largest, worst/largest)
			if largest < 1e-3 || zeros > checked/2 {
				t.Errorf("this test shows little: %d of %d without influence, largest gradient %v", zeros, checked, largest)
			}
			if !(worst <= 3e-6*largest) {
				t.Errorf("number %d is off by %v; the largest gradient is %v", where, worst, largest)
			}
		})
	}
}

// TestRoute compares the selection with sorted probabilities.
func TestRoute(t *testing.T) {
	cfg := small
	rng := rand.New(rand.NewPCG(4, 4))
	l := &layer{cfg: cfg, x: newMatrix(50, cfg.Hidden), router: newMatrix(cfg.Hidden, cfg.Experts)}
	fill(l.x, rng, 1)
	fill(l.router, rng, 1)
	l.route()
	for at := range l.x.Rows {
		probs, order := softmax64(product(doubles(row(l.x, at)), doubles(l.router.Data),
			cfg.Experts)), make([]int32, cfg.Experts)
		for e := range order {
			order[e] = int32(e)
		}
		slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(probs[b], probs[a]) })
		if got := l.selected[at*cfg.TopK : (at+1)*cfg.TopK]; !slices.Equal(got, order[:cfg.TopK]) {
			t.Errorf("token %d selects %v, want %v", at, got, order[:cfg.TopK])
		}
		total := 0.0
		for _, e := range order[:cfg.TopK] {
			total += probs[e]
		}
		for k, w := range row(l.weights, at) {
			if want := probs[order[k]] / total; math.Abs(float64(w)-want) > 1e-5 {
				t.Errorf("token %d: weight %v, want %v", at, w, want)
			}
		}
	}
}
