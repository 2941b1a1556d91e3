package gpu_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric/fabrictest"
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
	gpus := (*ranktest.GPUs)(nil)
	eachReal(t, func(t *testing.T, _ string, f *plan.File) {
		if gpus == nil {
			gpus = g()
		}
		run(t, gpus, len(f.Ranks), memoryBytes, executor.Options{}, patience, realLaunches(f, chunks...))
	})
}

// realLaunches runs a plan with chunks of about so many bytes.
func realLaunches(f *plan.File, chunks ...int) func(ctx context.Context, r *rank) error {
	return func(ctx context.Context, r *rank) error {
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
	}
}

// runner is a test or a benchmark.
type runner[T testing.TB] interface {
	testing.TB
	Run(name string, f func(T)) bool
}

// folderOf is the folder WEFT_PLANS.
func folderOf(t testing.TB) string {
	folder := os.Getenv("WEFT_PLANS")
	if folder == "" {
		t.Skip("WEFT_PLANS names no folder with plans")
	}
	return folder
}

// eachReal gives each plan of the folder, by its name.
func eachReal[T runner[T]](t T, do func(t T, name string, f *plan.File)) {
	folder := folderOf(t)
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no plans in %s: %v", folder, err)
	}
	for _, path := range names {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		t.Run(name, func(t T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			f, err := plan.Load(text)
			if err != nil {
				t.Fatal(err)
			}
			do(t, name, f)
		})
	}
}

// TestRealPlansAcrossOnEmulatedGPUs runs those that have ports on the hosts between which these lead.
func TestRealPlansAcrossOnEmulatedGPUs(t *testing.T) {
	layouts := map[string]string{
		"allgather_groups_port": "aabb", "allreduce_hierarchical": "aabb", "reducescatter_packet_port": "aabb",
		"sendrecv_port": "abcd",
	}
	eachReal(t, func(t *testing.T, name string, f *plan.File) {
		hosts := layouts[name]
		if hosts == "" {
			t.Skip("no port of it leads to a rank that shares no memory")
		}
		g := emulatedKernels(t, len(hosts), 4)
		runAcross(t, g, hosts, twin(t, fabrictest.EFA()), patience, realLaunches(f, 16, 16, 1024, 48))
	})
}

func TestRealPlansOnEmulatedGPUs(t *testing.T) {
	testReal(t, func() *ranktest.GPUs { return emulatedKernels(t, 4, 4) }, 16, 16, 1024, 48)
}

// TestRealPlansOnGPUs is the same on real ones.
func TestRealPlansOnGPUs(t *testing.T) {
	folderOf(t)
	g := ranktest.Real(t)
	testReal(t, func() *ranktest.GPUs { return g }, 16, 16, 1024, 48, 64<<10, 250_000, 32)
}
