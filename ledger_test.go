package weft_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

func TestReserve(t *testing.T) {
	_, d := machine(t, cudatest.Config{Devices: 2, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 4, cuda.BlocksPerMultiprocessor: 16}})
	group := joinOn(t, d, []int{0, 0, 1})
	g := group[0].Device()
	for threads, want := range map[int]int{1024: 4, 1000: 4, 512: 8, 513: 4, 256: 16, 64: 64, 32: 64, 1: 64, 0: 0, 1025: 0, -1: 0} {
		if got := g.Room(0, threads); got != want {
			t.Errorf("room for %d blocks of %d threads, want %d", got, threads, want)
		}
	}
	for _, bad := range [][2]int{{0, 1}, {1025, 1}, {32, 0}, {-1, 1}, {1, -1}} {
		if _, err := g.Reserve(0, bad[0], bad[1]); !errors.Is(err, weft.ErrInvalid) {
			t.Errorf("%d blocks of %d threads: %v", bad[1], bad[0], err)
		}
	}
	_, err := g.Reserve(0, 1024, 5)
	if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "room for 4 beside the 0") {
		t.Errorf("more than there is: %v", err)
	}
	reserve := func(c *weft.Comm, threads, blocks int) *weft.Reservation {
		t.Helper()
		r, err := c.Device().Reserve(0, threads, blocks)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Release)
		return r
	}
	half := reserve(group[0], 512, 3)
	// Blocks of another size: before one of 512 threads, 2x512 + nx256 of others are in the way on fewer than 4 SMs, 513 on each, for n = 4.
	if got := group[1].Device().Room(0, 256); got != 4 {
		t.Errorf("room for %d blocks of 256 threads beside 3 of 512 of the same GPU, want 4", got)
	}
	if got := group[1].Device().Room(0, 512); got != 5 {
		t.Errorf("room for %d blocks of 512 threads beside 3, want 5", got)
	}
	if got := group[1].Device().Room(0, 1024); got != 1 {
		t.Errorf("room for %d blocks that need a whole SM each beside 3 of 512, want 1", got)
	}
	if got := group[2].Device().Room(0, 512); got != 8 {
		t.Errorf("room for %d blocks on the other GPU, want 8", got)
	}
	reserve(group[1], 256, 4)
	if _, err := g.Reserve(0, 32, 1); !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "room for 0 beside the 7") {
		t.Errorf("with nothing left: %v", err)
	}
	half.Release()
	half.Release()
	if got := g.Room(0, 256); got != 12 {
		t.Errorf("room for %d blocks of 256 threads beside 4, want 12", got)
	}
}

// TestSeries: those that take turns find room where one of them does, beside one that runs with any of them.
func TestSeries(t *testing.T) {
	_, d := machine(t, cudatest.Config{Devices: 1, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 4}})
	group := joinOn(t, d, []int{0, 0})
	g, other := group[0].Device(), group[1].Device()
	reserve := func(d *weft.Device, series, threads, blocks int) *weft.Reservation {
		t.Helper()
		r, err := d.Reserve(series, threads, blocks)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Release)
		return r
	}
	rooms := func(what string, want ...int) {
		t.Helper()
		got := []int{g.Room(1, 1024), g.Room(2, 1024), g.Room(0, 1024), other.Room(1, 1024)}
		if !slices.Equal(got, want) {
			t.Errorf("%s: room for %v blocks in the series, in another, in none and in another rank's of that number, want %v", what, got, want)
		}
	}
	large := reserve(g, 1, 1024, 3)
	for range 3 {
		reserve(g, 1, 1024, 2)
	}
	rooms("3 of 4 SMs", 4, 1, 1, 1)
	large.Release()
	rooms("2 of 4 SMs", 4, 2, 2, 2)
	reserve(g, 0, 1024, 1)
	rooms("and one beside them", 3, 1, 1, 1)
	if _, err := g.Reserve(1, 1024, 4); !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "room for 3 beside the 1 ") {
		t.Errorf("more than there is: %v", err)
	}
}

// TestSeriesOfSizes: each of those that take turns may fill the GPU, whatever size its blocks have.
func TestSeriesOfSizes(t *testing.T) {
	_, d := machine(t, cudatest.Config{Devices: 1, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 4}})
	g := joinOn(t, d, []int{0})[0].Device()
	for _, threads := range []int{512, 256, 384, 512, 1024, 512} {
		want := 4 * (1024 / threads)
		if got := g.Room(7, threads); got != want {
			t.Errorf("room for %d blocks of %d threads, want %d", got, threads, want)
		}
		r, err := g.Reserve(7, threads, want)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Release)
	}
	if got := g.Room(0, 32); got != 0 {
		t.Errorf("room for %d blocks beside a full GPU", got)
	}
}

// TestSeriesOfSizesBeside: a small one of another size keeps nobody out who fits beside each of its series.
func TestSeriesOfSizesBeside(t *testing.T) {
	_, d := machine(t, cudatest.Config{Devices: 1, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 132}})
	g := joinOn(t, d, []int{0})[0].Device()
	for _, r := range []struct{ series, threads, blocks int }{{1, 512, 132}, {1, 256, 1}, {0, 512, 132}} {
		reserved, err := g.Reserve(r.series, r.threads, r.blocks)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		t.Cleanup(reserved.Release)
	}
	if got := g.Room(0, 512); got != 0 {
		t.Errorf("room for %d blocks where 264 are taken", got)
	}
}

// TestReserveIsSafe places what fits the ledger block by block in any order, on any SM that has room: no block stands before SMs that are all too
// full.
func TestReserveIsSafe(t *testing.T) {
	_, d := machine(t, cudatest.Config{Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 3}})
	g := joinOn(t, d, []int{0})[0].Device()
	rapid.Check(t, func(t *rapid.T) {
		type block struct{ threads int }
		var blocks []block
		var held []*weft.Reservation
		taking := map[int][][]block{} // turns, by series
		for range rapid.IntRange(1, 7).Draw(t, "handles") {
			threads := 32 * rapid.IntRange(1, 32).Draw(t, "warps")
			series := rapid.IntRange(0, 2).Draw(t, "series")
			room := g.Room(series, threads)
			if _, err := g.Reserve(series, threads, room+1); !errors.Is(err, weft.ErrUnsupported) {
				t.Fatalf("more than the room of %d: %v", room, err)
			}
			if room == 0 {
				continue
			}
			n := rapid.IntRange(1, room).Draw(t, "blocks")
			r, err := g.Reserve(series, threads, n)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, r)
			of := slices.Repeat([]block{{threads}}, n)
			if series == 0 {
				blocks = append(blocks, of...)
			} else {
				taking[series] = append(taking[series], of)
			}
		}
		for series := range 3 { // one of each runs
			if t0 := taking[series]; len(t0) > 0 {
				blocks = append(blocks, rapid.SampledFrom(t0).Draw(t, "turn")...)
			}
		}
		defer func() {
			for _, r := range held {
				r.Release()
			}
		}()
		var free, slots [3]int
		for i := range free {
			free[i], slots[i] = 1024, 32
		}
		for _, b := range rapid.Permutation(blocks).Draw(t, "order") {
			var open []int
			for i := range free {
				if free[i] >= b.threads && slots[i] > 0 {
					open = append(open, i)
				}
			}
			if len(open) == 0 {
				t.Fatalf("no room for a block of %d threads: %v, %v slots, of %v", b.threads, free, slots, blocks)
			}
			i := rapid.SampledFrom(open).Draw(t, "SM")
			free[i] -= b.threads
			slots[i]--
		}
	})
}
