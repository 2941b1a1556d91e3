package cuda_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

// pair is an argument of two words and a half, so that what follows it must be aligned.
type pair struct {
	At    cuda.Pointer
	Count int32
}

func loadFunction(t *testing.T, c *cuda.Context, name string) *cuda.Function {
	t.Helper()
	module, err := c.LoadModule([]byte("image"))
	keep(t, module, err)
	f, err := module.Function(name)
	ok(t, err)
	if f.Name() != name {
		t.Errorf("the kernel's name is %q", f.Name())
	}
	return f
}

// TestLaunch sees every argument arrive, whatever its size, and the changes between starts.
func TestLaunch(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	type seen struct {
		B     uint8
		P     pair
		S     int16
		F     float32
		D     float64
		Words [3]uint32
		U     uint64
	}
	var calls []seen
	others := 0
	m.Kernel("again", func(_ *cudatest.Call, b uint8, p pair, s int16, f float32, d float64, words [3]uint32, u uint64) {
		others++
		calls = append(calls, seen{b, p, s, f, d, words, u})
	})
	m.Kernel("other", func(_ *cudatest.Call, b uint8) {})
	m.Kernel("record", func(_ *cudatest.Call, b uint8, p pair, s int16, f float32, d float64, words [3]uint32, u uint64) {
		calls = append(calls, seen{b, p, s, f, d, words, u})
	})
	s, f := newStream(t, c), loadFunction(t, c, "record")
	first := seen{1, pair{2, -3}, -4, 5.5, -6.25, [3]uint32{7, 8, 9}, 1 << 63}
	l, err := f.Prepare(cuda.LaunchConfig{}, first.B, first.P, first.S, first.F, first.D, first.Words, first.U)
	ok(t, err)
	ok(t, l.Start(s))
	second := first
	second.P, second.U = pair{1 << 40, 11}, 12
	p, err := cuda.Arg[pair](l, 1)
	ok(t, err)
	*p = second.P
	u, err := cuda.Arg[uint64](l, 6)
	ok(t, err)
	*u = second.U
	ok(t, l.Start(s))
	// Another kernel's launch has the same arguments, also when they change after it was made.
	again, err := l.For(loadFunction(t, c, "again"))
	ok(t, err)
	third := second
	third.U = 13
	*u = third.U
	ok(t, again.Start(s))
	if diff := cmp.Diff([]seen{first, second, third}, calls); diff != "" || others != 1 {
		t.Errorf("%d calls of the other kernel, want 1; arguments (-want +got):\n%s", others, diff)
	}
	if _, err := l.For(loadFunction(t, c, "other")); err == nil || !strings.Contains(err.Error(), "other") {
		t.Errorf("a kernel with other parameters: error %v, want one that names it", err)
	}
	for _, err := range []error{
		func() error { _, err := cuda.Arg[int64](l, 6); return err }(),
		func() error { _, err := cuda.Arg[uint64](l, 7); return err }(),
		func() error { _, err := cuda.Arg[uint64](l, -1); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "record") {
			t.Errorf("error %v, want one that names the kernel", err)
		}
	}
}

// places are of which a kernel may have the first two and more.
type places [4]uint64

func (places) Least() int { return 2 }

// TestLaunchTail: a kernel whose parameter ends earlier than the argument, within the array at its
// end, gets the beginning.
func TestLaunchTail(t *testing.T) {
	type argument[T any] struct {
		Ranks uint64
		At    struct{ Places T }
	}
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	var got []uint64
	m.Kernel("three", func(_ *cudatest.Call, a argument[[3]uint64], after uint32) {
		got = append(a.At.Places[:], uint64(after))
	})
	m.Kernel("one", func(*cudatest.Call, argument[[1]uint64], uint32) {})
	s := newStream(t, c)
	whole := argument[places]{Ranks: 3}
	whole.At.Places = places{5, 6, 7, 8}
	l, err := loadFunction(t, c, "three").Prepare(cuda.LaunchConfig{}, whole, uint32(9))
	ok(t, err)
	ok(t, l.Start(s))
	if diff := cmp.Diff([]uint64{5, 6, 7, 9}, got); diff != "" {
		t.Errorf("the kernel got (-want +got):\n%s", diff)
	}
	plain := argument[[4]uint64]{}
	for name, a := range map[string]any{"one": whole, "three": plain} {
		_, err := loadFunction(t, c, name).Prepare(cuda.LaunchConfig{}, a, uint32(9))
		if !errors.Is(err, cuda.ErrInvalidValue) {
			t.Errorf("kernel %s with a %T: error %v", name, a, err)
		}
	}
}

