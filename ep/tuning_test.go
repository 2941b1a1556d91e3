package ep_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

func TestTuningRefusals(t *testing.T) {
	base := sized(exactRows, 2)
	for _, tc := range []struct {
		name, words string
		kind        error
		engine      ep.Engine
		change      func(s *ep.Spec)
	}{
		{"none", "", nil, ep.HostEngine, func(*ep.Spec) {}},
		{"host", "leave Tuning out", weft.ErrUnsupported, ep.HostEngine, func(s *ep.Spec) { s.Tuning.Combine.Threads = 64 }},
		{"all", "", nil, ep.GPUEngine, func(s *ep.Spec) {
			s.Tuning.Dispatch = ep.KernelTuning{Protocol: ep.FlagProtocol, Units: 4, Senders: 15, Threads: 512, Dependent: 1}
			s.Tuning.Combine = ep.KernelTuning{Protocol: ep.ValueProtocol, Senders: -1, Threads: 64, Dependent: -1}
		}},
		{"units", "want 1, 2 or 4", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) { s.Tuning.Dispatch.Units = 3 }},
		{"units of fp8", "at most 2", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) {
			s.Payload, s.Quantize, s.Hidden, s.Tuning.Dispatch.Units = ep.FP8, weft.BFloat16, 128, 4
		}},
		{"units of combine", "at most 0", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) { s.Tuning.Combine.Units = 1 }},
		{"senders", "want 1 to 15", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) { s.Tuning.Combine.Senders = 16 }},
		{"threads", "a multiple of 32", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) { s.Tuning.Combine.Threads = 96 + 1 }},
		{"threads of a unit", "at most 256", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) { s.Tuning.Dispatch.Threads = 512 }},
		{"dependent", "want 1 or -1", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) { s.Tuning.Dispatch.Dependent = 2 }},
		{"protocol", "invalid(9)", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) { s.Tuning.Dispatch.Protocol = 9 }},
		{"values of any bits", "tune dispatch to flags", weft.ErrUnsupported, ep.GPUEngine, func(s *ep.Spec) {
			s.Payload, s.Quantize, s.Hidden, s.Tuning.Dispatch.Protocol = ep.FP8UE8M0, weft.BFloat16, 512, ep.ValueProtocol
		}},
		{"many values", "want flags from more than", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) {
			s.MaxTokens, s.Tuning.Dispatch.Protocol = 5000, ep.ValueProtocol
		}},
		{"places", "what Tuning.Dispatch is about", weft.ErrUnsupported, ep.GPUEngine, func(s *ep.Spec) { s.Layout, s.Tuning.Dispatch.Threads = ep.ExpertPacked, 256 }},
		{"pulled", "what Tuning.Combine is about", weft.ErrUnsupported, ep.GPUEngine, func(s *ep.Spec) {
			s.Layout, s.Wire, s.Reduction, s.Sum, s.Tuning.Combine.Threads = ep.TokenMajor, ep.PerRank, ep.Partial, ep.Plain, 256
		}},
	} {
		s := base
		tc.change(&s)
		err := s.ValidateOn(tc.engine, 2)
		if tc.kind == nil && err != nil || tc.kind != nil && (!errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.words)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.words)
		}
	}
}

func TestTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "tuning.json")
	t.Setenv("WEFT_TUNING", path)
	if got, err := ep.TuningPath(); got != path || err != nil {
		t.Fatal(got, err)
	}
	table, err := ep.ReadTuningTable(path)
	if err != nil || len(table.Rows) != 0 {
		t.Fatal(table, err)
	}
	here := ep.Hardware{GPU: "a GPU", SMs: 16, Ranks: 2}
	row := func(tokens, threads int) ep.TuningRow {
		s := sized(exactRows, 2)
		s.MaxTokens = tokens
		return ep.TuningRow{Hardware: here, Kind: ep.HandleKindOf(s), Tuning: ep.Tuning{Combine: ep.KernelTuning{Protocol: ep.FlagProtocol, Threads: threads}}, Date: "2026-11-22"}
	}
	for _, r := range []ep.TuningRow{row(64, 64), row(16, 96), row(128, 128), row(16, 256)} {
		table.Put(r)
	}
	if err := table.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := ep.ReadTuningTable(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&ep.TuningTable{Version: table.Version, Rows: []ep.TuningRow{row(64, 64), row(16, 256), row(128, 128)}}, again); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for tokens, want := range map[int]int{8: 0, 9: 256, 16: 256, 17: 0, 33: 64, 64: 64, 65: 128, 129: 0} {
		kind := row(tokens, 0).Kind
		got := 0
		if r := again.Find(here, kind); r != nil {
			got = r.Tuning.Combine.Threads
		}
		if got != want {
			t.Errorf("%d tokens: the row with %d threads, want %d", tokens, got, want)
		}
		columns := kind
		columns.Scales = ep.ColumnMajorScales.String()
		kind.Hidden++
		if again.Find(here, kind) != nil || again.Find(here, columns) != nil || again.Find(ep.Hardware{GPU: "a GPU", SMs: 17, Ranks: 2}, row(tokens, 0).Kind) != nil {
			t.Errorf("%d tokens: a row is found for what it does not hold for", tokens)
		}
	}
	if err := os.WriteFile(path, []byte("{\"version\":99,\"rows\":[{}]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if old, err := ep.ReadTuningTable(path); err != nil || len(old.Rows) != 0 {
		t.Errorf("of another version: %v, %v", old, err)
	}
	if err := os.WriteFile(path, []byte("{\"rows"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ep.ReadTuningTable(path); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), path) {
		t.Errorf("of no table: %v", err)
	}
}

