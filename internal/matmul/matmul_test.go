package matmul

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/internal/ranktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestProduct multiplies on an emulated GPU.
func TestProduct(t *testing.T) {
	multiply(t, ranktest.Emulated(t, cudatest.Config{}, emulate.Options{Limit: time.Minute}),
		[]Shape{{64, 64, 32}, {128, 64, 96}})
}

// TestProductOnGPU is the same on a GPU of this machine.
func TestProductOnGPU(t *testing.T) {
	multiply(t, ranktest.Real(t), []Shape{{64, 64, 32}, {128, 64, 96}, {1024, 2048, 4096}})
}

func multiply(t *testing.T, g *ranktest.GPUs, shapes []Shape) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c, cache := g.Contexts[0], cmp.Or(g.Kernels, kernel.New(kernel.Options{}))
	s, err := c.NewStream(cuda.StreamOptions{})
	must(err)
	defer func() { must(s.Close()) }()
	for _, shape := range shapes {
		p, err := New(t.Context(), c, cache, shape, 7)
		must(err)
		must(p.Spoil(s))
		must(s.Synchronize())
		if err := p.Check(); err == nil {
			t.Errorf("%v: what nobody has made is right", shape)
		}
		must(p.Start(s))
		must(s.Synchronize())
		if err := p.Check(); err != nil {
			t.Error(err)
		}
		must(p.Close())
	}
}

func TestRefusals(t *testing.T) {
	for _, s := range []Shape{{}, {64, 64, 0}, {64, 63, 32}, {1, 64, 32}, {64, 64, 16}, {64, 64, 1 << 23}, {-64, 64, 32}} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "multiples of 64") {
			t.Errorf("%v: %v", s, err)
		}
	}
}

// TestKernelCompiles compiles for the oldest GPUs, for Hopper and for the newest, without a
// warning.
func TestKernelCompiles(t *testing.T) {
	cudatest.NVRTC(t)
	cache := kernel.New(kernel.Options{Dir: t.TempDir(), ReadOnly: []string{}})
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100a"} {
		cubin, err := cache.Load(t.Context(), Kernel(arch))
		if err != nil {
			t.Fatalf("%+v", err)
		}
		if cubin.Log != "" {
			t.Errorf("%s: %s", arch, cubin.Log)
		}
	}
}
