package ranktest

import (
	"os"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
)

// GPUs are those that a test has ranks on.
type GPUs struct {
	Contexts []*cuda.Context
	Machine  *cudatest.Machine // of those that are not real
	Kernels  *kernel.Cache     // nil: the user's
}

// Emulated are GPUs on which kernels run, or the test is skipped. The machine must be clean in the
// end, when the contexts have been closed.
func Emulated(t testing.TB, c cudatest.Config, o emulate.Options) *GPUs {
	t.Helper()
	emulate.Need(t)
	m := cudatest.New(c)
	emulate.Attach(m, o)
	g := of(t, m)
	g.Kernels = kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: t.TempDir(), ReadOnly: []string{}})
	return g
}

// Fake are GPUs that have memory and streams, and only the kernels that the test gives them. The
// machine must be clean in the end, when the contexts have been closed.
func Fake(t testing.TB, c cudatest.Config) *GPUs {
	t.Helper()
	return of(t, cudatest.New(c))
}

func of(t testing.TB, m *cudatest.Machine) *GPUs {
	t.Helper()
	driver, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Check(); err != nil {
			t.Error(err)
		}
	})
	return &GPUs{Contexts: primaries(t, driver), Machine: m}
}

// Real are this machine's GPUs, or the test is skipped: WEFT_REQUIRE_GPU=1 makes their absence a
// failure.
func Real(t testing.TB) *GPUs {
	t.Helper()
	driver, err := cuda.Open()
	if err != nil {
		if os.Getenv("WEFT_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skipf("needs a GPU: %v", err)
	}
	return &GPUs{Contexts: primaries(t, driver)}
}

// primaries are the primary contexts of all GPUs, until the test ends.
func primaries(t testing.TB, driver *cuda.Driver) []*cuda.Context {
	t.Helper()
	var all []*cuda.Context
	for _, d := range driver.Devices() {
		c, err := d.Primary()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		all = append(all, c)
	}
	return all
}

// Options are those of a rank: rank r is on Contexts[r % len(Contexts)].
func (g *GPUs) Options(rank int) []weft.Option {
	o := []weft.Option{weft.WithDevice(g.Contexts[rank%len(g.Contexts)])}
	if g.Kernels != nil {
		o = append(o, weft.WithKernels(g.Kernels))
	}
	return o
}
