package main

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testContext bounds every wait of a test; none comes near it unless something hangs.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// join makes n goroutine ranks that leave when the test ends.
func join(t *testing.T, n int) []*weft.Comm {
	t.Helper()
	return ranktest.New(t, n)
}

// models makes a model on each of n goroutine ranks, and runs body on all of them at once.
func models(t *testing.T, n int, cfg Config, body func(ctx context.Context, m *model) error) []*model {
	t.Helper()
	return modelsOn(t, n, cfg, onHost, body)
}

// meeting gives a rank the communicator through which its tokens travel.
type meeting func(ctx context.Context, c *weft.Comm) (*weft.Comm, error)

func onHost(_ context.Context, c *weft.Comm) (*weft.Comm, error) { return c, nil }

// modelsOn is models whose experts work where the ranks of other communicators are.
func modelsOn(t *testing.T, n int, cfg Config, meet meeting, body func(ctx context.Context, m *model) error) []*model {
	t.Helper()
	ctx, all := testContext(t), make([]*model, n)
	err := ranktest.Each(join(t, n), func(c *weft.Comm) error {
		exchange, err := meet(ctx, c)
		if err != nil {
			return err
		}
		m, err := newModel(ctx, c, exchange, cfg)
		if err == nil {
			all[c.Rank()] = m
			err = errors.Join(body(ctx, m), m.close())
		}
		if exchange != c {
			err = errors.Join(err, exchange.Close())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// small is a model whose sizes are none that an inner loop likes.
var small = Config{
	Context: 3, Hidden: 20, Inner: 13, Layers: 2, Experts: 8, TopK: 3, Tokens: 21, Steps: 8,
	Rate: 1e-2, Verify: 4, Seed: 7,
}

// puzzle is a text of eight letters. Each follows from the two before it by a table in seven of
// eight cases, and is any letter in the eighth. The table was drawn at random, so it is more than a
// sum of what the two letters say apart: it takes experts to learn. The entropy is that of a letter
// given those before it, in nats: what no model gets below.
func puzzle(n int) (text []byte, entropy float64) {
	const letters = 8
	rng := rand.New(rand.NewPCG(2, 3))
	var table [letters][letters]int
	for a := range table {
		for b := range table[a] {
			table[a][b] = rng.IntN(letters)
		}
	}
	a, b := 0, 1
	for range n {
		next := table[a][b]
		if rng.IntN(8) == 0 {
			next = rng.IntN(letters)
		}
		a, b = b, next
		text = append(text, 'a'+byte(next))
	}
	right, wrong := 7./8+1./64, 1./64
	return text, -right*math.Log(right) - (letters-1)*wrong*math.Log(wrong)
}

// alone hides a launcher that the tests themselves may run under.
func alone(t *testing.T) {
	for _, name := range []string{"WEFT_ADDRESS", "WEFT_STORE", "WEFT_ID", "WEFT_LOCAL_RANK", "WEFT_LOCAL_SIZE"} {
		t.Setenv(name, "")
	}
	t.Setenv("WEFT_RANK", "0")
	t.Setenv("WEFT_SIZE", "1")
}

// TestRun is the command itself, as the only rank.
func TestRun(t *testing.T) {
	alone(t)
	file := filepath.Join(t.TempDir(), "text")
	text, _ := puzzle(1 << 14)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(testContext(t), []string{
		"-text", file, "-steps", "5", "-layers", "1", "-verify", "5",
		"-check=false",
	}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"16384 bytes of text, unigram entropy 1.9", "1 layers of 16 experts", "step    5 of 5",
		"without them: 1,", "hash of all losses ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in what it prints:\n%s", want, &out)
		}
	}
	// Five steps are not enough, and the command says so.
	err := run(testContext(t), []string{"-text", file, "-steps", "5", "-layers", "1"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "not 0.5 nats per byte below") {
		t.Errorf("after five steps: %v", err)
	}
}
