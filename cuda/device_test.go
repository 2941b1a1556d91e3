package cuda_test

import (
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

func TestDevice(t *testing.T) {
	_, d := open(t, cudatest.Config{Devices: 3, Version: 13010, Attributes: map[cuda.Attribute]int{cuda.Multicast: 1}})
	if v := d.Version(); v.Major() != 13 || v.Minor() != 1 || v.String() != "13.1" {
		t.Errorf("version %v", v)
	}
	if n := len(d.Devices()); n != 3 {
		t.Fatalf("%d devices", n)
	}
	dev := device(t, d, 2)
	name, err := dev.Name()
	ok(t, err)
	bus, err := dev.PCIBusID()
	ok(t, err)
	uuid, err := dev.UUID()
	ok(t, err)
	sms, err := dev.Multiprocessors()
	ok(t, err)
	architecture, err := dev.Architecture()
	ok(t, err)
	total, err := dev.TotalMemory()
	ok(t, err)
	if name != "cudatest" || bus != "0000:1d:00.0" ||
		uuid.String() != "GPU-cd000000-0000-0000-0000-000000000002" || sms != 132 ||
		architecture != "sm_90a" || total != 1<<30 || dev.Ordinal() != 2 {
		t.Error(name, bus, uuid, sms, architecture, total, dev.Ordinal())
	}
	if !dev.Has(cuda.Multicast) || dev.Has(cuda.HandleTypeFabric) {
		t.Error("capabilities are not what the machine was given")
	}
	for _, ordinal := range []int{-1, 3} {
		_, err := d.Device(ordinal)
		wants(t, err, cuda.ErrInvalidDevice)
	}
}

func TestArchitecture(t *testing.T) {
	for want, capability := range map[string][2]int{
		"sm_80": {8, 0}, "sm_89": {8, 9}, "sm_90a": {9, 0},
		"sm_100a": {10, 0}, "sm_121a": {12, 1},
	} {
		_, d := open(t, cudatest.Config{Attributes: map[cuda.Attribute]int{
			cuda.ComputeCapabilityMajor: capability[0], cuda.ComputeCapabilityMinor: capability[1],
		}})
		if got, err := device(t, d, 0).Architecture(); err != nil || got != want {
			t.Errorf("%v is %s, %v, want %s", capability, got, err, want)
		}
	}
}

func TestPeers(t *testing.T) {
	_, d := open(t, cudatest.Config{Devices: 2})
	a, b := primary(t, d, 0), primary(t, d, 1)
	if can, err := a.Device().CanAccessPeer(b.Device()); !can || err != nil {
		t.Errorf("can access: %v, %v", can, err)
	}
	link, err := a.Device().PeerLink(b.Device())
	ok(t, err)
	if want := (cuda.PeerLink{Access: true, Atomics: true}); link != want {
		t.Errorf("link %+v, want %+v", link, want)
	}
	ok(t, a.EnablePeer(b))
	ok(t, a.EnablePeer(b)) // that it is enabled already is fine
	ok(t, a.DisablePeer(b))
	wants(t, a.DisablePeer(b), cuda.ErrPeerNotEnabled)

	_, d = open(t, cudatest.Config{Devices: 2, NoPeers: true})
	a, b = primary(t, d, 0), primary(t, d, 1)
	if can, err := a.Device().CanAccessPeer(b.Device()); can || err != nil {
		t.Errorf("can access: %v, %v", can, err)
	}
	wants(t, a.EnablePeer(b), cuda.ErrPeerUnsupported)
}

func TestErrors(t *testing.T) {
	m, d := open(t, cudatest.Config{Memory: 1 << 20})
	c := primary(t, d, 0)
	_, err := c.Alloc(2 << 20)
	wants(t, err, cuda.ErrOutOfMemory)
	for _, part := range []string{"cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "cudatest says"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %s", err, part)
		}
	}
	m.Fail("cuMemGetInfo", 0, 4242) // a code that nobody knows
	if _, _, err = c.MemInfo(); err == nil || !strings.Contains(err.Error(), "CUDA error 4242") {
		t.Errorf("error %v", err)
	}
	m.Fail("cuMemGetInfo", 1, cuda.ErrNotSupported)
	_, _, err = c.MemInfo()
	ok(t, err) // the failure lets one call through
	_, _, err = c.MemInfo()
	wants(t, err, cuda.ErrUnsupported)
	wants(t, err, cuda.ErrNotSupported)
	if free, total, err := c.MemInfo(); err != nil || free != 1<<20-4 || total != 1<<20 { // a word for streams
		t.Errorf("%d of %d free, %v", free, total, err)
	}
	if !cuda.ErrIllegalAddress.Sticky() || cuda.ErrOutOfMemory.Sticky() || cuda.ErrNotReady.Sticky() {
		t.Error("the wrong codes lose the context")
	}
}

// TestOpenFails at every step of opening, which must say which.
func TestOpenFails(t *testing.T) {
	for call, code := range map[string]cuda.Code{
		"cuDriverGetVersion": cuda.ErrDeinitialized, "cuInit": cuda.ErrNoDevice,
		"cuDeviceGetCount": cuda.ErrSystemNotReady, "cuDeviceGet": 803,
	} {
		m := cudatest.New(cudatest.Config{})
		m.Fail(call, 0, code)
		_, err := m.Open()
		if err != nil && strings.Contains(err.Error(), "memory files") {
			t.Skip(err)
		}
		wants(t, err, code)
		if err != nil && !strings.Contains(err.Error(), call) {
			t.Errorf("%q does not name %s", err, call)
		}
	}
}
