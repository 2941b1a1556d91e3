package timing

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// An operation that no package here knows: a fill of memory with a value. It is timed in every way,
// and on the rank where it does nothing that is seen.
func TestMeasureAnOperationOnEmulatedGPUs(t *testing.T) {
	on := ranktest.Emulated(t, cudatest.Config{
		Devices: 2, Attributes: map[cuda.Attribute]int{cuda.L2CacheSize: 4096},
	}, emulate.Options{Limit: time.Minute, Seed: 1})
	g, err := GPUs{
		Contexts: on.Contexts, Operations: 2, Replays: 3, Samples: 3, Deadline: 20 * time.Second, Cache: on.Kernels,
		Patience: 1, // launches run where they are enqueued, so nothing would open the gate
	}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, idle := range []int{-1, 1} { // the rank that does nothing
		all := make([]Figures, g.Ranks)
		err := g.Run(t.Context(), func(ctx context.Context, m *GPU) (err error) {
			const size = 64
			memory, err := m.Context.Alloc(size)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, memory.Close()) }()
			all[m.Me], err = m.Measure(ctx, Operation{
				Name: "fill", Bytes: Bytes{Moved: size},
				Renew: func(bool) error { return m.Stream.Memset(memory.Pointer(), 0, size) },
				Run: func(bool) error {
					if m.Me == idle {
						return nil
					}
					return m.Stream.Memset(memory.Pointer(), 7, size)
				},
				Check: func() error {
					got := make([]byte, size)
					if err := m.Context.Download(got, memory.Pointer()); err != nil {
						return err
					}
					if !bytes.Equal(got, bytes.Repeat([]byte{7}, size)) {
						return Wrongf("rank %d is not full", m.Me)
					}
					return nil
				},
			})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		var problems []string
		if idle >= 0 {
			problems = []string{"rank 1 is not full"}
		}
		for rank, f := range all {
			if f.Verified != (idle < 0) || !slices.Equal(f.Problems, problems) {
				t.Errorf("rank %d: %v %q", rank, f.Verified, f.Problems)
			}
			if f.Graph.Iterations != 3 || f.Ungated.Iterations != 3 || f.Tail.Iterations < 3 || f.Kernel.Iterations != 3 ||
				f.Eager.Iterations != 3 || f.Eager.P50 < f.Issue.P50 || len(f.Times) != 2 || len(f.Free[0]) != 3 {
				t.Errorf("rank %d: %+v", rank, f)
			}
		}
	}
}
