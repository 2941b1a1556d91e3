package cuda_test

import (
	"errors"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

// TestMulticastGroup makes a group of two devices, as two processes would, and takes it down.
func TestMulticastGroup(t *testing.T) {
	m, d := open(t, cudatest.Config{Devices: 2, Attributes: map[cuda.Attribute]int{cuda.Multicast: 1}})
	a, b := primary(t, d, 0), primary(t, d, 1)
	shared := cuda.AllocationOptions{Share: cuda.ShareFD}
	size, err := d.MulticastGranularity(2, 1, shared)
	ok(t, err)
	onA, err := a.NewMulticastGroup(2, size, shared)
	ok(t, err)
	fd, err := onA.ExportFD()
	ok(t, err)
	onB, err := b.ImportMulticastFD(fd, size)
	ok(t, errors.Join(err, fd.Close()))
	for _, g := range []*cuda.MulticastGroup{onA, onB} {
		ok(t, g.Add())
	}
	for i, g := range []*cuda.MulticastGroup{onA, onB} {
		c := []*cuda.Context{a, b}[i]
		own, err := c.AllocVirtual(size, shared)
		ok(t, err)
		ok(t, g.Bind(own.Allocations()[0]))
		all, err := c.Map([]*cuda.Allocation{g.Allocation})
		ok(t, err)
		if all.Size() != size || m.Bytes(own.Pointer(), size) == nil {
			t.Errorf("device %d: %d bytes", i, all.Size())
		}
		ok(t, g.Unbind())
		ok(t, all.Close())
		ok(t, own.Close())
		if err := errors.Join(g.Add(), g.Bind(nil)); !errors.Is(err, cuda.ErrClosed) {
			t.Errorf("device %d, a closed group: %v", i, err)
		}
	}
}

// TestMulticastRefused: devices without multicast, and a group that is used in another order than it is made.
func TestMulticastRefused(t *testing.T) {
	_, none := open(t, cudatest.Config{})
	if _, err := primary(t, none, 0).NewMulticastGroup(1, 2<<20, cuda.AllocationOptions{}); !errors.Is(err,
		cuda.ErrNotSupported) {
		t.Errorf("no multicast: %v", err)
	}
	m, d := openFaulty(t, cudatest.Config{Devices: 2, Attributes: map[cuda.Attribute]int{cuda.Multicast: 1}})
	a := primary(t, d, 0)
	if _, err := a.NewMulticastGroup(0, 2<<20, cuda.AllocationOptions{}); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("no devices: %v", err)
	}
	g, err := a.NewMulticastGroup(2, 2<<20, cuda.AllocationOptions{})
	ok(t, err)
	own, err := a.AllocVirtual(2<<20, cuda.AllocationOptions{})
	ok(t, err)
	ok(t, g.Add())
	for what, err := range map[string]error{
		"memory of one device of two": g.Bind(own.Allocations()[0]), "the same device again": g.Add(),
		"nothing is bound": g.Unbind(),
	} {
		if !errors.Is(err, cuda.ErrInvalidValue) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ok(t, errors.Join(g.Close(), own.Close()))
	if m.Check() == nil {
		t.Error("mistakes were not noted")
	}
}
