package cudatest_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

// TestLoader: an image's own kernels go before registered ones, two images have theirs each, and
// arguments lie where the code wants them.
func TestLoader(t *testing.T) {
	r := newRig(t, cudatest.Config{Devices: 2})
	var ran []string
	r.m.Kernel("k", func(*cudatest.Call) { ran = append(ran, "registered") })
	r.m.Loader(func(code []byte) (map[string]cudatest.Code, error) {
		if len(code) == 0 {
			return nil, errors.New("nothing in it")
		}
		return map[string]cudatest.Code{"k": {
			Parameters: []cudatest.Parameter{{Offset: 0, Size: 4}, {Offset: 16, Size: 8}}, Shared: 1024, Threads: 64,
			Run: func(_ *cudatest.Call, a []byte) error {
				ran = append(ran, fmt.Sprintf("%s %d %d %d", code, len(a), binary.LittleEndian.Uint32(a),
					binary.LittleEndian.Uint64(a[16:])))
				if code[0] == 'b' {
					return fmt.Errorf("it was bad: %w", cuda.ErrMisalignedAddress)
				}
				return nil
			},
		}}, nil
	})
	start := func(device int, image []byte, config cuda.LaunchConfig, arguments ...any) error {
		m, err := r.contexts[device].LoadModule(image)
		r.ok(err)
		f, err := m.Function("k")
		r.ok(err)
		if a, err := f.Attributes(); string(image) != "any" && (err != nil || a.StaticShared != 1024 || a.MaxThreads != 64) {
			t.Errorf("attributes: %+v, %v", a, err)
		}
		l, err := f.Prepare(config, arguments...)
		r.ok(err)
		return l.Start(r.streams[device])
	}
	one := cudatest.Image([]byte("one"))
	r.ok(start(0, one, cuda.LaunchConfig{Block: cuda.Dim{X: 64}}, int32(1), uint64(2)))
	r.ok(start(0, cudatest.Image([]byte("two")), cuda.LaunchConfig{}, int32(3), uint64(4)))
	r.ok(start(0, []byte("any"), cuda.LaunchConfig{}))
	if err := start(0, one, cuda.LaunchConfig{Block: cuda.Dim{X: 65}}, int32(1), uint64(2)); !errors.Is(err,
		cuda.ErrInvalidValue) {
		t.Errorf("65 threads of 64: %v", err)
	}
	if err := start(0, one, cuda.LaunchConfig{Shared: 47<<10 + 1}, int32(1), uint64(2)); !errors.Is(err,
		cuda.ErrInvalidValue) {
		t.Errorf("too much shared memory beside the static: %v", err)
	}
	if err := start(1, cudatest.Image([]byte("bad")), cuda.LaunchConfig{}, int32(5), uint64(6)); !errors.Is(err,
		cuda.ErrMisalignedAddress) {
		t.Errorf("a kernel that fails: %v", err)
	}
	if err := r.streams[1].Synchronize(); !errors.Is(err, cuda.ErrMisalignedAddress) {
		t.Errorf("its context afterwards: %v", err)
	}
	if _, err := r.contexts[0].LoadModule(cudatest.Image(nil)); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("an image that does not load: %v", err)
	}
	if want := []string{"one 24 1 2", "two 24 3 4", "registered", "bad 24 5 6"}; !slices.Equal(ran, want) {
		t.Errorf("%q, want %q", ran, want)
	}
	for _, say := range []string{"kernel k: it was bad", "load an image: nothing in it"} {
		if text := r.m.Check().Error(); !strings.Contains(text, say) {
			t.Errorf("the machine does not say %q but %s", say, text)
		}
	}
}

// TestRanges: what a device may access, and whose it is.
func TestRanges(t *testing.T) {
	r := newRig(t, cudatest.Config{Devices: 2})
	var ranges []cudatest.Range
	r.m.Kernel("k", func(c *cudatest.Call) { ranges = c.Ranges() })
	own, peers := r.alloc(0, 100), r.alloc(1, 200)
	host, err := r.contexts[0].AllocHost(300, cuda.HostOptions{})
	r.ok(err)
	mapped, err := r.contexts[1].AllocVirtual(1, cuda.AllocationOptions{})
	r.ok(err)
	seen := func(p uint64) string {
		for _, g := range ranges {
			if g.Base <= p && p < g.End {
				return fmt.Sprintf("%d from %d, peer %v", g.End-g.Base, p-g.Base, g.Peer)
			}
		}
		return "no"
	}
	check := func(when string, want ...string) {
		t.Helper()
		l, _ := r.launch(0, "k")
		r.ok(l.Start(r.streams[0]))
		for i, p := range []cuda.Pointer{
			own.Pointer() + 99, own.Pointer() + 100, peers.Pointer(),
			host.Pointer(), mapped.Pointer(),
		} {
			if got := seen(uint64(p)); got != want[i] {
				t.Errorf("%s: %d is %s, want %s", when, i, got, want[i])
			}
		}
		if !slices.IsSortedFunc(ranges, func(a, b cudatest.Range) int { return int(int64(a.Base - b.Base)) }) {
			t.Errorf("%s: not in order", when)
		}
	}
	check("alone", "100 from 99, peer false", "no", "no", "300 from 0, peer true", "no")
	r.ok(r.contexts[0].EnablePeer(r.contexts[1]))
	check("with peer access", "100 from 99, peer false", "no", "200 from 0, peer true", "300 from 0, peer true", "no")
}

// TestUnified: devices reach memory that the driver knows nothing of, and nothing but that.
func TestUnified(t *testing.T) {
	m := cudatest.New(cudatest.Config{Unified: true, Pageable: true})
	d, err := m.Open()
	if errors.Is(err, cuda.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	device, err := d.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := device.Primary()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := c.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.NewStream(cuda.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mine := make([]byte, 64)
	mine[63] = 7
	at := cuda.Pointer(uintptr(unsafe.Pointer(&mine[0])))
	if err := errors.Join(s.Copy(memory.Pointer(), at, 64), s.Synchronize()); err != nil {
		t.Error(err)
	}
	if got := m.Bytes(memory.Pointer(), 64); got[63] != 7 {
		t.Errorf("copied %v", got)
	}
	if err := s.Copy(memory.Pointer(), 8, 64); err == nil {
		t.Error("what is at 8 was copied")
	}
}
