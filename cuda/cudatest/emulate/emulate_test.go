package emulate_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A rig is a machine whose kernels are emulated.
type rig struct {
	testing.TB
	machine  *cudatest.Machine
	cache    *kernel.Cache
	contexts []*cuda.Context
	streams  []*cuda.Stream
	wild     bool // something was done wrong on purpose
}

func newRig(t testing.TB, devices int, o emulate.Options) *rig {
	t.Helper()
	emulate.Need(t)
	t.Setenv("WEFT_EMULATE_SEED", "") // tests say themselves which order they want
	r := &rig{TB: t, machine: cudatest.New(cudatest.Config{
		Devices: devices, Attributes: map[cuda.Attribute]int{cuda.Multicast: 1},
	})}
	r.cache = kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: t.TempDir(), ReadOnly: []string{}})
	emulate.Attach(r.machine, o)
	d, err := r.machine.Open()
	r.ok(err)
	t.Cleanup(func() {
		if err := r.machine.Check(); err != nil && !r.wild {
			t.Error(err)
		}
	})
	for _, dev := range d.Devices() {
		c, err := dev.Primary()
		r.ok(err)
		s, err := c.NewStream(cuda.StreamOptions{})
		r.ok(err)
		t.Cleanup(func() {
			if err := s.Close(); err != nil && !r.wild {
				t.Error(err)
			}
			if err := c.Close(); err != nil && !r.wild {
				t.Error(err)
			}
		})
		r.contexts, r.streams = append(r.contexts, c), append(r.streams, s)
	}
	return r
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%+v", err)
	}
}

// alloc gives words of a device's memory.
func (r *rig) alloc(device, words int) (cuda.Pointer, []uint32) {
	r.Helper()
	m, err := r.contexts[device].Alloc(4 * words)
	r.ok(err)
	r.Cleanup(func() {
		if err := m.Close(); err != nil && !r.wild {
			r.Error(err)
		}
	})
	return m.Pointer(), slice(r.machine.Bytes(m.Pointer(), 4*words))
}

// function compiles a program and finds its kernel "k".
func (r *rig) function(device int, source string) *cuda.Function {
	r.Helper()
	return r.named(device, source, "k")
}

// named compiles a program and finds a kernel of it, which may be in a namespace if it is one of
// those.
func (r *rig) named(device int, source, name string, kernels ...string) *cuda.Function {
	r.Helper()
	s := spec(source)
	s.Kernels = kernels
	cubin, err := r.cache.Load(r.Context(), s)
	r.ok(err)
	m, err := r.contexts[device].LoadModule(cubin.Image())
	r.ok(err)
	r.Cleanup(func() {
		if err := m.Close(); err != nil && !r.wild {
			r.Error(err)
		}
	})
	f, err := m.Function(cubin.Symbol(name))
	r.ok(err)
	return f
}

func (r *rig) start(f *cuda.Function, device, blocks, threads int, arguments ...any) error {
	r.Helper()
	l, err := f.Prepare(cuda.LaunchConfig{
		Grid:  cuda.Dim{X: uint32(blocks)},
		Block: cuda.Dim{X: uint32(threads)},
	}, arguments...)
	r.ok(err)
	return l.Start(r.streams[device])
}

func spec(source string) kernel.Spec {
	return kernel.Spec{Name: "test", Source: source, Headers: device.Headers(), Arch: "sm_90a"}
}