func TestLaunchShape(t *testing.T) {
	m, d := open(t, cudatest.Config{Devices: 2})
	c := primary(t, d, 1)
	var got []cudatest.Call
	m.Kernel("shape", func(c *cudatest.Call) { got = append(got, *c) })
	s, f := newStream(t, c), loadFunction(t, c, "shape")
	ok(t, f.SetMaxDynamicShared(100<<10))
	ok(t, f.AllowLargeClusters())
	one := cuda.Dim{X: 1, Y: 1, Z: 1}
	for _, tt := range []struct {
		config cuda.LaunchConfig
		want   cudatest.Call
	}{
		{cuda.LaunchConfig{}, cudatest.Call{Grid: one, Block: one}},
		{
			cuda.LaunchConfig{
				Grid: cuda.Dim{X: 4, Y: 3, Z: 2}, Block: cuda.Dim{X: 32, Y: 2}, Shared: 90 << 10,
				Cooperative: true,
			},
			cudatest.Call{
				Grid: cuda.Dim{X: 4, Y: 3, Z: 2}, Block: cuda.Dim{X: 32, Y: 2, Z: 1},
				Shared: 90 << 10, Cooperative: true,
			},
		},
		{
			cuda.LaunchConfig{Grid: cuda.Dim{X: 32}, Cluster: cuda.Dim{X: 16}, Cooperative: true, Dependent: true},
			cudatest.Call{
				Grid: cuda.Dim{X: 32, Y: 1, Z: 1}, Block: one, Cluster: cuda.Dim{X: 16, Y: 1, Z: 1},
				Cooperative: true, Dependent: true,
			},
		},
	} {
		got = nil
		l, err := f.Prepare(tt.config)
		ok(t, err)
		ok(t, l.Start(s))
		if l.Grid() != tt.want.Grid {
			t.Errorf("%v blocks, want %v", l.Grid(), tt.want.Grid)
		}
		l.SetGrid(cuda.Dim{X: 64})
		ok(t, l.Start(s))
		again := tt.want
		tt.want.Device, again.Device, again.Grid = 1, 1, cuda.Dim{X: 64, Y: 1, Z: 1}
		if diff := cmp.Diff([]cudatest.Call{tt.want, again}, got, cmpopts.IgnoreUnexported(cudatest.Call{})); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.config, diff)
		}
	}
	if n, err := f.Occupancy(1024, 100<<10); n != 2 || err != nil {
		t.Errorf("occupancy %d, %v", n, err)
	}
	if n, err := f.MaxClusters(cuda.LaunchConfig{
		Grid: cuda.Dim{X: 8}, Block: cuda.Dim{X: 1024},
		Cluster: cuda.Dim{X: 8},
	}); n != 33 || err != nil {
		t.Errorf("%d clusters, %v", n, err)
	}
	if a, err := f.Attributes(); err != nil || a.Registers != 32 || a.MaxDynamicShared != 100<<10 ||
		a.MaxThreads != 1024 || a.BinaryVersion != 90 {
		t.Errorf("attributes %+v, %v", a, err)
	}
}

