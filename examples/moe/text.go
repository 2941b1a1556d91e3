package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// readText joins the files that match a pattern, in the order of their names, up to 4 MiB.
func readText(pattern string) (text []byte, err error) {
	names, _ := filepath.Glob(pattern) // a malformed pattern matches nothing
	for i := 0; i < len(names) && len(text) < 4<<20; i++ {
		file, err := os.ReadFile(names[i])
		if err != nil {
			return nil, err
		}
		text = append(text, file...)
	}
	if len(text) < 1024 {
		return nil, fmt.Errorf("%d bytes of text in %d files that match %q: choose more with -text", len(text),
			len(names), pattern)
	}
	return text[:min(len(text), 4<<20)], nil
}

// entropy is the unigram entropy of the text in nats per byte: the loss of a model that knows how
// often every byte occurs, and no more.
func entropy(text []byte) (sum float64) {
	var count [256]float64
	for _, b := range text {
		count[b]++
	}
	for _, n := range count {
		sum -= n / float64(len(text)) * math.Log(max(n, 1)/float64(len(text)))
	}
	return sum
}

// sample draws a micro-batch of a step, the same on every rank that asks: for each token the bytes
// before it, and the byte to predict.
func sample(text []byte, cfg Config, step, micro int) (before, target []byte) {
	rng := rand.New(rand.NewPCG(cfg.Seed, uint64(step*microBatches+micro)))
	for range cfg.Tokens {
		at := cfg.Context + rng.IntN(len(text)-cfg.Context)
		before, target = append(before, text[at-cfg.Context:at]...), append(target, text[at])
	}
	return before, target
}
