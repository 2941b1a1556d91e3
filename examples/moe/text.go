package main

import (
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

const maxText = 4 << 20 // bytes

// readText reads the file at path, or the Go source below the directory at path, files in the order of their names. Commands, tests and what others
// wrote are left out.
func readText(path string) (text []byte, err error) {
	err = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		switch base := filepath.Base(name); {
		case err != nil:
			return err
		case entry.IsDir() && (base == "cmd" || base == "testdata" || base == "vendor"):
			return fs.SkipDir
		case entry.IsDir() || name != path && (!strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go")):
			return nil
		}
		file, err := os.ReadFile(name)
		if text = append(text, file...); err == nil && len(text) >= maxText {
			return fs.SkipAll
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("no text, choose one with -text: %w", err)
	}
	return text[:min(len(text), maxText)], nil
}

// entropy is the unigram entropy of the text in nats per byte: the loss of a model that knows how often every byte occurs, and no more.
func entropy(text []byte) (sum float64) {
	var count [256]float64
	for _, b := range text {
		count[b]++
	}
	for _, n := range count {
		if n > 0 {
			sum -= n / float64(len(text)) * math.Log(n/float64(len(text)))
		}
	}
	return sum
}

// sample draws a micro-batch of a step: for each token the bytes before it, and the byte to predict. It does not depend on the rank that asks.
func sample(text []byte, cfg Config, step, micro int) (before, target []byte) {
	rng := rand.New(rand.NewPCG(cfg.Seed, uint64(step*microBatches+micro)))
	for range cfg.Tokens {
		at := cfg.Context + rng.IntN(len(text)-cfg.Context)
		before, target = append(before, text[at-cfg.Context:at]...), append(target, text[at])
	}
	return before, target
}
