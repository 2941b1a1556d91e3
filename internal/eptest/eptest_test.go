package eptest

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/cuda/cudatest/emulate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestHost runs the suite on goroutine ranks: with WEFT_TEST_ALL=1 all cases of each cell, else half as
// many as a cell has details at most. Cells begin at different ones, so cells of a payload have them all.
func TestHost(t *testing.T) {
	h := NewHost()
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	cases := 0
	if !emulate.Everything() && !testing.Short() {
		for _, cell := range allowed(h) {
			cases = max(cases, len(details(cell)))
		}
		cases = (cases + 1) / 2 * len(allowed(h))
	}
	run(t, h, cases, 0, 0)
}
