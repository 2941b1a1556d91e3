package device_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openGPU opens this machine's driver, or skips the test by name where there is none.
// WEFT_REQUIRE_GPU=1 turns the skip into a failure.
func openGPU(t *testing.T) *cuda.Driver {
	t.Helper()
	d, err := cuda.Open()
	if err != nil {
		if os.Getenv("WEFT_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skipf("needs a GPU: %v", err)
	}
	return d
}

// primaries gives a context of the first GPU, and one of the second or, where there is none, of the
// first.
func primaries(t *testing.T, d *cuda.Driver) [2]*cuda.Context {
	t.Helper()
	var contexts [2]*cuda.Context
	all := d.Devices()
	for i := range contexts {
		c, err := all[i%len(all)].Primary()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		contexts[i] = c
	}
	if len(all) > 1 {
		if err := errors.Join(contexts[0].EnablePeer(contexts[1]), contexts[1].EnablePeer(contexts[0])); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(contexts[0].DisablePeer(contexts[1]), contexts[1].DisablePeer(contexts[0])); err != nil {
				t.Error(err)
			}
		})
	}
	return contexts
}

// TestGreet runs the package's example, more often and with memory that reorders.
func TestGreet(t *testing.T) {
	emulate.Need(t)
	machine := emulate.New(cudatest.Config{Devices: 2}, emulate.Options{Tear: true, Seed: 1})
	t.Cleanup(func() {
		if err := machine.Check(); err != nil {
			t.Error(err)
		}
	})
	d, err := machine.Open()
	if err != nil {
		t.Fatal(err)
	}
	hears(t, primaries(t, d), kernel.New(kernel.Options{
		Compiler: emulate.Compiler, Dir: t.TempDir(),
		ReadOnly: []string{},
	}))
}

// TestGreetOnGPU is the same on this machine's GPUs: the first two, or both ranks on one.
func TestGreetOnGPU(t *testing.T) {
	d := openGPU(t)
	cudatest.NVRTC(t)
	hears(t, primaries(t, d), kernel.New(kernel.Options{Dir: t.TempDir(), ReadOnly: []string{}}))
}

func hears(t *testing.T, contexts [2]*cuda.Context, cache *kernel.Cache) {
	t.Helper()
	const times = 100
	all, err := greet(t.Context(), contexts, cache, times)
	if err != nil {
		t.Fatal(err)
	}
	var want [2][]uint32
	for k := range uint32(times) {
		want[0], want[1] = append(want[0], 100*k+1), append(want[1], 100*k)
	}
	if fmt.Sprint(all) != fmt.Sprint(want) {
		t.Errorf("heard %v", all)
	}
}
