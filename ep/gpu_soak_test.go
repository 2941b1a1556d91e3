package ep_test

import (
	"os"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/eptest"
)

// TestSoakOnEmulatedGPUs runs the suite in one order of blocks and threads after another, with
// words that arrive late and torn, for as long as WEFT_EP_SOAK says.
func TestSoakOnEmulatedGPUs(t *testing.T) {
	text, ok := os.LookupEnv("WEFT_EP_SOAK")
	if !ok {
		t.Skip("takes as long as WEFT_EP_SOAK says: 5m, for example")
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("WEFT_EP_SOAK is %q, want a duration", text)
	}
	end := time.Now().Add(length)
	seed := uint64(time.Now().UnixNano())
	rounds := 0
	for ; time.Now().Before(end) && !t.Failed(); seed++ {
		for _, ranks := range []int{2, 2, 3} {
			t.Run("", func(t *testing.T) {
				m := emulatedMachine(t, 1+int(seed%3), emulate.Options{Limit: time.Minute, Seed: seed, Tear: true})
				eptest.RunSome(t, m.engine(t, ranks, gpuDeadline), gpuCases(t))
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
			})
		}
		rounds++
	}
	t.Logf("%d rounds", rounds)
}
