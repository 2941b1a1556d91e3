// Package routing makes the expert choices that benchmarks are run with: which
// top-k experts each token of each rank goes to, and with which weights.
//
// Every choice is a function of the seed, the rank and the token alone, so any rank can compute any
// other's routing and check its received rows.
package routing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// Kind is how popular the experts are.
type Kind string

// The kinds of routing. In each the experts of a token are distinct.
const (
	Uniform Kind = "uniform" // every expert is equally likely
	// the i-th most popular expert is chosen in proportion to 1/i^1.1; popularity is shuffled by
	// the seed
	Zipf Kind = "zipf"
	// every token sends as much of its top-k as fits to the experts of one rank, the rest uniformly
	Hot Kind = "hot"
)

// Kinds lists every kind, the default first.
func Kinds() []Kind { return []Kind{Uniform, Zipf, Hot} }

// ParseKind is the inverse of Kind's text.
func ParseKind(s string) (Kind, error) {
	if k := Kind(s); slices.Contains(Kinds(), k) {
		return k, nil
	}
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return "", fmt.Errorf("routing %q: want one of %s", s, strings.Join(names, ", "))
}

// zipfExponent is the skew that measured expert loads are usually modelled with.
const zipfExponent = 1.1

// Config is a routing.
type Config struct {
	Kind    Kind
	Seed    uint64
	Ranks   int
	Experts int // a multiple of Ranks; expert e lives on rank e/(Experts/Ranks)
	TopK    int // at most Experts
}

// Generator makes routings of one configuration. It may be used from several
// goroutines at once.
type Generator struct {
	cfg        Config
	cumulative []float64 // zipf: cumulative[i] is the mass of experts 0..i
	hot        int       // hot: the rank
}

// New checks a configuration.
func New(cfg Config) (*Generator, error) {
	if _, err := ParseKind(string(cfg.Kind)); err != nil {
		return nil, err
	}
	switch {
	case cfg.Ranks < 1 || cfg.Experts < 1 || cfg.Experts%cfg.Ranks != 0:
		return nil, fmt.Errorf("%d experts do not spread evenly over %d ranks", cfg.Experts, cfg.Ranks)
	case cfg.TopK < 1 || cfg.TopK > cfg.Experts:
		return nil, fmt.Errorf("top-%d of %d experts", cfg.TopK, cfg.Experts)
	}
	g := &Generator{cfg: cfg}
	rng := rand.New(rand.NewPCG(cfg.Seed, 0x9e3779b97f4a7c15))
	switch cfg.Kind {
	case Zipf:
		mass := make([]float64, cfg.Experts)
		for i, e := range rng.Perm(cfg.Experts) {
			mass[e] = math.Pow(float64(i+1), -zipfExponent)
		}
		sum := 0.0
		for _, m := range mass {
			sum += m
			g.cumulative = append(g.cumulative, sum)
		}
	case Hot:
		g.hot = rng.IntN(cfg.Ranks)
	}
	return g, nil
}

// Route returns the routing of one rank's tokens: ids and weights are tokens rows
// of TopK. The weights of a token are positive and sum to about 1.
func (g *Generator) Route(rank, tokens int) (ids []int32, weights []float32) {
	k := g.cfg.TopK
	ids = make([]int32, tokens*k)
	weights = make([]float32, tokens*k)
	taken := make([]bool, g.cfg.Experts)
	for t := range tokens {
		// A generator per token: how many tokens there are changes none of them.
		rng := rand.New(rand.NewPCG(g.cfg.Seed+uint64(rank)<<32, uint64(t)))
		row, w := ids[t*k:(t+1)*k], weights[t*k:(t+1)*k]
		g.choose(rng, row, taken)
		for _, e := range row {
			taken[e] = false
		}
		var sum float32
		for i := range w {
			w[i] = 0.1 + rng.Float32()
			sum += w[i]
		}
		for i := range w {
			w[i] /= sum
		}
	}
	return ids, weights
}

// choose fills row with distinct experts. taken is all false before, and marks the
// row's experts after.
func (g *Generator) choose(rng *rand.Rand, row []int32, taken []bool) {
	n := 0
	take := func(e int) {
		if !taken[e] {
			taken[e] = true
			row[n] = int32(e)
			n++
		}
	}
	if g.cfg.Kind == Hot {
		local := g.cfg.Experts / g.cfg.Ranks
		for want := min(local, len(row)); n < want; {
			take(g.hot*local + rng.IntN(local))
		}
	}
	for draws := 0; n < len(row); draws++ {
		if draws > 64*len(row) { // nearly every expert, or a very skewed choice
			start := rng.IntN(len(taken))
			for i := range taken {
				if n < len(row) {
					take((start + i) % len(taken))
				}
			}
			return
		}
		if g.cumulative == nil {
			take(rng.IntN(len(taken)))
			continue
		}
		x := rng.Float64() * g.cumulative[len(g.cumulative)-1]
		e, _ := slices.BinarySearch(g.cumulative, x)
		take(min(e, len(taken)-1))
	}
}
