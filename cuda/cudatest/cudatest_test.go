package cudatest_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A rig is a machine in use.
type rig struct {
	*testing.T
	m        *cudatest.Machine
	contexts []*cuda.Context
	streams  []*cuda.Stream
}

func newRig(t *testing.T, c cudatest.Config) *rig {
	t.Helper()
	m := cudatest.New(c)
	d, err := m.Open()
	if errors.Is(err, cuda.ErrUnsupported) {
		t.Skip(err)
	}
	r := &rig{T: t, m: m}
	r.ok(err)
	for _, dev := range d.Devices() {
		c, err := dev.Primary()
		r.ok(err)
		s, err := c.NewStream(cuda.StreamOptions{})
		r.ok(err)
		r.contexts, r.streams = append(r.contexts, c), append(r.streams, s)
	}
	return r
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) alloc(device, size int) *cuda.Memory {
	r.Helper()
	m, err := r.contexts[device].Alloc(size)
	r.ok(err)
	return m
}

func (r *rig) launch(device int, name string, args ...any) (*cuda.Launch, *cuda.Module) {
	r.Helper()
	module, err := r.contexts[device].LoadModule([]byte("image"))
	r.ok(err)
	f, err := module.Function(name)
	r.ok(err)
	l, err := f.Prepare(cuda.LaunchConfig{}, args...)
	r.ok(err)
	return l, module
}

func (r *rig) event(device int) *cuda.Event {
	r.Helper()
	e, err := r.contexts[device].NewEvent(cuda.EventOptions{})
	r.ok(err)
	return e
}

