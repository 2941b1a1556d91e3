package ep

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
)

// starting measures on emulated GPUs, with kernels that are kept in a directory.
func starting(t *testing.T, gpus, ranks int, dir string) (*cudatest.Machine, Start) {
	t.Helper()
	machine, g := emulatedGPUs(t, gpus)
	return machine, Start{
		Contexts: g.Contexts, Ranks: ranks, Rounds: 2, Deadline: 20 * time.Second,
		Kernels: kernel.Options{Compiler: emulate.Compiler, Dir: dir, ReadOnly: []string{}},
	}
}

func TestStartOnEmulatedGPUs(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name        string
		gpus, ranks int
		want        []string
	}{
		{"cold", 2, 2, []string{ColdStart, WarmStart}},
		{"compiled by a process before", 1, 2, []string{FirstStart, WarmStart}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, s := starting(t, tc.gpus, tc.ranks, dir)
			var rows []StartRow
			if err := s.Measure(t.Context(), small(nil),
				func(r StartRow) error { rows = append(rows, r); return nil }); err != nil {
				t.Fatal(err)
			}
			if len(rows) != len(tc.want) {
				t.Fatalf("%d rows", len(rows))
			}
			for i, r := range rows {
				if r.Op != tc.want[i] || r.Rounds != 1+i || r.Ranks != tc.ranks || r.GPUs != tc.gpus || r.Engine != "gpu" {
					t.Errorf("%+v", r)
				}
				if r.Join <= 0 || r.Handle <= 0 || r.Dispatch <= 0 || r.JoinMax < r.Join ||
					r.HandleMax < r.Handle || r.DispatchMax < r.Dispatch || r.Max < r.P50 {
					t.Errorf("times: %+v, %+v", r, r.Stages)
				}
				if most := (r.JoinMax + r.HandleMax + r.DispatchMax) * (1 + 1e-9); r.P50 > most || // sums are rounded
					r.Max < max(r.Join, r.Handle, r.Dispatch) {
					t.Errorf("the sum is %g to %g us, of %+v", r.P50, r.Max, r.Stages)
				}
				if r.Contract != "rank-major bf16" || r.Tokens != 3 || r.Capacity != 3 || r.Hidden != 128 ||
					r.TopK != 2 || r.Experts != 4 || r.DType != "bf16" ||
					r.Layout != "rank-major" {
					t.Errorf("%+v", r.Stages)
				}
			}
		})
	}
	t.Run("other rows than were sent", func(t *testing.T) {
		_, s := starting(t, 1, 2, dir)
		var err error
		_ = alone(t, s, func(ctx context.Context, m *startRank, rounds []*round) error {
			err = m.repeat(ctx, rounds, func(StartRow) error {
				m.arriving++ // from here on
				return nil
			})
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "round 1: dispatch: 3 rows reported, 4 sent") {
			t.Error(err)
		}
	})
	t.Run("a cache that keeps nothing", func(t *testing.T) {
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_, s := starting(t, 1, 2, filepath.Join(file, "below"))
		if err := s.Measure(t.Context(), small(nil), nothing); err == nil ||
			!strings.Contains(err.Error(), "round 1: kernels were compiled again") {
			t.Error(err)
		}
	})
}

func nothing(StartRow) error { return nil }

// alone runs f as a rank that has none beside it, with its rounds.
func alone(t *testing.T, s Start, f func(ctx context.Context, m *startRank, rounds []*round) error) error {
	t.Helper()
	spec, err := small(nil).DeviceSpec(1)
	if err != nil {
		t.Fatal(err)
	}
	rounds := make([]*round, 1+s.Rounds)
	for i := range rounds {
		if rounds[i], err = newRound(1, s.Kernels); err != nil {
			t.Fatal(err)
		}
	}
	g := &timing.GPUs{Contexts: s.Contexts, Ranks: 1, Deadline: s.Deadline}
	return timing.RunTeam(t.Context(), 1, func(ctx context.Context, team *timing.Team, _ int) error {
		return f(ctx, &startRank{gpuRank: gpuRank{
			GPU:      &timing.GPU{GPUs: g, Team: team, Context: s.Contexts[0]},
			expected: expected{ranks: 1, cfg: small(nil), spec: spec},
			batch:    batch{ids: [][]int32{{0, 1, 2, 3, 1, 2}}, weights: []float32{0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
		}}, rounds)
	})
}

// A rank that fails ends the others, and why is told.
func TestStartsEndTogether(t *testing.T) {
	dir := t.TempDir()
	_, s := starting(t, 2, 2, dir)
	enough := errors.New("enough")
	if err := s.Measure(t.Context(), small(nil), func(StartRow) error { return enough }); !errors.Is(err,
		enough) || !strings.Contains(err.Error(), "rank 0: ") {
		t.Errorf("%v", err)
	}
	for _, call := range []string{"cuStreamCreateWithPriority", "cuMemCreate", "cuModuleLoadDataEx"} {
		machine, s := starting(t, 2, 2, dir) // of its own: contexts keep streams, and would make none
		machine.Fail(call, 1, cuda.ErrOutOfMemory)
		// What a rank gives up in a step that all take together, the others may say first: by its
		// text.
		if err := s.Measure(t.Context(), small(nil), nothing); err == nil ||
			!strings.Contains(err.Error(), "CUDA_ERROR_OUT_OF_MEMORY") {
			t.Errorf("%s: %v", call, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if err := s.Measure(ctx, small(nil), nothing); !errors.Is(err, enough) {
		t.Errorf("it went on: %v", err)
	}
}

func TestStartRefusals(t *testing.T) {
	_, s := starting(t, 1, 1, t.TempDir())
	for want, change := range map[string]func(s *Start, e *Shape){
		"no GPUs":           func(s *Start, _ *Shape) { s.Contexts = nil },
		"--ranks 73":        func(s *Start, _ *Shape) { s.Ranks = 73 },
		"rounds -1: want 1": func(s *Start, _ *Shape) { s.Rounds = -1 },
		"rounds 101":        func(s *Start, _ *Shape) { s.Rounds = 101 },
		"tokens 0":          func(_ *Start, e *Shape) { e.Tokens = 0 },
	} {
		start, shape := s, small(nil)
		change(&start, &shape)
		if err := start.Measure(t.Context(), shape, nothing); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
