package gpu

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/ranktest"
)

func TestWorkspaceLayout(t *testing.T) {
	w := NewLocal(3)
	if got := w.Raw(1); got != (device.StateBytes+3*device.CountBytes+127)/128*128 {
		t.Errorf("behind the state and three counts comes %d", got)
	}
	for i, at := range []int64{w.Ones(129), w.Zeros(0), w.Raw(128), w.Zeros(1)} {
		if at%128 != 0 {
			t.Errorf("region %d begins at %d", i, at)
		}
	}
	if got := w.Size(); got%128 != 0 {
		t.Errorf("a size of %d", got)
	}
}

// TestWorkspaceContent: each region holds what it was added with, and regions that hold anything
// are left alone.
func TestWorkspaceContent(t *testing.T) {
	c := ranktest.Fake(t, cudatest.Config{}).Contexts[0]
	s, err := c.NewStream(cuda.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var w Workspace
	type region struct {
		at, size int64
		value    byte
	}
	var want []region
	for i, add := range []func(int64) int64{w.Zeros, w.Zeros, w.Ones, w.Raw, w.Ones, w.Ones, w.Raw, w.Zeros} {
		size := int64(100 + 50*i)
		value := map[int]byte{2: 0xFF, 3: 0x5A, 4: 0xFF, 5: 0xFF, 6: 0x5A}[i]
		want = append(want, region{add(size), size, value})
	}
	m, err := c.Alloc(int(w.Size()))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	got := bytes.Repeat([]byte{0x5A}, int(w.Size()))
	if err := errors.Join(c.Upload(m.Pointer(), got), w.begin(s, m.Pointer()), s.Synchronize(),
		c.Download(got, m.Pointer())); err != nil {
		t.Fatal(err)
	}
	for i, r := range want {
		if !bytes.Equal(got[r.at:r.at+r.size], bytes.Repeat([]byte{r.value}, int(r.size))) {
			t.Errorf("region %d does not hold %#x throughout", i, r.value)
		}
	}
	var zeroed []int64
	for at := range w.Zeroed() {
		zeroed = append(zeroed, at)
	}
	if want := []int64{want[0].at, want[1].at, want[7].at}; !slices.Equal(zeroed, want) {
		t.Errorf("regions of zeros at %v, want %v", zeroed, want)
	}
}