// TestMisuse: every mistake gets the driver's answer, and a line at the end that says what it was.
func TestMisuse(t *testing.T) {
	for name, tt := range map[string]struct {
		config cudatest.Config
		do     func(*rig) error
		code   error // what the program sees; nil: nothing
		say    string
	}{
		"no peer access": {cudatest.Config{Devices: 2}, func(r *rig) error {
			return r.streams[0].Memset(r.alloc(1, 64).Pointer(), 1, 64)
		}, cuda.ErrInvalidValue, "device 0 has no peer access"},
		"past the end": {do: func(r *rig) error {
			return r.streams[0].Memset(r.alloc(0, 64).Pointer(), 1, 65)
		}, code: cuda.ErrInvalidValue, say: "no memory of the machine"},
		"freed": {do: func(r *rig) error {
			m := r.alloc(0, 64)
			r.ok(m.Close())
			return r.streams[0].Copy(m.Pointer(), m.Pointer(), 1)
		}, code: cuda.ErrInvalidValue, say: "no memory of the machine"},
		"no access to a mapping": {cudatest.Config{Devices: 2}, func(r *rig) error {
			v, err := r.contexts[0].AllocVirtual(1, cuda.AllocationOptions{})
			r.ok(err)
			r.ok(r.contexts[1].EnablePeer(r.contexts[0])) // which does not help
			return r.streams[1].Memset(v.Pointer(), 1, 1)
		}, cuda.ErrInvalidValue, "device 1 has no access"},
		"pageable": {do: func(r *rig) error {
			return r.streams[0].Upload(r.alloc(0, 64).Pointer(), make([]byte, 64))
		}, say: "not pinned"},
		"event of another context": {cudatest.Config{Devices: 2}, func(r *rig) error {
			return r.event(0).Record(r.streams[1])
		}, cuda.ErrInvalidContext, "the stream is device 1's"},
		"kernel of another context": {cudatest.Config{Devices: 2}, func(r *rig) error {
			r.m.Kernel("k", func(*cudatest.Call) {})
			l, _ := r.launch(0, "k")
			return l.Start(r.streams[1])
		}, cuda.ErrInvalidContext, "the stream is device 1's"},
		"stream destroyed elsewhere": {do: func(r *rig) error {
			other, err := r.contexts[0].Device().Primary()
			r.ok(err)
			s, err := other.NewStream(cuda.StreamOptions{})
			r.ok(err)
			w := r.contexts[0].WrapStream(s.Handle())
			r.ok(errors.Join(other.Close(), s.Close())) // in this order it is not kept for others
			return w.Synchronize()
		}, code: cuda.ErrInvalidHandle, say: "destroyed or never made"},
		"wild kernel": {do: func(r *rig) error {
			r.m.Kernel("k", func(c *cudatest.Call, p cuda.Pointer) { c.Bytes(p, 8)[0] = 1 })
			l, _ := r.launch(0, "k", r.alloc(0, 4).Pointer())
			r.ok(func() error {
				if err := l.Start(r.streams[0]); !errors.Is(err, cuda.ErrIllegalAddress) {
					return errors.Join(errors.New("the stray access was not seen"), err)
				}
				return nil
			}())
			return r.streams[0].Synchronize() // the context is lost
		}, code: cuda.ErrIllegalAddress, say: "kernel k: "},
		"allocation in a capture": {do: func(r *rig) error {
			_, err := r.streams[0].Capture(func() error { _, err := r.contexts[0].Alloc(1); return err })
			return err
		}, code: cuda.ErrCaptureUnsupported, say: "cuMemAlloc during a capture"},
		"query in a capture": {do: func(r *rig) error {
			_, err := r.streams[0].Capture(func() error { _, err := r.streams[0].Query(); return err })
			return err
		}, code: cuda.ErrCaptureUnsupported, say: "cuStreamQuery on a stream that captures"},
		"event from outside of the capture": {do: func(r *rig) error {
			e := r.event(0)
			r.ok(e.Record(r.streams[0]))
			_, err := r.streams[0].Capture(func() error { return r.streams[0].WaitEvent(e) })
			return err
		}, code: cuda.ErrCaptureIsolation, say: "outside of the capture"},
		"unjoined": {cudatest.Config{}, func(r *rig) error {
			e := r.event(0)
			side, err := r.contexts[0].NewStream(cuda.StreamOptions{})
			r.ok(err)
			_, err = r.streams[0].Capture(func() error { return errors.Join(e.Record(r.streams[0]), side.WaitEvent(e)) })
			return err
		}, cuda.ErrCaptureUnjoined, "not been joined"},
		"the end of no capture": {do: func(r *rig) error {
			_, err := r.streams[0].EndCapture()
			return err
		}, code: cuda.Code(401), say: "does not capture"},
		"export of what is not shared": {do: func(r *rig) error {
			a, err := r.contexts[0].NewAllocation(1, cuda.AllocationOptions{})
			r.ok(err)
			_, err = a.ExportFD()
			return err
		}, code: cuda.ErrInvalidValue, say: "made to be shared by 0x0"},
		"own IPC handle": {do: func(r *rig) error {
			h, err := r.contexts[0].IPCHandle(r.alloc(0, 64).Pointer())
			r.ok(err)
			_, err = r.contexts[0].OpenIPC(h)
			return err
		}, code: cuda.ErrInvalidContext, say: "own memory"},
		"released twice": {do: func(r *rig) error {
			c, err := r.contexts[0].Device().Primary()
			r.ok(err)
			r.ok(c.Close())
			r.ok(r.streams[0].Close())
			r.ok(r.contexts[0].Close())
			return r.contexts[0].WrapStream(0).Synchronize()
		}, code: cuda.ErrInvalidContext, say: "which is not held"},
		"unaligned": {do: func(r *rig) error {
			return r.streams[0].Memset32(r.alloc(0, 64).Pointer().Add(1), 1, 1)
		}, code: cuda.ErrInvalidValue, say: "not aligned"},
		"threads": {do: func(r *rig) error {
			r.m.Kernel("k", func(*cudatest.Call) {})
			module, err := r.contexts[0].LoadModule([]byte("image"))
			r.ok(err)
			f, err := module.Function("k")
			r.ok(err)
			l, err := f.Prepare(cuda.LaunchConfig{Block: cuda.Dim{X: 1025}})
			r.ok(err)
			return l.Start(r.streams[0])
		}, code: cuda.ErrInvalidValue, say: "{1025 1 1} threads"},
		"no kernel": {do: func(r *rig) error { r.m.Kernel("k", func() int { return 1 }); return nil }, say: "func() int"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tt.config)
			err := tt.do(r)
			if !errors.Is(err, tt.code) {
				t.Errorf("error %v, want %v", err, tt.code)
			}
			if err := r.m.Check(); err == nil || !strings.Contains(err.Error(), tt.say) {
				t.Errorf("the machine says %v, want %q", err, tt.say)
			}
		})
	}
}

