package weft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// machine is a machine with GPUs, which must be found in order when the test ends.
func machine(t testing.TB, c cudatest.Config) (*cudatest.Machine, *cuda.Driver) {
	t.Helper()
	m := cudatest.New(c)
	d, err := m.Open()
	if errors.Is(err, cuda.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Check(); err != nil {
			t.Errorf("the machine at the end: %v", err)
		}
	})
	return m, d
}

func primary(t testing.TB, d *cuda.Driver, ordinal int) *cuda.Context {
	t.Helper()
	gpu, err := d.Device(ordinal)
	if err != nil {
		t.Fatal(err)
	}
	c, err := gpu.Primary()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// joinEach joins ranks that have options of their own. Those that succeed leave when the test ends.
func joinEach(t testing.TB, options ...[]weft.Option) ([]*weft.Comm, []error) {
	t.Helper()
	meeting, err := bootstrap.NewInProcess(len(options))
	if err != nil {
		t.Fatal(err)
	}
	group, errs := make([]*weft.Comm, len(options)), make([]error, len(options))
	var joining sync.WaitGroup
	for r, b := range meeting {
		joining.Go(func() {
			group[r], errs[r] = weft.Join(testContext(t), append([]weft.Option{weft.WithBootstrap(b)}, options[r]...)...)
		})
	}
	joining.Wait()
	t.Cleanup(func() {
		for _, c := range group {
			if c == nil {
				continue
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return group, errs
}

// joinOn makes one rank on each of the devices.
func joinOn(t testing.TB, d *cuda.Driver, ordinals []int, options ...weft.Option) []*weft.Comm {
	t.Helper()
	var each [][]weft.Option
	for _, o := range ordinals {
		each = append(each, append([]weft.Option{weft.WithDevice(primary(t, d, o))}, options...))
	}
	group, errs := joinEach(t, each...)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return group
}

// TestKernelsAreLogged: what is wrong with the process's cache is told to the communicator's
// logger, unless it has a cache of its own.
func TestKernelsAreLogged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	none := func() (kernel.Compiler, error) { return nil, errors.New("none") }
	cache := kernel.New(kernel.Options{Compiler: none, Dir: file, ReadOnly: []string{}})
	t.Cleanup(weft.SetKernels(cache))
	_, d := machine(t, cudatest.Config{})
	var log bytes.Buffer
	option := weft.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	spec := kernel.Spec{Name: "k", Source: "code", Arch: "sm_90a"}
	for _, tc := range []struct {
		options []weft.Option
		told    bool
	}{{[]weft.Option{option}, true}, {[]weft.Option{option, weft.WithKernels(cache)}, false}} {
		log.Reset()
		g := joinOn(t, d, []int{0}, tc.options...)[0].Device()
		if _, err := g.Kernels().Load(testContext(t), spec); !errors.Is(err, kernel.ErrNoCompiler) {
			t.Error(err)
		}
		if told := strings.Contains(log.String(), "kernel cache not used"); told != tc.told {
			t.Errorf("told: %v, want %v: %s", told, tc.told, log.String())
		}
	}
}

func TestDevice(t *testing.T) {
	_, d := machine(t, cudatest.Config{Devices: 2})
	group := joinOn(t, d, []int{0, 1, 1})
	for r, c := range group {
		g := c.Device()
		if g.Arch() != "sm_90a" || g.SMs() != 132 || g.Context().Device().Ordinal() != min(r, 1) ||
			g.Stream() == nil || c.Operations().AbortWord() == 0 || c.Operations().WaitRecord() == 0 {
			t.Errorf("rank %d: %+v", r, g)
		}
		if err := errors.Join(c.Err(), c.Wait(testContext(t), nil),
			c.Wait(testContext(t), weft.StreamOf(g.Stream()))); err != nil {
			t.Error(err)
		}
	}
	// The least of all ranks counts.
	_, small := machine(t, cudatest.Config{Attributes: map[cuda.Attribute]int{
		cuda.MultiprocessorCount: 100,
		cuda.VirtualMemory:       0,
	}})
	first := group[0]
	group, errs := joinEach(t, []weft.Option{weft.WithDevice(primary(t, d, 1))},
		[]weft.Option{weft.WithDevice(primary(t, small, 0))})
	for r, c := range group {
		if errs[r] != nil || c.Device().SMs() != 100 || c.Device().Virtual() || !first.Device().Virtual() {
			t.Errorf("rank %d beside a smaller GPU: %v", r, errs[r])
		}
	}
	if join(t, 1)[0].Device() != nil {
		t.Error("a device on the host")
	}
	if err := join(t, 1)[0].Wait(testContext(t), nil); err != nil {
		t.Error(err)
	}
	if weft.StreamOf(nil) != nil || (*weft.Stream)(nil).CUDA() != nil {
		t.Error("a stream of nothing")
	}
}

func TestArch(t *testing.T) {
	for want, capability := range map[string][2]int{
		"sm_80": {8, 0}, "sm_89": {8, 9}, "sm_90a": {9, 0},
		"sm_100a": {10, 0}, "sm_121a": {12, 1},
	} {
		_, d := machine(t, cudatest.Config{Attributes: map[cuda.Attribute]int{
			cuda.ComputeCapabilityMajor: capability[0], cuda.ComputeCapabilityMinor: capability[1],
		}})
		if got := joinOn(t, d, []int{0})[0].Device().Arch(); got != want {
			t.Errorf("capability %v is %s, want %s", capability, got, want)
		}
	}
}

func TestWithGPU(t *testing.T) {
	m, d := machine(t, cudatest.Config{Devices: 2})
	options := func(o int) []weft.Option { return []weft.Option{weft.WithDriver(d, nil), weft.WithGPU(o)} }
	group, errs := joinEach(t, options(0), options(1))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	must(t, group, func(c *weft.Comm) error {
		_, err := c.Alloc(testContext(t), 100)
		return err
	})
	must(t, group, func(c *weft.Comm) error { return c.Close() })
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	// Who closes what is left afterwards has nothing to wait for.
	must(t, group, func(c *weft.Comm) error { return c.Operations().Quiesce(testContext(t), "test") })
}

// TestJoinRefusesDevices: what is wrong on one rank is refused on all.
func TestJoinRefusesDevices(t *testing.T) {
	_, d := machine(t, cudatest.Config{Devices: 2, Attributes: map[cuda.Attribute]int{}})
	_, apart := machine(t, cudatest.Config{Devices: 2, NoPeers: true})
	on := func(o int) weft.Option { return weft.WithDevice(primary(t, d, o)) }
	for name, c := range map[string]struct {
		each [][]weft.Option
		want error
		says []string
	}{
		"some on the host": {
			[][]weft.Option{{on(0)}, {}, {on(1)}}, weft.ErrUnsupported, []string{"[0 2]", "[1]", "bind all of them"},
		},
		"no such GPU": {
			[][]weft.Option{{on(0)}, {weft.WithDriver(d, nil), weft.WithGPU(7)}},
			weft.ErrInvalid,
			[]string{"device 7 of 2"},
		},
		"no driver": {
			[][]weft.Option{{on(0)}, {weft.WithDriver(nil, cuda.ErrUnsupported), weft.WithGPU(0)}},
			weft.ErrUnsupported,
			[]string{"join"},
		},
		"one host, no driver": {[][]weft.Option{
			{},
			{weft.WithDriver(nil, cuda.ErrUnsupported), weft.WithGPU(0)},
		}, weft.ErrUnsupported, nil},
		"both":       {[][]weft.Option{{on(0), weft.WithGPU(0)}, {on(1)}}, weft.ErrInvalid, []string{"one of them"}},
		"no context": {[][]weft.Option{{weft.WithDevice(nil)}, {on(1)}}, weft.ErrInvalid, []string{"context"}},
		"apart": {
			[][]weft.Option{
				{weft.WithDevice(primary(t, apart, 0))},
				{weft.WithDevice(primary(t, apart, 1))},
				{weft.WithDevice(primary(t, apart, 0))},
			},
			weft.ErrUnsupported,
			[]string{"rank ", "0000:1b:00.0", "0000:1c:00.0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := joinEach(t, c.each...)
			for r, err := range errs {
				if !errors.Is(err, c.want) {
					t.Errorf("rank %d: %v", r, err)
					continue
				}
				for _, word := range c.says {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("rank %d does not say %q: %v", r, word, err)
					}
				}
			}
		})
	}
	// On the same GPU nobody needs to reach anybody.
	joinOn(t, apart, []int{1, 1})
}

// deviceKinds are machines that share memory in different ways.
func deviceKinds() map[string]cudatest.Config {
	return map[string]cudatest.Config{
		"virtual":        {Devices: 2},
		"no descriptors": {Devices: 2, Attributes: map[cuda.Attribute]int{cuda.HandleTypeFD: 0}},
		"plain":          {Devices: 2, Attributes: map[cuda.Attribute]int{cuda.VirtualMemory: 0}},
	}
}

// visit has this rank's GPU write its mark into every rank's segment, then looks at what the others
// have left in its own.
func visit(ctx context.Context, c *weft.Comm, w *weft.Window, marks int) error {
	cu := c.Device().Context()
	stream := c.Device().Stream()
	for r := range c.Size() {
		p := w.PeerPointer(r)
		if c.Masked(r) {
			if p != 0 {
				return fmt.Errorf("masked rank %d's part is at %v", r, p)
			}
			continue
		}
		if err := errors.Join(stream.Memset(p.Add(marks+c.Rank()), byte(c.Rank()+1), 1), stream.Wait(ctx)); err != nil {
			return err
		}
	}
	if err := c.Operations().VerifySame(ctx, "test", "written", nil); err != nil {
		return err
	}
	got, want := make([]byte, c.Size()), make([]byte, c.Size())
	if err := cu.Download(got, w.Pointer().Add(marks)); err != nil {
		return err
	}
	for r := range want {
		if !c.Masked(r) {
			want[r] = byte(r + 1)
		}
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("marks %v", got)
	}
	return nil
}

func TestAllocDevice(t *testing.T) {
	for name, config := range deviceKinds() {
		t.Run(name, func(t *testing.T) {
			m, d := machine(t, config)
			ctx := testContext(t)
			group := joinOn(t, d, []int{0, 1, 0})
			must(t, group, func(c *weft.Comm) error {
				for i, size := range []int{8, 4097, 5 << 20} {
					w, err := c.Alloc(ctx, size)
					if err != nil {
						return err
					}
					// The machine's memory is zero anyway; a GPU's is not.
					if fills := m.Calls("cuMemsetD8Async"); i == 0 && fills < len(group) {
						return fmt.Errorf("%d fills for %d parts", fills, len(group))
					}
					if w.Size() != size || w.Bytes() != nil || w.Peer(1) != nil || w.Pointer() == 0 ||
						w.PeerPointer(c.Rank()) != w.Pointer() {
						return fmt.Errorf("a window of %d bytes at %v", w.Size(), w.Pointer())
					}
					whole := make([]byte, size)
					if err := c.Device().Context().Download(whole, w.Pointer()); err != nil {
						return err
					}
					if !bytes.Equal(whole, make([]byte, size)) {
						return errors.New("a new window is not zero")
					}
					if err := c.Operations().VerifySame(ctx, "test", "read", nil); err != nil {
						return err
					}
					x := weft.DeviceTensor(w.Pointer().Add(3), weft.Uint8, 5)
					if x.Pointer() != w.Pointer().Add(3) {
						return fmt.Errorf("a tensor at %v of a window at %v", x.Pointer(), w.Pointer())
					}
					if found, offset, ok := c.Operations().Find(x.Data, 5); !ok || found != w || offset != 3 {
						return fmt.Errorf("found %v at %d: %v", found, offset, ok)
					}
					if _, _, ok := c.Operations().Find(x.Data, size); ok {
						return errors.New("found more than there is")
					}
					if err := visit(ctx, c, w, size-3-c.Size()+1); err != nil {
						return err
					}
					// The last to let go still reaches everyone's part.
					if err := c.Operations().VerifySame(ctx, "test", "seen", nil); err != nil {
						return err
					}
					if c.Rank() != 1 {
						if err := w.Close(); err != nil {
							return err
						}
					}
					if err := c.Operations().VerifySame(ctx, "test", "closed", nil); err != nil {
						return err
					}
					if c.Rank() == 1 {
						for r := range 3 {
							if err := c.Device().Context().Download(whole, w.PeerPointer(r)); err != nil {
								return err
							}
						}
					}
					if err := errors.Join(w.Close(), w.Close()); err != nil {
						return err
					}
				}
				// Windows that Close has to find.
				_, err := c.Alloc(ctx, 0)
				return err
			})
		})
	}
}

func TestAllocDeviceRefuses(t *testing.T) {
	_, d := machine(t, cudatest.Config{Memory: 16 << 20})
	ctx := testContext(t)
	group := joinOn(t, d, []int{0, 0})
	for r, err := range each(group, func(c *weft.Comm) error { _, err := c.Alloc(ctx, -1); return err }) {
		if !errors.Is(err, weft.ErrInvalid) {
			t.Errorf("rank %d allocates less than nothing: %v", r, err)
		}
	}
	for r, err := range each(group, func(c *weft.Comm) error { _, err := c.Alloc(ctx, 64+c.Rank()); return err }) {
		if !errors.Is(err, weft.ErrMismatch) {
			t.Errorf("rank %d allocates another size: %v", r, err)
		}
	}
	// There is room for one of the two.
	for r, err := range each(group, func(c *weft.Comm) error { _, err := c.Alloc(ctx, 10<<20); return err }) {
		if !errors.Is(err, cuda.ErrOutOfMemory) && !errors.Is(err, weft.ErrAborted) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	must(t, group, func(c *weft.Comm) error {
		w, err := c.Alloc(ctx, 2<<20)
		if err != nil {
			return err
		}
		return visit(ctx, c, w, 0)
	})
}

func TestRegisterDevice(t *testing.T) {
	m, d := machine(t, cudatest.Config{Devices: 2})
	ctx := testContext(t)
	const size, offset = 1000, 512
	must(t, joinOn(t, d, []int{0, 1, 1}), func(c *weft.Comm) error {
		cu := c.Device().Context()
		var p cuda.Pointer
		var release func() error
		if c.Rank() == 1 { // kinds need not agree
			memory, err := cu.Alloc(offset + size)
			if err != nil {
				return err
			}
			p, release = memory.Pointer(), memory.Close
		} else {
			v, err := cu.AllocVirtual(offset+size, cuda.AllocationOptions{})
			if err != nil {
				return err
			}
			p, release = v.Pointer(), v.Close
		}
		w, err := c.RegisterDevice(ctx, p.Add(offset), size)
		if err != nil {
			return errors.Join(err, release())
		}
		if w.Pointer() != p.Add(offset) || w.Size() != size {
			return fmt.Errorf("%d bytes at %v registered at %v", w.Size(), w.Pointer(), p)
		}
		clear(m.Bytes(p, offset+size))
		if err := c.Operations().VerifySame(ctx, "test", "zeroed", nil); err != nil {
			return err
		}
		return errors.Join(visit(ctx, c, w, size-3), c.Operations().VerifySame(ctx, "test", "seen", nil), w.Close(),
			c.Operations().VerifySame(ctx, "test", "closed", nil), release())
	})
}

func TestRegisterDeviceRefuses(t *testing.T) {
	_, d := machine(t, cudatest.Config{Devices: 2})
	ctx := testContext(t)
	group := joinOn(t, d, []int{0, 1})
	cu := group[0].Device().Context()
	memory, err := cu.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	other, err := group[1].Device().Context().Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	pinned, err := cu.AllocHost(100, cuda.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer pinned.Close()
	host := new([100]byte)
	var two []*cuda.Allocation
	for range 2 {
		a, err := cu.NewAllocation(100, cuda.AllocationOptions{})
		if err != nil {
			t.Fatal(err)
		}
		two = append(two, a)
	}
	segments, err := cu.Map(two)
	if err != nil {
		t.Fatal(err)
	}
	defer segments.Close()
	for name, c := range map[string]struct {
		p    cuda.Pointer
		size int
		want error
		says string
	}{
		"nothing":        {0, 100, weft.ErrInvalid, "100 bytes at 0x0"},
		"no bytes":       {memory.Pointer(), 0, weft.ErrInvalid, "0 bytes"},
		"less than none": {memory.Pointer(), -5, weft.ErrInvalid, "-5 bytes"},
		"host memory": {
			cuda.Pointer(uintptr(unsafe.Pointer(host))), 100, weft.ErrUnsupported,
			"host memory that CUDA does not know",
		},
		"pinned memory":    {pinned.Pointer(), 100, weft.ErrUnsupported, "pinned host memory"},
		"another GPU's":    {other.Pointer(), 100, weft.ErrInvalid, "another GPU"},
		"more than all":    {memory.Pointer(), 101, weft.ErrUnsupported, "over the end"},
		"beyond by offset": {memory.Pointer().Add(1), 100, weft.ErrUnsupported, "over the end"},
		"two allocations": {
			segments.Pointer().Add(two[0].Size() - 50), 100, weft.ErrUnsupported,
			"memory of several allocations",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for r, err := range each(group, func(comm *weft.Comm) error {
				if comm.Rank() == 0 {
					_, err := comm.RegisterDevice(ctx, c.p, c.size)
					return err
				}
				_, err := comm.RegisterDevice(ctx, other.Pointer(), 100)
				return err
			}) {
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
	must(t, group, func(c *weft.Comm) error {
		if _, err := c.RegisterMemory(ctx, make([]byte, 8)); !errors.Is(err, weft.ErrUnsupported) {
			return fmt.Errorf("plain memory: %w", err)
		}
		return c.Operations().VerifySame(ctx, "test", "nothing lost", c.Err())
	})
	if _, err := join(t, 1)[0].RegisterDevice(ctx, memory.Pointer(), 100); !errors.Is(err, weft.ErrUnsupported) {
		t.Errorf("on the host: %v", err)
	}
}

// TestRegisterDeviceRefusesKinds: memory of kinds that the driver made of Go does not have.
func TestRegisterDeviceRefusesKinds(t *testing.T) {
	_, d := machine(t, cudatest.Config{})
	device := joinOn(t, d, []int{0})[0].Device()
	const p, size = 0x1000, 100
	plain := cuda.PointerInfo{Kind: cuda.OnDevice, Device: device.Context().Device(), IPC: true, Base: p, Size: size}
	managed, pool, mapped := plain, plain, plain
	managed.Managed = true
	pool.IPC = false
	mapped.IPC, mapped.Virtual = false, true
	for _, c := range []struct {
		info  cuda.PointerInfo
		other bool // processes
		says  string
	}{
		{plain, false, ""},
		{plain, true, ""},
		{managed, false, "managed memory"},
		{pool, false, "stream-ordered pool"},
		{pool, true, "stream-ordered pool"},
		{mapped, false, ""},
		{mapped, true, "not made to be shared by descriptors"},
	} {
		err := device.RefuseSegment(p, size, c.info, c.other)
		if (err == nil) != (c.says == "") || err != nil &&
			(!errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: %v, want %q", c.info, err, c.says)
		}
	}
}

// TestDeviceFails makes every call of the driver that gets something fail in turn: nothing stays
// behind, and every rank hears of it.
func TestDeviceFails(t *testing.T) {
	calls := []string{
		"cuStreamCreateWithPriority", "cuMemHostAlloc", "cuMemHostGetDevicePointer", "cuMemCreate",
		"cuMemAddressReserve", "cuMemMap",
		"cuMemSetAccess", "cuMemsetD8Async", "cuStreamQuery", "cuMemRetainAllocationHandle",
		"cuMemGetAllocationGranularity", "cuMemAlloc",
		"cuCtxEnablePeerAccess", "cuDevicePrimaryCtxRetain", "cuDeviceGetUuid", "cuDeviceGetPCIBusId",
		"cuDeviceGetAttribute", "cuDeviceCanAccessPeer",
		"cuMemHostRegister", "cuPointerGetAttributes", "cuMemGetAddressRange",
	}
	step := 1
	if testing.Short() {
		step = 4
	}
	for kind, config := range deviceKinds() {
		if testing.Short() && kind != "virtual" {
			continue
		}
		for _, call := range calls {
			t.Run(kind+"/"+call, func(t *testing.T) {
				for skip := 0; ; skip += step {
					m, d := machineOf(t, config)
					m.Fail(call, skip, cuda.ErrOutOfMemory)
					use(t, d)
					err := m.Check()
					if err != nil && strings.Contains(err.Error(), "was not called often enough") {
						if skip == 0 && !strings.Contains(err.Error(), "\n") {
							return // not a call of this kind of machine
						}
						if strings.Contains(err.Error(), "\n") {
							t.Error(err)
						}
						return
					}
					if err != nil {
						t.Fatalf("after call %d failed: %v", skip, err)
					}
				}
			})
		}
	}
}

func machineOf(t *testing.T, config cudatest.Config) (*cudatest.Machine, *cuda.Driver) {
	t.Helper()
	m := cudatest.New(config)
	d, err := m.Open()
	if errors.Is(err, cuda.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m, d
}

// use joins, makes windows and leaves. Whatever fails, no rank waits for its deadline.
func use(t *testing.T, d *cuda.Driver) {
	options := func(o int) []weft.Option {
		return []weft.Option{weft.WithDriver(d, nil), weft.WithGPU(o), weft.WithDeadline(20 * time.Second)}
	}
	group, errs := joinEach(t, options(0), options(1))
	if err := errors.Join(errs...); err != nil {
		if errors.Is(err, weft.ErrTimeout) {
			t.Error(err)
		}
		for r, err := range errs {
			if err == nil {
				t.Errorf("rank %d joined while another did not", r)
				_ = group[r].Close()
			}
		}
		return
	}
	for r, err := range each(group, func(c *weft.Comm) error {
		_, err := c.Alloc(testContext(t), 100)
		if err != nil {
			return err
		}
		memory, err := c.Device().Context().Alloc(100)
		if err != nil {
			c.Abort()
			return err
		}
		w, err := c.RegisterDevice(testContext(t), memory.Pointer(), 100)
		if err == nil {
			err = errors.Join(w.Close(), c.Operations().VerifySame(testContext(t), "test", "closed", nil))
		}
		return errors.Join(err, memory.Close())
	}) {
		if errors.Is(err, weft.ErrTimeout) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	for _, err := range each(group, func(c *weft.Comm) error { return c.Close() }) {
		if err != nil {
			t.Error(err)
		}
	}
}

// spin is a kernel that waits as kernels of Weft do: for the abort word, or for a word that a test
// sets when it wants the wait to be over without.
type spin struct {
	started chan struct{}
	let     atomic.Bool
}

func newSpin(m *cudatest.Machine) *spin {
	s := &spin{started: make(chan struct{}, 8)}
	m.Kernel("spin", func(c *cudatest.Call, abort cuda.Pointer) {
		s.started <- struct{}{}
		word := (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(c.Bytes(abort, 8))))
		for word.Load() == 0 && !s.let.Load() {
			time.Sleep(100 * time.Microsecond)
		}
	})
	m.Kernel("stuck", func(*cudatest.Call) {
		s.started <- struct{}{}
		for !s.let.Load() {
			time.Sleep(100 * time.Microsecond)
		}
	})
	m.Kernel("give up", func(c *cudatest.Call, at cuda.Pointer, cause uint32, peer int32) {
		r := (*device.Record)(unsafe.Pointer(unsafe.SliceData(c.Bytes(at, device.RecordBytes))))
		if atomic.LoadUint32(&r.State) != device.RecordEmpty {
			return
		}
		r.Op, r.Lane, r.Epoch, r.Peer, r.Cause, r.Expected, r.Seen = 2, 1, 41, peer, cause, 7, 3
		atomic.StoreUint32(&r.State, device.RecordWritten)
	})
	return s
}

// words are those of the only lane there is, which has number 1.
var words = &device.Words{
	Operation: func(op uint32) string { return map[uint32]string{2: "dispatch"}[op] },
	Mismatch:  func(theirs, ours uint64) string { return fmt.Sprintf("it calls %d, this rank %d", theirs, ours) },
	Mirror:    func(theirs, ours uint64) (uint64, uint64) { return ours, theirs },
}

// launch runs a kernel on the Comm's stream.
func launch(c *weft.Comm, name string, arguments ...any) error {
	c.Operations().Lane(words)
	module, err := c.Device().Context().LoadModule([]byte("image"))
	if err != nil {
		return err
	}
	f, err := module.Function(name)
	if err != nil {
		return errors.Join(err, module.Close())
	}
	l, err := f.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 1}, Block: cuda.Dim{X: 1}}, arguments...)
	if err != nil {
		return errors.Join(err, module.Close())
	}
	return errors.Join(l.Start(c.Device().Stream()), module.Close())
}

// TestTooManyRanksOnGPUs: kernels know of fewer ranks than hosts do, and every rank says so.
func TestTooManyRanksOnGPUs(t *testing.T) {
	_, d := machine(t, cudatest.Config{})
	each := make([][]weft.Option, device.MaxRanks+1)
	for r := range each {
		each[r] = []weft.Option{weft.WithDevice(primary(t, d, 0))}
	}
	_, errs := joinEach(t, each...)
	for r, err := range errs {
		if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "ranks on GPUs") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
