package ranktest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
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
	Abandons bool              // the test leaves operands behind, so the machine need not be clean in the end
}

// Emulated are GPUs on which kernels run, or the test is skipped. The machine must be clean in the
// end, when the contexts have been closed.
func Emulated(t testing.TB, c cudatest.Config, o emulate.Options) *GPUs {
	t.Helper()
	emulate.Need(t)
	g, err := Emulate(c, o, t.TempDir())
	return g.until(t, err)
}

// Emulate is Emulated without a test: the caller closes the GPUs, whose kernels are kept in a
// directory. The error is [cuda.ErrUnsupported] where kernels cannot run.
func Emulate(c cudatest.Config, o emulate.Options, dir string) (*GPUs, error) {
	if _, err := emulate.Compiler(); err != nil {
		return nil, err
	}
	m := emulate.New(c, o)
	g, err := fake(m)
	if err == nil {
		g.Kernels = kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: dir, ReadOnly: []string{}})
	}
	return g, err
}

// Fake are GPUs that have memory and streams, and only the kernels that the test gives them. The
// machine must be clean in the end, when the contexts have been closed.
func Fake(t testing.TB, c cudatest.Config) *GPUs {
	t.Helper()
	g, err := fake(cudatest.New(c))
	return g.until(t, err)
}

func fake(m *cudatest.Machine) (*GPUs, error) {
	driver, err := m.Open()
	if err != nil {
		return nil, err
	}
	g, err := of(driver)
	g.Machine = m
	return g, err
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
	g, err := machine.open(driver)
	return g.until(t, err)
}

// machine keeps the contexts of this machine's GPUs from one test to the next. Making those of four GPUs takes seconds.
var machine keeper

type keeper struct {
	mu   sync.Mutex
	kept []*cuda.Context
}

// open gives the contexts of all of a driver's GPUs, and keeps them. One that a failed kernel has left useless is made
// anew, and all others with it.
func (k *keeper) open(driver *cuda.Driver) (*GPUs, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.ContainsFunc(k.kept, func(c *cuda.Context) bool { return c.Synchronize() != nil }) {
		k.close()
	}
	if k.kept == nil {
		g, err := of(driver)
		if err != nil {
			return g, err
		}
		k.kept = g.Contexts
	}
	return of(driver)
}

func (k *keeper) close() {
	for _, c := range k.kept {
		_ = c.Close() // of a useless one it gives the error that made it so
	}
	k.kept = nil
}

// of gives the primary contexts of all of a driver's GPUs.
func of(driver *cuda.Driver) (*GPUs, error) {
	g := new(GPUs)
	for _, d := range driver.Devices() {
		c, err := d.Primary()
		if err != nil {
			return g, errors.Join(fmt.Errorf("GPU %d: %w", d.Ordinal(), err), g.Close())
		}
		g.Contexts = append(g.Contexts, c)
	}
	return g, nil
}

// until closes the GPUs when the test ends, or ends it with the error of making them.
func (g *GPUs) until(t testing.TB, err error) *GPUs {
	t.Helper()
	if errors.Is(err, cuda.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// Close closes the contexts, and says what is left on a machine that is not real.
func (g *GPUs) Close() error {
	var errs []error
	for _, c := range g.Contexts {
		errs = append(errs, c.Close())
	}
	if g.Machine != nil && !g.Abandons {
		errs = append(errs, g.Machine.Check())
	}
	return errors.Join(errs...)
}

// Options are those of a rank: rank r is on Contexts[r % len(Contexts)].
func (g *GPUs) Options(rank int) []weft.Option {
	o := []weft.Option{weft.WithDevice(g.Contexts[rank%len(g.Contexts)])}
	if g.Kernels != nil {
		o = append(o, weft.WithKernels(g.Kernels))
	}
	return o
}