// TestLeaks: everything that can be left behind is missed at the end, each by its name.
func TestLeaks(t *testing.T) {
	r := newRig(t, cudatest.Config{Devices: 2})
	r.m.Kernel("k", func(*cudatest.Call) {})
	r.alloc(0, 64)
	r.event(1)
	host, err := r.contexts[0].AllocHost(64, cuda.HostOptions{})
	r.ok(err)
	_, err = r.contexts[0].RegisterHost(make([]byte, 64), cuda.HostOptions{})
	r.ok(err)
	_, err = r.contexts[0].AllocVirtual(1, cuda.AllocationOptions{})
	r.ok(err)
	l, _ := r.launch(0, "k")
	g, err := r.streams[0].Capture(func() error { return l.Start(r.streams[0]) })
	r.ok(err)
	_, err = g.Instantiate()
	r.ok(err)
	r.m.Fail("cuMemAlloc", 7, cuda.ErrOutOfMemory)
	err = r.m.Check()
	for _, say := range []string{
		"1 references to the context of device 0", "1 references to the context of device 1",
		"3 device allocations", "1 host allocations", // each context has one for its streams
		"1 registrations", "1 mappings", "1 address ranges", "1 references to allocations", "2 streams",
		"1 events", "1 modules", "1 graphs",
		"1 executable graphs", "cuMemAlloc was to fail",
	} {
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("the machine says %v\nwant %q", err, say)
		}
	}
	r.ok(host.Close())
	if err := r.m.Check(); strings.Contains(err.Error(), "host allocations") {
		t.Errorf("%v, after the close", err)
	}
}

// TestKernelsWaitForEachOther: kernels of different streams run side by side, as those of different
// GPUs do.
func TestKernelsWaitForEachOther(t *testing.T) {
	r := newRig(t, cudatest.Config{Devices: 2})
	first, second := make(chan struct{}), make(chan struct{})
	r.m.Kernel("meet", func(c *cudatest.Call) {
		mine, other := first, second
		if c.Device == 1 {
			mine, other = second, first
		}
		close(mine)
		<-other
	})
	errs := make(chan error)
	for i := range 2 {
		l, _ := r.launch(i, "meet")
		go func() { errs <- l.Start(r.streams[i]) }()
	}
	r.ok(errors.Join(<-errs, <-errs))
}

// TestSlice sees memory as typed values, and what another mapping of it was given.
func TestSlice(t *testing.T) {
	r := newRig(t, cudatest.Config{})
	r.m.Kernel("sum", func(c *cudatest.Call, out, in cuda.Pointer, n int32) {
		total := float32(0)
		for _, v := range cudatest.Slice[float32](c, in, int(n)) {
			total += v
		}
		cudatest.Slice[float32](c, out, 1)[0] = total
	})
	in, out := r.alloc(0, 16), r.alloc(0, 4)
	values := []float32{1, 2, 3, 4.5}
	r.ok(r.contexts[0].Upload(in.Pointer(), unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), 16)))
	l, _ := r.launch(0, "sum", out.Pointer(), in.Pointer(), int32(4))
	r.ok(l.Start(r.streams[0]))
	if got := *(*float32)(unsafe.Pointer(&r.m.Bytes(out.Pointer(), 4)[0])); got != 10.5 {
		t.Errorf("sum %v", got)
	}
	if r.m.Bytes(out.Pointer(), 5) != nil {
		t.Error("more bytes than there are")
	}
}

// TestDescriptors: sharing leaves no descriptor behind.
func TestDescriptors(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(entries)
	}
	r := newRig(t, cudatest.Config{})
	c := r.contexts[0]
	before := count()
	for range 10 {
		v, err := c.AllocVirtual(1, cuda.AllocationOptions{Share: cuda.ShareFD})
		r.ok(err)
		file, err := v.Allocations()[0].ExportFD()
		r.ok(err)
		a, err := c.ImportFD(file, v.Size())
		r.ok(err)
		r.ok(errors.Join(file.Close(), a.Close(), v.Close()))
		m := r.alloc(0, 64)
		r.ok(m.Close())
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	r.ok(errors.Join(r.streams[0].Close(), c.Close()))
	r.ok(r.m.Check())
}
