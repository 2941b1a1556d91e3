package weft_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

const withMulticast = "WEFT_MULTICAST"

// multicastMachine has GPUs with multicast.
func multicastMachine(t *testing.T, devices int) (*cudatest.Machine, *cuda.Driver) {
	return machine(t, cudatest.Config{
		Devices: devices, Attributes: map[cuda.Attribute]int{cuda.Multicast: 1},
	})
}

// TestMulticastWindows: windows have multicast addresses if they were asked for, and those of operations and of
// callers' memory never; without being asked no group is made, nor with a rank alone.
func TestMulticastWindows(t *testing.T) {
	for _, asked := range []bool{false, true} {
		ctx := testContext(t)
		m, d := multicastMachine(t, 3)
		if asked {
			t.Setenv(withMulticast, "1")
		}
		group := joinOn(t, d, []int{0, 1, 2})
		must(t, group, func(c *weft.Comm) error {
			own, err := c.Device().Context().AllocVirtual(4096, cuda.AllocationOptions{Share: cuda.ShareFD})
			if err != nil {
				return err
			}
			for i, make := range []func() (*weft.Window, error){
				func() (*weft.Window, error) { return c.Alloc(ctx, 5<<20) },
				func() (*weft.Window, error) { return c.Operations().AllocDevice(ctx, 100) },
				func() (*weft.Window, error) { return c.RegisterDevice(ctx, own.Pointer(), 4096) },
			} {
				w, err := make()
				if err != nil {
					return err
				}
				if got := w.Multicast() != 0; got != (asked && i == 0) {
					t.Errorf("asked %t, window %d: %v", asked, i, w.Multicast())
				}
				if err := errors.Join(c.Operations().VerifySame(ctx, "test", "seen", nil), w.Close()); err != nil {
					return err
				}
			}
			return own.Close()
		})
		want := 0
		if asked {
			want = 1
		}
		if got := m.Calls("cuMulticastCreate"); got != want {
			t.Errorf("asked %t: %d groups were made", asked, got)
		}
		must(t, group, func(c *weft.Comm) error { return c.Close() })
	}
	m, d := multicastMachine(t, 1)
	alone := joinOn(t, d, []int{0})
	must(t, alone, func(c *weft.Comm) error {
		w, err := c.Alloc(testContext(t), 100)
		if err != nil || w.Multicast() != 0 || m.Calls("cuMulticastCreate") != 0 {
			t.Errorf("a rank alone: %v, %v", w, err)
		}
		return errors.Join(w.Close(), c.Close())
	})
}

// TestMulticastRefusals: what cannot have multicast does not join, on any rank, and says which way out there is.
func TestMulticastRefusals(t *testing.T) {
	t.Setenv(withMulticast, "1")
	_, d := multicastMachine(t, 2)
	_, none := machine(t, cudatest.Config{Devices: 2})
	_, plain := machine(t, cudatest.Config{
		Devices: 2, Attributes: map[cuda.Attribute]int{cuda.Multicast: 1, cuda.VirtualMemory: 0},
	})
	for want, c := range map[string]struct {
		driver   *cuda.Driver
		ordinals []int
	}{
		"has no multicast": {none, []int{0, 1}}, "ranks 1 and 2 share GPU": {d, []int{0, 1, 1}},
		"no virtual memory": {plain, []int{0, 1}},
	} {
		refusedJoin(t, c.driver, c.ordinals, want, weft.ErrUnsupported)
	}
	t.Setenv(withMulticast, "yes")
	refusedJoin(t, d, []int{0, 1}, "it is 1, 0 or empty", weft.ErrInvalid)
}

func refusedJoin(t *testing.T, d *cuda.Driver, ordinals []int, want string, kind error) {
	t.Helper()
	var each [][]weft.Option
	for _, o := range ordinals {
		each = append(each, []weft.Option{weft.WithDevice(primary(t, d, o))})
	}
	_, errs := joinEach(t, each...)
	for r, err := range errs {
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), withMulticast) {
			t.Errorf("rank %d: %v, want %q", r, err, want)
		}
	}
}

// TestMulticastFails: if a driver refuses, all ranks do, and nothing is left behind; the next window is made.
func TestMulticastFails(t *testing.T) {
	t.Setenv(withMulticast, "1")
	for _, call := range []string{
		"cuMulticastGetGranularity", "cuMulticastCreate", "cuMemExportToShareableHandle", "cuMulticastAddDevice",
		"cuMulticastBindMem", "cuMemImportFromShareableHandle",
	} {
		ctx := testContext(t)
		m, d := multicastMachine(t, 3)
		group := joinOn(t, d, []int{0, 1, 2})
		m.Fail(call, 0, cuda.ErrOutOfMemory)
		for r, err := range each(group, func(c *weft.Comm) error {
			w, err := c.Alloc(ctx, 100)
			if err == nil {
				err = errors.Join(err, w.Close())
			}
			return err
		}) {
			if err == nil {
				t.Errorf("%s fails, and not on rank %d", call, r)
			}
		}
		must(t, group, func(c *weft.Comm) error {
			w, err := c.Alloc(ctx, 100)
			if err != nil {
				return err
			}
			return errors.Join(c.Operations().VerifySame(ctx, "test", "seen", nil), w.Close())
		})
		must(t, group, func(c *weft.Comm) error { return c.Close() })
	}
}

// TestMulticastOfMasked: a window that is made while a rank is masked has no multicast address.
func TestMulticastOfMasked(t *testing.T) {
	t.Setenv(withMulticast, "1")
	ctx := testContext(t)
	_, d := multicastMachine(t, 3)
	group := joinOn(t, d, []int{0, 1, 2})
	must(t, group[2:], func(c *weft.Comm) error { return c.Close() })
	must(t, group[:2], func(c *weft.Comm) error {
		if err := c.SetMask(ctx, 2); err != nil {
			return err
		}
		w, err := c.Alloc(ctx, 100)
		if err != nil {
			return err
		}
		if w.Multicast() != 0 {
			t.Error("it has a multicast address")
		}
		return errors.Join(c.Operations().VerifySame(ctx, "test", "seen", nil), w.Close(), c.Close())
	})
}
