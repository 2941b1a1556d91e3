package gpu_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
)

// legal is the chunk of a plan's smallest message that is at least so many bytes long.
func legal(f *plan.File, chunk int) int {
	n := f.Ranks[0].Input
	if f.Collective == "allgather" || n == 0 {
		n = f.Ranks[0].Output
	}
	if least := (int(f.MinBytes) + n - 1) / n; least > chunk {
		chunk = least
	}
	return (chunk + f.Alignment - 1) / f.Alignment * f.Alignment
}

// testReal runs the plans of another project's package that the folder WEFT_PLANS has.
func testReal(t *testing.T, g func() *ranktest.GPUs, chunks ...int) {
	folder := os.Getenv("WEFT_PLANS")
	if folder == "" {
		t.Skip("WEFT_PLANS names no folder with plans")
	}
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no plans in %s: %v", folder, err)
	}
	gpus := g()
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".json"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			f, err := plan.Load(text)
			if err != nil {
				t.Fatal(err)
			}
			run(t, gpus, len(f.Ranks), memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
				p, err := r.Load(ctx, f)
				if err != nil {
					return err
				}
				for n, chunk := range chunks {
					l := launchOf{dtype: weft.BFloat16, chunk: legal(f, chunk), window: n%2 == 0}
					if err := r.launch(ctx, p, l, uint64(n)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

func TestRealPlansOnEmulatedGPUs(t *testing.T) {
	testReal(t, func() *ranktest.GPUs { return emulatedKernels(t, 4, 4) }, 16, 16, 1024, 48)
}

// TestRealPlansOnGPUs is the same on real ones.
func TestRealPlansOnGPUs(t *testing.T) {
	testReal(t, func() *ranktest.GPUs { return ranktest.Real(t) }, 16, 16, 1024, 48, 64<<10, 250_000, 32)
}
