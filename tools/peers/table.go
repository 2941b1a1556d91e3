package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// table holds every p50 that was reported, in microseconds, by size in bytes and engine.
type table struct {
	op      string
	engines []string
	p50     map[int64]map[string][]float64
}

func newTable(op string, engines []string) *table {
	return &table{op: op, engines: engines, p50: map[int64]map[string][]float64{}}
}

// add takes the output of one run.
func (t *table) add(engine string, output []byte) error {
	found := false
	for line := range bytes.Lines(output) {
		var row struct {
			Op       string
			Bytes    int64
			P50      float64 `json:"p50_us"`
			Verified bool
		}
		if json.Unmarshal(line, &row) != nil || row.Op != t.op {
			continue
		}
		if !row.Verified {
			return fmt.Errorf("wrong result at %d bytes", row.Bytes)
		}
		found = true
		if t.p50[row.Bytes] == nil {
			t.p50[row.Bytes] = map[string][]float64{}
		}
		t.p50[row.Bytes][engine] = append(t.p50[row.Bytes][engine], row.P50)
	}
	if !found {
		return fmt.Errorf("reported no %s", t.op)
	}
	return nil
}

// write prints the sizes that every engine measured.
func (t *table) write(w io.Writer, ranks, rounds int) {
	fmt.Fprintf(w, "\n%s of float32, %d ranks: p50 in us, median of %d interleaved runs\n", t.op, ranks, rounds)
	fmt.Fprintf(w, "%10s", "bytes")
	for _, e := range t.engines {
		fmt.Fprintf(w, "%12s", e)
	}
	fmt.Fprintf(w, "  fastest\n")

	var sizes []int64
	for size, row := range t.p50 {
		if len(row) == len(t.engines) {
			sizes = append(sizes, size)
		}
	}
	slices.Sort(sizes)
	wins := map[string]int{}
	for _, size := range sizes {
		fmt.Fprintf(w, "%10d", size)
		best, bestTime := "", 0.0
		for _, e := range t.engines {
			us := median(t.p50[size][e])
			fmt.Fprintf(w, "%12.2f", us)
			if best == "" || us < bestTime {
				best, bestTime = e, us
			}
		}
		wins[best]++
		fmt.Fprintf(w, "  %s\n", best)
	}

	var parts []string
	for _, e := range t.engines {
		parts = append(parts, fmt.Sprintf("%s %d", e, wins[e]))
	}
	fmt.Fprintf(w, "fastest at how many of %d sizes: %s\n", len(sizes), strings.Join(parts, ", "))
}

// median is the middle value, or the mean of the two middle values.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
