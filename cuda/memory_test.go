package cuda_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}

func TestCopies(t *testing.T) {
	m, d := open(t, cudatest.Config{Devices: 2})
	a, b := primary(t, d, 0), primary(t, d, 1)
	const size = 10000
	onA, onB := alloc(t, a, size), alloc(t, b, size)
	if onA.Size() != size {
		t.Errorf("size %d", onA.Size())
	}
	host, err := a.AllocHost(size, cuda.HostOptions{WriteCombined: true})
	keep(t, host, err)
	if host.Size() != size || len(host.Bytes()) != size {
		t.Errorf("host memory of %d and %d bytes", host.Size(), len(host.Bytes()))
	}
	s := newStream(t, a)
	want := pattern(size, 3)
	copy(host.Bytes(), want)
	ok(t, s.Upload(onA.Pointer(), host.Bytes()))
	ok(t, s.CopyPeer(onB.Pointer(), b, onA.Pointer(), a, size))
	got := make([]byte, size)
	ok(t, b.Download(got, onB.Pointer()))
	if !bytes.Equal(got, want) {
		t.Error("up, across and down again is something else")
	}
	ok(t, s.Copy(onA.Pointer(), onA.Pointer().Add(size/2), size/2))
	ok(t, s.Memset(onA.Pointer().Add(100), 0xab, 3))
	ok(t, s.Memset32(onA.Pointer().Add(200), 0x01020304, 2))
	copy(want, want[size/2:])
	copy(want[100:], []byte{0xab, 0xab, 0xab})
	copy(want[200:], []byte{4, 3, 2, 1, 4, 3, 2, 1})
	ok(t, s.Download(host.Bytes(), onA.Pointer()))
	if !bytes.Equal(host.Bytes(), want) {
		t.Error("copied and filled is something else")
	}
	ok(t, a.Upload(onA.Pointer(), pattern(size, 9)))
	if !bytes.Equal(m.Bytes(onA.Pointer(), size), pattern(size, 9)) {
		t.Error("a plain upload is something else")
	}
	// Nothing is no call, on whatever address; less than nothing is an error.
	before := m.Calls("cuMemcpyDtoDAsync")
	for _, err := range []error{
		s.Upload(0, nil), s.Download(nil, 0), s.Copy(0, 0, 0), s.CopyPeer(0, a, 0, b, 0), s.Memset(0, 1, 0),
		s.Memset32(0, 1, 0),
		a.Upload(0, nil), a.Download(nil, 0),
	} {
		ok(t, err)
	}
	for _, err := range []error{s.Copy(0, 0, -1), s.CopyPeer(0, a, 0, b, -1), s.Memset(0, 1, -1), s.Memset32(0, 1, -1)} {
		wants(t, err, cuda.ErrInvalidValue)
	}
	if m.Calls("cuMemcpyDtoDAsync") != before {
		t.Error("an empty copy reached the driver")
	}
	for _, size := range []int{0, -1} {
		_, err := a.Alloc(size)
		wants(t, err, cuda.ErrInvalidValue)
		_, err = a.AllocHost(size, cuda.HostOptions{})
		wants(t, err, cuda.ErrInvalidValue)
	}
}

func TestRegisterHost(t *testing.T) {
	_, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	memory := pattern(1<<13, 1) // Go's memory will do here: nothing is asynchronous
	host, err := c.RegisterHost(memory, cuda.HostOptions{ReadOnly: true})
	keep(t, host, err)
	s := newStream(t, c)
	dst := alloc(t, c, len(memory))
	ok(t, s.Upload(dst.Pointer(), host.Bytes()))
	ok(t, s.Copy(dst.Pointer(), host.Pointer().Add(1), 100)) // by the device's address of it
	got := make([]byte, 100)
	ok(t, c.Download(got, dst.Pointer()))
	if !bytes.Equal(got, memory[1:101]) {
		t.Error("the device reads something else")
	}
	_, err = c.RegisterHost(memory, cuda.HostOptions{})
	wants(t, err, cuda.ErrHostAlreadyRegistered)
	_, err = c.RegisterHost(nil, cuda.HostOptions{})
	wants(t, err, cuda.ErrInvalidValue)
}

// TestHostFailsHalfWay: memory whose device address cannot be had is given back.
func TestHostFailsHalfWay(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	m.Fail("cuMemHostGetDevicePointer", 0, cuda.ErrInvalidValue)
	_, err := c.AllocHost(1<<12, cuda.HostOptions{})
	wants(t, err, cuda.ErrInvalidValue)
	m.Fail("cuMemHostGetDevicePointer", 0, cuda.ErrInvalidValue)
	_, err = c.RegisterHost(make([]byte, 1<<12), cuda.HostOptions{IOMemory: true})
	wants(t, err, cuda.ErrInvalidValue)
}

