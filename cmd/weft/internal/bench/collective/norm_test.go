package collective

import (
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cuda/cudatest/budget"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestKernels compiles the norm, and holds what it uses to testdata/kernels.txt.
func TestKernels(t *testing.T) {
	budget.Test(t, func(arch string) (all []kernel.Spec) {
		for _, d := range []weft.DType{weft.BFloat16, weft.Float16, weft.Float32} {
			all = append(all, normSpec(d, arch))
		}
		return all
	})
}

// norms measures all-reduces with norms, fused and apart.
func (g GPUs) norms(t *testing.T, s Sweep) {
	t.Helper()
	s.Kind, s.Op, s.Effort = "allreduce", "sum", timing.Effort{}
	for _, s.Apart = range []bool{false, true} {
		if err := s.Validate(true); err != nil {
			t.Fatal(err)
		}
		n := 0
		err := g.Measure(t.Context(), s, func(r measure.Record) error {
			t.Logf("%s of %d bytes, %d ranks, loopback %t: %.2f us", r.Algorithm, r.Bytes, r.Ranks, r.Loopback, r.P50)
			if n++; !r.Verified || r.Op != "allreducenorm" || strings.HasSuffix(r.Algorithm, " + norm") != s.Apart {
				t.Errorf("%+v", r)
			}
			return nil
		})
		if err != nil || n != len(s.Bytes) {
			t.Errorf("%d rows: %v", n, err)
		}
	}
}

func TestNormsOnEmulatedGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow")
	}
	g := emulatedGPUs(t, 2)
	g.Ranks, g.Graph = 2, true
	g.norms(t, Sweep{Bytes: []int64{1, 1000}, DType: "bf16", Hidden: 128})
	g.Ranks, g.Loopback = 4, true
	g.norms(t, Sweep{Bytes: []int64{4000}, DType: "fp32", Hidden: 200, Algorithm: "all-reduce-norm/two-shot"})
	for _, s := range []Sweep{{DType: "int8"}, {DType: "fp32", Hidden: 6}, {DType: "fp32", Op: "max"}} {
		if s.Hidden = max(s.Hidden, 4); s.validateNorm(true) == nil {
			t.Errorf("%+v is valid", s)
		}
	}
}

func TestNormsOnGPUs(t *testing.T) {
	contexts := ranktest.Real(t).Contexts
	for _, loopback := range []bool{true, false} {
		for _, graph := range []bool{true, false} {
			g := GPUs{
				GPUs: timing.GPUs{Contexts: contexts[:1], Operations: 150, Samples: 20, Ranks: 4}, Graph: graph,
				Loopback: loopback,
			}
			g.norms(t, Sweep{
				Bytes: []int64{16 << 10, 128 << 10, 1 << 20, 16 << 20}, DType: "bf16", Hidden: 8192,
			})
		}
	}
}
