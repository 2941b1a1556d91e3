package ep_test

import (
	"context"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/device"
)

// TestDomainOnGPUs exchanges between as many ranks as a domain can have: kernels whose sets of ranks
// have two words, through slots and straight to final rows.
func TestDomainOnGPUs(t *testing.T) {
	if !emulate.Everything() || testing.Short() {
		t.Skip("run by make test-all: WEFT_TEST_ALL=1")
	}
	const ranks = device.MaxRanks
	for _, way := range []way{{"slots", valueRows}, {"direct", packedRows}, {"token", tokenRows}} {
		t.Run(way.name, func(t *testing.T) {
			s := sized(way.spec, ranks)
			s.Experts, s.MaxTokens, s.SMs = ranks, 2, 2
			batch := evenly(s, ranks, 1, s.MaxTokens).Batch()
			m := emulatedMachine(t, ranks/2, emulate.Options{Limit: 5 * time.Minute, Seed: 1})
			members(t, m, ranks, s, 2*time.Minute, func(ctx context.Context, r *member) error { return r.batch(ctx, batch) })
		})
	}
}