func TestInspect(t *testing.T) {
	_, d := open(t, cudatest.Config{Devices: 2})
	a, b := primary(t, d, 0), primary(t, d, 1)
	plain := alloc(t, b, 1000)
	host, err := b.AllocHost(500, cuda.HostOptions{})
	keep(t, host, err)
	virtual, err := b.AllocVirtual(1, cuda.AllocationOptions{Share: cuda.ShareFD}, a.Device(), b.Device())
	keep(t, virtual, err)
	for name, tt := range map[string]struct {
		p    cuda.Pointer
		want cuda.PointerInfo
	}{
		"device": {plain.Pointer().Add(77), cuda.PointerInfo{
			Kind: cuda.OnDevice, Device: b.Device(), IPC: true,
			Base: plain.Pointer(), Size: 1000,
		}},
		"host": {host.Pointer().Add(7), cuda.PointerInfo{
			Kind: cuda.Host, Device: b.Device(),
			Base: host.Pointer(), Size: 500,
		}},
		"virtual": {virtual.Pointer().Add(1 << 20), cuda.PointerInfo{
			Kind: cuda.OnDevice, Device: b.Device(), Virtual: true, Share: cuda.ShareFD, Base: virtual.Pointer(), Size: 2 << 20,
		}},
		"nobody's": {12345, cuda.PointerInfo{}},
	} {
		got, err := a.Inspect(tt.p)
		if err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, tt.want)
		}
	}
}

// TestIPC shares memory between two machines, which play two processes.
func TestIPC(t *testing.T) {
	_, d := open(t, cudatest.Config{})
	_, e := open(t, cudatest.Config{Devices: 2})
	owner, user := primary(t, d, 0), primary(t, e, 1)
	memory := alloc(t, owner, 4096)
	ok(t, owner.Upload(memory.Pointer(), pattern(4096, 5)))
	h, err := owner.IPCHandle(memory.Pointer().Add(100))
	ok(t, err)
	opened, err := user.OpenIPC(h)
	keep(t, opened, err)
	got := make([]byte, 10)
	ok(t, user.Download(got, opened.Pointer().Add(4000)))
	if !bytes.Equal(got, pattern(4096, 5)[4000:4010]) {
		t.Error("the other process sees something else")
	}
	ok(t, user.Upload(opened.Pointer(), []byte("written by the other")))
	got = make([]byte, 20)
	ok(t, owner.Download(got, memory.Pointer()))
	if string(got) != "written by the other" {
		t.Errorf("the owner sees %q", got)
	}
	_, err = user.OpenIPC(cuda.IPCHandle{1, 2, 3})
	wants(t, err, cuda.ErrInvalidValue)
	virtual, err := owner.AllocVirtual(1, cuda.AllocationOptions{})
	keep(t, virtual, err)
	_, err = owner.IPCHandle(virtual.Pointer())
	wants(t, err, cuda.ErrInvalidValue)
}

