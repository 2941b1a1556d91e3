package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestReadText joins files in the order of their names, and stops at 4 MiB.
func TestReadText(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"c.go", "a.go", "b.go", "b.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte(name[:1]), 3<<19), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readText(filepath.Join(dir, "*.go"))
	want := bytes.Join([][]byte{
		bytes.Repeat([]byte("a"), 3<<19), bytes.Repeat([]byte("b"), 3<<19),
		bytes.Repeat([]byte("c"), 1<<20),
	}, nil)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
	}
}

func TestEntropy(t *testing.T) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for _, c := range []struct {
		text string
		want float64
	}{
		{"aaaa", 0}, {"abab", math.Ln2}, {"aaab", math.Log(4) - 0.75*math.Log(3)}, {string(every), math.Log(256)},
	} {
		if got := entropy([]byte(c.text)); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%.10q...: %v, want %v", c.text, got, c.want)
		}
	}
}

// TestSample finds every sample in the text, from the first place that has enough before it to the
// last.
func TestSample(t *testing.T) {
	cfg := Config{Context: 5, Tokens: 300, Seed: 3}
	text := []byte{10, 11, 12, 13, 14, 15, 16, 17, 18}
	seen := map[byte]int{}
	for micro := range microBatches {
		before, target := sample(text, cfg, 2, micro)
		if len(before) != cfg.Tokens*cfg.Context || len(target) != cfg.Tokens {
			t.Fatalf("%d before, %d targets", len(before), len(target))
		}
		for i, b := range target {
			seen[b]++
			if from := int(b) - 10 - cfg.Context; from < 0 ||
				!bytes.Equal(before[i*cfg.Context:(i+1)*cfg.Context], text[from:from+cfg.Context]) {
				t.Fatalf("%v before %d", before[i*cfg.Context:(i+1)*cfg.Context], b)
			}
		}
		again, _ := sample(text, cfg, 2, micro)
		other, _ := sample(text, cfg, 2, micro+1)
		seed, _ := sample(text, Config{Context: 5, Tokens: 300, Seed: 4}, 2, micro)
		if !bytes.Equal(before, again) || bytes.Equal(before, other) || bytes.Equal(before, seed) {
			t.Errorf("micro-batch %d: the same twice: %v; as the next: %v; as of another seed: %v", micro,
				bytes.Equal(before, again), bytes.Equal(before, other), bytes.Equal(before, seed))
		}
	}
	if len(seen) != len(text)-cfg.Context {
		t.Errorf("targets %v", seen)
	}
}
