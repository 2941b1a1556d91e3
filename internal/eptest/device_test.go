package eptest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/internal/ranktest"
)

// fakeGPUs makes the contexts of a driver made of Go, which must be clean in the end.
func fakeGPUs(t *testing.T, n int) []*cuda.Context {
	t.Helper()
	return ranktest.Fake(t, cudatest.Config{Devices: n}).Contexts
}

func newDevice(t *testing.T, gpus int) *Device {
	t.Helper()
	d := NewDevice(fakeGPUs(t, gpus))
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestDeviceMemory carries bytes to GPUs and back, in windows and out of them, with several ranks
// on a GPU.
func TestDeviceMemory(t *testing.T) {
	const gpus = 2
	d := newDevice(t, gpus)
	for _, n := range d.Sizes() {
		for _, window := range []bool{false, true} {
			err := d.Ranks(n, func(c *weft.Comm) error {
				const size = 1000
				if got := c.Device().Context().Device().Ordinal(); got != c.Rank()%gpus {
					return fmt.Errorf("on GPU %d", got)
				}
				m, err := d.Alloc(c, size, window)
				if err != nil {
					return err
				}
				want := bytes.Repeat([]byte{byte(1 + c.Rank())}, size)
				got := make([]byte, size)
				if err := errors.Join(d.Upload(c, m.Data, want), d.Sync(c), d.Download(c, got, m.Data)); err != nil {
					return err
				}
				if !bytes.Equal(got, want) {
					return errors.New("what was uploaded does not come back")
				}
				if _, _, ok := c.Operations().Find(m.Data, size); ok != window {
					return fmt.Errorf("in a window: %v, want %v", ok, window)
				}
				if s := d.Stream(c); s == nil || s != d.Stream(c) || s.CUDA() == c.Device().Stream() {
					return errors.New("a rank has one stream of its own")
				}
				return m.Free()
			})
			if err != nil {
				t.Fatalf("%d ranks, in a window %v: %v", n, window, err)
			}
		}
	}
}

// TestDeviceRefusals makes handles of all that GPUs refuse: every rank says so in the words of the
// table.
func TestDeviceRefusals(t *testing.T) {
	d := newDevice(t, 2)
	for _, n := range []int{1, 3} {
		if err := refusals(d, n); err != nil {
			t.Errorf("%d ranks: %v", n, err)
		}
	}
}

// TestDeviceAfterFailure makes new ranks where the old ones have failed, and gives up what they
// had.
func TestDeviceAfterFailure(t *testing.T) {
	d := newDevice(t, 1)
	wrong := errors.New("wrong")
	var first *weft.Comm
	err := d.Ranks(2, func(c *weft.Comm) error {
		d.Stream(c)
		m, err := d.Alloc(c, 100, true)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			first = c
			c.Abort()
			return errors.Join(wrong, m.Free())
		}
		return m.Free() // does not wait for a rank that has given up
	})
	if !errors.Is(err, wrong) || !strings.Contains(err.Error(), "rank 1") {
		t.Fatalf("%v, want one of both ranks", err)
	}
	err = d.Ranks(2, func(c *weft.Comm) error {
		if c == first || c.Err() != nil {
			return fmt.Errorf("an old communicator: %w", c.Err())
		}
		return d.Sync(c)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDeviceRank leaves a communicator to its owner.
func TestDeviceRank(t *testing.T) {
	group, err := ranktest.Join(1, weft.WithDevice(fakeGPUs(t, 1)[0]))
	if err != nil {
		t.Fatal(err)
	}
	d := NewDeviceRank(group[0])
	err = d.Ranks(1, func(c *weft.Comm) error { return d.Sync(c) })
	if err := errors.Join(err, d.Close(), group[0].Err(), group[0].Close()); err != nil {
		t.Error(err)
	}
}

// TestCasesFitEngine draws no case that the engine refuses, both forms of the first dispatch,
// capacities and batches of all sizes.
func TestCasesFitEngine(t *testing.T) {
	for _, e := range []Engine{NewHost(), NewDevice(nil)} {
		var fused, capped [2]int
		large := map[int]int{}
		cells := allowed(e.Kind())
		for i, cell := range cells {
			for _, make := range casesOf(e, cell, uint64(i)) {
				c := make()
				if err := c.Spec.ValidateOn(e.Kind(), c.Ranks); err != nil {
					t.Fatalf("%s: %v\n%v", e.Name(), err, c)
				}
				if c.Fused {
					fused[1]++
				} else {
					fused[0]++
				}
				large[c.Spec.MaxTokens]++
				if c.Spec.Capacity > 0 {
					capped[c.Spec.Overflow]++
				}
			}
		}
		if fused[0] < 100 || fused[1] < 100 || min(capped[0], capped[1]) < 20 {
			t.Errorf("%s: %d cases by two calls and by one, %d with a capacity that refuses and that drops",
				e.Name(), fused, capped)
		}
		if large[64] < 20 || large[300] < 20 {
			t.Errorf("%s: %d large cases, %d larger ones", e.Name(), large[64], large[300])
		}
	}
}

// TestChoose takes as many cases as were asked for, none twice, and of as many cells as possible.
func TestChoose(t *testing.T) {
	sizes := []int{4, 4, 28, 8, 4}
	for _, test := range []struct{ limit, all, cells int }{
		{0, 48, 5}, {1, 1, 1}, {3, 3, 3}, {5, 5, 5}, {6, 6, 5}, {30, 30, 5}, {48, 48, 5}, {1000, 48, 5},
	} {
		all, cells := 0, 0
		for i, chosen := range choose(sizes, test.limit, 2) {
			seen := map[int]bool{}
			for _, j := range chosen {
				if j < 0 || j >= sizes[i] || seen[j] {
					t.Errorf("limit %d: case %d of %d, again: %v", test.limit, j, sizes[i], seen[j])
				}
				seen[j] = true
			}
			all += len(chosen)
			if len(chosen) > 0 {
				cells++
			}
		}
		if all != test.all || cells != test.cells {
			t.Errorf("limit %d: %d cases of %d cells, want %d of %d", test.limit, all, cells, test.all, test.cells)
		}
	}
}