// TestVirtual makes, shares, imports and maps memory, on several devices.
func TestVirtual(t *testing.T) {
	m, d := open(t, cudatest.Config{Devices: 2})
	_, e := open(t, cudatest.Config{Devices: 2})
	a, b := primary(t, d, 0), primary(t, d, 1)
	least, best, err := a.Device().Granularity(cuda.AllocationOptions{Share: cuda.ShareFD})
	ok(t, err)
	if least != 2<<20 || best != 2<<20 {
		t.Errorf("granularity %d, %d", least, best)
	}
	v, err := a.AllocVirtual(3<<20, cuda.AllocationOptions{Share: cuda.ShareFD, RDMA: true}, a.Device(), b.Device())
	keep(t, v, err)
	if v.Size() != 4<<20 {
		t.Errorf("size %d, want it rounded up", v.Size())
	}
	ok(t, newStream(t, b).Memset(v.Pointer(), 7, v.Size())) // the other device may write
	share, err := v.Allocations()[0].Share()
	ok(t, err)
	if share != cuda.ShareFD {
		t.Errorf("share %#x", share)
	}
	file, err := v.Allocations()[0].ExportFD()
	ok(t, err)

	peer := primary(t, e, 1)
	imported, err := peer.ImportFD(file, v.Size())
	ok(t, err)
	ok(t, file.Close()) // the import has its own
	more, err := peer.NewAllocation(1, cuda.AllocationOptions{})
	ok(t, err)
	mapped, err := peer.Map([]*cuda.Allocation{imported, more})
	keep(t, mapped, err)
	if mapped.Size() != 6<<20 || len(mapped.Allocations()) != 2 {
		t.Errorf("%d bytes of %d allocations", mapped.Size(), len(mapped.Allocations()))
	}
	ok(t, newStream(t, peer).Memset(mapped.Pointer().Add(3<<20), 9, 3<<20)) // across both
	got := make([]byte, 2)
	ok(t, a.Download(got, v.Pointer().Add(3<<20-1)))
	if got[0] != 7 || got[1] != 9 {
		t.Errorf("the owner sees %v, want what each wrote", got)
	}

	retained, err := a.RetainAllocation(v.Pointer().Add(1<<20), v.Size())
	keep(t, retained, err)
	second, err := retained.ExportFD()
	ok(t, err)
	ok(t, second.Close())
	again, err := b.Map([]*cuda.Allocation{retained}, b.Device())
	ok(t, err)
	ok(t, b.Download(got, again.Pointer()))
	if got[0] != 7 {
		t.Errorf("the second mapping shows %v", got)
	}
	ok(t, again.Close())
	_, err = a.RetainAllocation(alloc(t, a, 10).Pointer(), 10)
	wants(t, err, cuda.ErrInvalidValue)
	if m.Calls("cuMemUnmap") != 1 {
		t.Error("the second mapping was not taken down alone")
	}
}

func TestFabric(t *testing.T) {
	_, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	_, err := c.NewAllocation(1, cuda.AllocationOptions{Share: cuda.ShareFabric})
	wants(t, err, cuda.ErrUnsupported)
	_, err = c.ImportFabric(cuda.FabricHandle{}, 1<<21)
	wants(t, err, cuda.ErrUnsupported)
}

// TestVirtualFailsHalfWay makes every step fail: what the steps before it made must be gone, and
// what was the caller's still be theirs.
func TestVirtualFailsHalfWay(t *testing.T) {
	for _, tt := range []struct {
		call string
		skip int
	}{
		{"cuMemGetAllocationGranularity", 0},
		{"cuMemGetAllocationGranularity", 1},
		{"cuMemCreate", 0},
		{"cuMemCreate", 1},
		{"cuMemCreate", 2},
		{"cuMemAddressReserve", 0},
		{"cuMemMap", 0},
		{"cuMemMap", 1},
		{"cuMemMap", 2},
		{"cuMemSetAccess", 0},
	} {
		m, d := open(t, cudatest.Config{})
		c := primary(t, d, 0)
		m.Fail(tt.call, tt.skip, cuda.ErrOutOfMemory)
		var parts []*cuda.Allocation
		v, err := func() (*cuda.Virtual, error) {
			for range 3 {
				a, err := c.NewAllocation(1, cuda.AllocationOptions{})
				if err != nil {
					return nil, err
				}
				parts = append(parts, a)
			}
			return c.Map(parts)
		}()
		wants(t, err, cuda.ErrOutOfMemory)
		if v != nil {
			t.Errorf("%s %d: a mapping and an error", tt.call, tt.skip)
		}
		for _, a := range parts {
			if _, err := a.Share(); err != nil {
				t.Errorf("%s %d: an allocation is gone: %v", tt.call, tt.skip, err)
			}
			ok(t, a.Close())
		}
	}
	// AllocVirtual's own allocation goes as well.
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	m.Fail("cuMemSetAccess", 0, cuda.ErrInvalidDevice)
	_, err := c.AllocVirtual(1, cuda.AllocationOptions{})
	wants(t, err, cuda.ErrInvalidDevice)
}

// TestCloseGoesOn: a failure to take one thing down does not keep the rest.
func TestCloseGoesOn(t *testing.T) {
	m, d := openFaulty(t, cudatest.Config{})
	c, err := device(t, d, 0).Primary()
	ok(t, err)
	v, err := c.AllocVirtual(1, cuda.AllocationOptions{})
	ok(t, err)
	m.Fail("cuMemAddressFree", 0, cuda.ErrDeinitialized)
	err = v.Close()
	wants(t, err, cuda.ErrDeinitialized)
	if m.Calls("cuMemUnmap") != 1 || m.Calls("cuMemRelease") != 1 {
		t.Error("the mapping or the allocation was left")
	}
	ok(t, c.Close())
	if err := m.Check(); err == nil || errors.Is(err, cuda.ErrDeinitialized) {
		t.Errorf("the machine says %v, want one address range left behind", err)
	}
}