// TestTunedOnGPUs has handles work in ways that nobody would choose: what they give stays the same.
func TestTunedOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for i, tuning := range []ep.Tuning{
			{Dispatch: ep.KernelTuning{Protocol: ep.FlagProtocol, Units: 2, Threads: 64, Dependent: 1}, Combine: ep.KernelTuning{Protocol: ep.FlagProtocol, Threads: 96, Dependent: 1}},
			{Dispatch: ep.KernelTuning{Protocol: ep.ValueProtocol, Units: 1, Threads: 96, Senders: 15, Dependent: -1}, Combine: ep.KernelTuning{Protocol: ep.ValueProtocol, Threads: 512, Senders: 1}},
			{Dispatch: ep.KernelTuning{Protocol: ep.ValueProtocol, Units: 4, Threads: 480, Senders: 1}, Combine: ep.KernelTuning{Protocol: ep.ValueProtocol, Threads: 64, Senders: -1}},
		} {
			for _, way := range []struct {
				name string
				spec ep.Spec
			}{{"exact", exactRows}, {"value", valueRows}, {"direct", directRows}} {
				t.Run(fmt.Sprintf("%d/%s", i, way.name), func(t *testing.T) {
					s := sized(way.spec, ranks)
					s.Hidden, s.SMs, s.Tuning = 1000, 3*ranks, tuning
					batches := []*eptest.Batch{evenly(s, ranks, 1, 6).Batch(), evenly(s, ranks, 2, 1).Batch()}
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						for i, b := range batches {
							if err := r.batch(ctx, b); err != nil {
								return fmt.Errorf("batch %d: %w", i, err)
							}
						}
						return nil
					})
				})
			}
		}
	})
}

// TestTableOnGPUs makes handles that look at a table.
func TestTableOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		s := sized(exactRows, ranks)
		path := filepath.Join(t.TempDir(), "tuning.json")
		t.Setenv("WEFT_TUNING", path)
		table := &ep.TuningTable{Version: 1}
		err := m.engine(t, ranks, gpuDeadline).Ranks(ranks, func(c *weft.Comm) error {
			if _, err := ep.NewHandle(testContext(t), c, s); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), path) {
				return fmt.Errorf("with a table that is named and not there: %w", err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Write(path); err != nil {
			t.Fatal(err)
		}
		want := ep.Tuning{Combine: ep.KernelTuning{Threads: 96}}
		members(t, m, ranks, s, gpuDeadline, func(_ context.Context, r *member) error {
			if got := r.handle.Spec().Tuning; got != (ep.Tuning{}) {
				return fmt.Errorf("with an empty table: %+v", got)
			}
			if r.Rank() != 0 {
				return nil
			}
			h, err := ep.HardwareOf(r.Comm)
			table.Put(ep.TuningRow{Hardware: h, Kind: ep.HandleKindOf(s), Tuning: want})
			return err
		})
		if err := table.Write(path); err != nil {
			t.Fatal(err)
		}
		b := evenly(s, ranks, 1, 6).Batch()
		members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
			if got := r.handle.Spec().Tuning; got != want {
				return fmt.Errorf("with a table: %+v, want %+v", got, want)
			}
			return r.batch(ctx, b)
		})
		// What is found for more tokens need not be possible for fewer.
		table.Rows[0].Tuning = ep.Tuning{Dispatch: ep.KernelTuning{Threads: 512}}
		if err := table.Write(path); err != nil {
			t.Fatal(err)
		}
		members(t, m, ranks, s, gpuDeadline, func(_ context.Context, r *member) error {
			if got := r.handle.Spec().Tuning; got != (ep.Tuning{}) {
				return fmt.Errorf("with a row that does not fit: %+v", got)
			}
			return nil
		})
		// Nor may it ask anything of the caller.
		inTurn := sized(directRows, ranks)
		inTurn.MaxTokens = 6
		table.Rows[0].Kind, table.Rows[0].Tuning = ep.HandleKindOf(inTurn), ep.Tuning{Dispatch: ep.KernelTuning{Protocol: ep.FlagProtocol}}
		if err := table.Write(path); err != nil {
			t.Fatal(err)
		}
		members(t, m, ranks, inTurn, gpuDeadline, func(_ context.Context, r *member) error {
			if got := r.handle.Spec().Tuning; got != (ep.Tuning{}) {
				return fmt.Errorf("with flags for rank-major rows: %+v", got)
			}
			return nil
		})
	})
}