func TestLaunchRefusals(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	m.Kernel("two", func(_ *cudatest.Call, _ int32, _ uint64) {})
	f := loadFunction(t, c, "two")
	for name, tt := range map[string]struct {
		config cuda.LaunchConfig
		args   []any
		say    string
	}{
		"int":           {args: []any{1, uint64(2)}, say: "int32"},
		"bool":          {args: []any{int32(1), true}, say: "argument 1"},
		"Go pointer":    {args: []any{int32(1), new(uint64)}, say: "argument 1"},
		"string inside": {args: []any{int32(1), struct{ S string }{}}, say: "field S"},
		"nil":           {args: []any{int32(1), nil}, say: "Pointer(0)"},
		"too few":       {args: []any{int32(1)}, say: "more parameters"},
		"too many":      {args: []any{int32(1), uint64(2), uint64(3)}, say: "3 arguments for 2 parameters"},
		"wrong size":    {args: []any{int32(1), uint32(2)}, say: "has 4 bytes, and the parameter has 8"},
		"shared":        {config: cuda.LaunchConfig{Shared: -1}, say: "shared"},
		"clusters":      {config: cuda.LaunchConfig{Grid: cuda.Dim{X: 5}, Cluster: cuda.Dim{X: 2}}, say: "multiple"},
	} {
		_, err := f.Prepare(tt.config, tt.args...)
		wants(t, err, cuda.ErrInvalidValue)
		if err == nil || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%s: %v, want %q", name, err, tt.say)
		}
	}
	l, err := f.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 16}, Cluster: cuda.Dim{X: 16}}, int32(1), uint64(2))
	ok(t, err)
	if err := l.Start(newStream(t, c)); err == nil ||
		!strings.Contains(err.Error(), "kernel two: cuLaunchKernelEx: CUDA_ERROR_INVALID_CLUSTER_SIZE") {
		t.Errorf("error %v", err)
	}
	module, err := c.LoadModule([]byte("image"))
	keep(t, module, err)
	_, err = module.Function("three")
	wants(t, err, cuda.ErrNotFound)
	_, _, err = module.Global("three")
	wants(t, err, cuda.ErrNotFound)
	_, err = c.LoadModule(nil)
	wants(t, err, cuda.ErrInvalidValue)
	m.Fail("cuFuncLoad", 0, cuda.ErrOutOfMemory)
	_, err = module.Function("two")
	wants(t, err, cuda.ErrOutOfMemory)
	m.Fail("cuModuleLoadDataEx", 0, cuda.ErrNoBinaryForGPU)
	_, err = c.LoadModule([]byte("image"))
	wants(t, err, cuda.ErrNoBinaryForGPU)
}

// TestOldDriver launches plainly where there is no cuLaunchKernelEx, and refuses what would need
// it.
func TestOldDriver(t *testing.T) {
	m, d := open(t, cudatest.Config{Version: 11040})
	c := primary(t, d, 0)
	var got int32
	m.Kernel("store", func(_ *cudatest.Call, v int32) { got = v })
	f := loadFunction(t, c, "store")
	l, err := f.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 3}}, int32(42))
	ok(t, err)
	ok(t, l.Start(newStream(t, c)))
	if got != 42 || m.Calls("cuLaunchKernel") != 1 || m.Calls("cuLaunchKernelEx") != 0 {
		t.Errorf("stored %d by %d plain launches", got, m.Calls("cuLaunchKernel"))
	}
	for _, config := range []cuda.LaunchConfig{{Cooperative: true}, {Dependent: true}, {Cluster: cuda.Dim{X: 1}}} {
		_, err := f.Prepare(config, int32(1))
		wants(t, err, cuda.ErrUnsupported)
		if err != nil && !strings.Contains(err.Error(), "11.6") {
			t.Errorf("%q does not say which driver to install", err)
		}
	}
}

func TestGlobal(t *testing.T) {
	m, d := open(t, cudatest.Config{})
	c := primary(t, d, 0)
	m.Global("counter", 8)
	module, err := c.LoadModule([]byte("image"))
	keep(t, module, err)
	p, size, err := module.Global("counter")
	ok(t, err)
	if size != 8 {
		t.Errorf("%d bytes", size)
	}
	ok(t, c.Upload(p, pattern(8, 1)))
}
