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
	"pgregory.net/rapid"

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
		{
			"host", "leave Tuning.Dispatch", weft.ErrUnsupported, ep.HostEngine,
			func(s *ep.Spec) { s.Tuning.Combine.Threads = 64 },
		},
		{"copies on the host", "", nil, ep.HostEngine, func(s *ep.Spec) { s.Tuning.HostCopy = ep.CopyEach }},
		{"no such copies", "invalid(2)", weft.ErrInvalid, ep.HostEngine, func(s *ep.Spec) { s.Tuning.HostCopy = 2 }},
		{
			"copies on GPUs", "on the host", weft.ErrUnsupported, ep.GPUEngine,
			func(s *ep.Spec) { s.Tuning.HostCopy = ep.CopyEach },
		},
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
		{
			"threads", "a multiple of 32", weft.ErrInvalid, ep.GPUEngine,
			func(s *ep.Spec) { s.Tuning.Combine.Threads = 96 + 1 },
		},
		{
			"threads of a unit", "at most 256", weft.ErrInvalid, ep.GPUEngine,
			func(s *ep.Spec) { s.Tuning.Dispatch.Threads = 512 },
		},
		{"dependent", "want 1 or -1", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) { s.Tuning.Dispatch.Dependent = 2 }},
		{"protocol", "invalid(9)", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) { s.Tuning.Dispatch.Protocol = 9 }},
		{"values of any bits", "tune dispatch to flags", weft.ErrUnsupported, ep.GPUEngine, func(s *ep.Spec) {
			s.Payload, s.Quantize, s.Hidden, s.Tuning.Dispatch.Protocol = ep.FP8UE8M0, weft.BFloat16, 512, ep.ValueProtocol
		}},
		{"many values", "want flags from more than", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) {
			s.MaxTokens, s.Tuning.Dispatch.Protocol = 5000, ep.ValueProtocol
		}},
		{
			"places", "has no slots", weft.ErrUnsupported, ep.GPUEngine,
			func(s *ep.Spec) { s.Layout, s.Tuning.Dispatch.Units = ep.ExpertPacked, 1 },
		},
		{"slots", "go through slots", weft.ErrUnsupported, ep.GPUEngine, func(s *ep.Spec) { s.Tuning.Dispatch.Parts = 2 }},
		{"slots of combine", "go through slots", weft.ErrUnsupported, ep.GPUEngine, func(s *ep.Spec) {
			s.Layout, s.Reduction, s.Tuning.Combine.Bulk = ep.ExpertPacked, ep.Partial, 1
		}},
		{
			"pulled", "has no slots", weft.ErrUnsupported, ep.GPUEngine,
			func(s *ep.Spec) { *s = pulled(*s); s.Tuning.Combine.Dependent = 1 },
		},
		{
			"pulled by expert", "has no slots", weft.ErrUnsupported, ep.GPUEngine,
			func(s *ep.Spec) { s.Layout, s.Tuning.Combine.Dependent = ep.ExpertPacked, 1 },
		},
		{"all of places", "", nil, ep.GPUEngine, func(s *ep.Spec) {
			*s = pulled(*s)
			s.Tuning.Dispatch = ep.KernelTuning{Threads: 512, Blocks: 1024, Bulk: 1, Warps: 16, Parts: 16}
			s.Tuning.Combine = ep.KernelTuning{Threads: 64, Blocks: 1, Bulk: -1}
		}},
		{
			"blocks", "want 1 to 1024", weft.ErrInvalid, ep.GPUEngine,
			func(s *ep.Spec) { *s = pulled(*s); s.Tuning.Combine.Blocks = -1 },
		},
		{
			"bulk", "want 1 or -1", weft.ErrInvalid, ep.GPUEngine,
			func(s *ep.Spec) { *s = pulled(*s); s.Tuning.Combine.Bulk = 2 },
		},
		{
			"warps", "want 1 to 16", weft.ErrInvalid, ep.GPUEngine,
			func(s *ep.Spec) { *s = pulled(*s); s.Tuning.Combine.Warps = 17 },
		},
		{"more warps than threads", "as many threads", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) {
			*s = pulled(*s)
			s.Tuning.Combine.Warps, s.Tuning.Combine.Threads = 5, 128
		}},
		{
			"parts", "want 1 to 16", weft.ErrInvalid, ep.GPUEngine,
			func(s *ep.Spec) { *s = pulled(*s); s.Tuning.Dispatch.Parts = 17 },
		},
		{"parts of threads", "want Bulk 0 or 1", weft.ErrInvalid, ep.GPUEngine, func(s *ep.Spec) {
			*s = pulled(*s)
			s.Tuning.Dispatch.Bulk, s.Tuning.Dispatch.Parts = -1, 2
		}},
		{"bulk copies of what is quantised", "needs threads", weft.ErrUnsupported, ep.GPUEngine, func(s *ep.Spec) {
			*s = pulled(*s)
			s.Payload, s.Quantize, s.Hidden, s.Tuning.Dispatch.Bulk = ep.FP8, weft.BFloat16, 128, 1
		}},
		{"sums of opaque rows", "cannot combine", weft.ErrUnsupported, ep.GPUEngine, func(s *ep.Spec) {
			s.Payload, s.RowBytes, s.Hidden, s.Output, s.Tuning.Combine.Threads = ep.Opaque, 64, 0, 0, 64
		}},
	} {
		s := base
		tc.change(&s)
		err := s.ValidateOn(tc.engine, 2)
		if tc.kind == nil && err != nil || tc.kind != nil &&
			(!errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.words)) {
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
		return ep.TuningRow{
			Hardware: here, Kind: ep.HandleKindOf(s),
			Tuning: ep.Tuning{Combine: ep.KernelTuning{
				Protocol: ep.FlagProtocol,
				Threads:  threads,
			}}, Date: "2026-11-22",
		}
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
	if diff := cmp.Diff(&ep.TuningTable{
		Version: table.Version,
		Rows:    []ep.TuningRow{row(64, 64), row(16, 256), row(128, 128)},
	}, again); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// Others read it, and who keeps it elsewhere keeps it there.
	link := filepath.Join(t.TempDir(), "link.json")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	again.Put(row(512, 64))
	again.Drop(here, row(512, 64).Kind)
	again.Drop(ep.Hardware{GPU: "another"}, row(64, 64).Kind)
	if err := again.Write(link); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(link); to != path || err != nil {
		t.Errorf("the link leads to %q: %v", to, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v: %v", info.Mode(), err)
	}
	if again, err = ep.ReadTuningTable(path); err != nil || len(again.Rows) != 3 {
		t.Fatal(again, err)
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
		if again.Find(here, kind) != nil || again.Find(here, columns) != nil ||
			again.Find(ep.Hardware{GPU: "a GPU", SMs: 17, Ranks: 2}, row(tokens, 0).Kind) != nil {
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
			{
				Dispatch: ep.KernelTuning{Protocol: ep.FlagProtocol, Units: 2, Threads: 64, Dependent: 1},
				Combine:  ep.KernelTuning{Protocol: ep.FlagProtocol, Threads: 96, Dependent: 1},
			},
			{Dispatch: ep.KernelTuning{
				Protocol: ep.ValueProtocol, Units: 1, Threads: 96, Senders: 15,
				Dependent: -1,
			}, Combine: ep.KernelTuning{Protocol: ep.ValueProtocol, Threads: 512, Senders: 1}},
			{
				Dispatch: ep.KernelTuning{Protocol: ep.ValueProtocol, Units: 4, Threads: 480, Senders: 1},
				Combine:  ep.KernelTuning{Protocol: ep.ValueProtocol, Threads: 64, Senders: -1},
			},
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

// pulled is a Spec with a row for each token and rank, which its home reads at its place.
func pulled(s ep.Spec) ep.Spec {
	s.Layout, s.Reduction, s.Weighting = ep.TokenMajor, ep.Partial, ep.Plain
	return s
}

// However bulk copies are tuned, their parts are whole, together they are the row, and shared
// memory has room for them.
func TestTunedBulkCopiesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		threads := 32 * rapid.IntRange(2, 16).Draw(t, "warps of a block")
		k := ep.KernelTuning{
			Warps: rapid.IntRange(0, threads/32).Draw(t, "warps"),
			Parts: rapid.IntRange(0, 16).Draw(t, "parts"), Bulk: rapid.IntRange(0, 1).Draw(t, "bulk"),
		}
		s := sized(exactRows, 2)
		byRank := rapid.Bool().Draw(t, "a row for each rank")
		if s.Layout = ep.ExpertPacked; byRank {
			s = pulled(s)
		}
		s.Hidden, s.Tuning = 8*rapid.IntRange(1, 40_000).Draw(t, "hidden"), ep.Tuning{Dispatch: k, Combine: k}
		ranks := rapid.IntRange(1, 64).Draw(t, "ranks")
		s.TopK = rapid.IntRange(1, 32).Draw(t, "top-k")
		row, most := 2*s.Hidden, s.TopK
		if byRank {
			most = min(most, ranks)
		}
		push, pull := ep.CarriesOf(s, threads, ranks)
		for _, c := range []struct {
			what                      string
			chunk, warps, unit, takes int
		}{{"push", push[0], push[1], 16, push[0] * push[1]}, {
			"pull", pull[0], pull[1], 512,
			ep.PullDepth * most * pull[0] * pull[1],
		}} {
			if k.Bulk == 0 && row < 1024 {
				if c.chunk != 0 || c.warps != 0 {
					t.Errorf("%s of small rows: %+v", c.what, c)
				}
				continue
			}
			if c.chunk < 1 || c.chunk%c.unit != 0 || c.warps < 1 || c.warps > threads/32 ||
				c.takes > ep.BulkBytes || k.Warps != 0 && c.warps > k.Warps {
				t.Errorf("%s of %d bytes by %d threads: %+v", c.what, row, threads, c)
			}
			if parts := (row + c.chunk - 1) / c.chunk; k.Parts > 0 && c.takes*2 < ep.BulkBytes && parts > k.Parts {
				t.Errorf("%s of %d bytes: %d parts, want %d", c.what, row, parts, k.Parts)
			}
		}
	})
}

// TestTunedPlacesOnGPUs is TestTunedOnGPUs for rows that go to their places.
func TestTunedPlacesOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		packed := sized(exactRows, ranks)
		packed.Layout = ep.ExpertPacked
		for i, k := range []ep.KernelTuning{
			{Threads: 64, Bulk: -1},
			{Threads: 96, Bulk: 1, Warps: 2, Parts: 3},
			{Blocks: 1, Bulk: 1, Parts: 16},
			{Blocks: 1024, Bulk: 1, Warps: 16},
		} {
			byRank := pulled(sized(exactRows, ranks))
			byRank.Tuning = ep.Tuning{Dispatch: k, Combine: k}
			byExpert := packed
			byExpert.Tuning = byRank.Tuning
			for name, s := range map[string]ep.Spec{"token-major": byRank, "expert-packed": byExpert} {
				t.Run(fmt.Sprintf("%d/%s", i, name), func(t *testing.T) {
					s.Hidden, s.SMs = 1000, 3*ranks
					batches := []*eptest.Batch{evenly(s, ranks, 1, 6).Batch(), evenly(s, ranks, 2, 1).Batch()}
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						if n, _ := r.handle.SMs(); k.Blocks == 1 && n != 1 {
							return fmt.Errorf("%d blocks, want 1", n)
						}
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
		table := &ep.TuningTable{Version: ep.TableVersion}
		err := m.engine(t, ranks, gpuDeadline).Ranks(ranks, func(c *weft.Comm) error {
			if _, err := ep.NewHandle(testContext(t), c, s); !errors.Is(err, weft.ErrInvalid) ||
				!strings.Contains(err.Error(), path) {
				return fmt.Errorf("with a table that is named and not there: %w", err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("{\"version\":1,\"rows\":[]}"), 0o600); err != nil {
			t.Fatal(err)
		}
		err = m.engine(t, ranks, gpuDeadline).Ranks(ranks, func(c *weft.Comm) error {
			if _, err := ep.NewHandle(testContext(t), c, s); !errors.Is(err, weft.ErrInvalid) ||
				!strings.Contains(err.Error(), "invalid argument: WEFT_TUNING names") {
				return fmt.Errorf("with a table of another version: %w", err)
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
		table.Rows[0].Kind = ep.HandleKindOf(inTurn)
		table.Rows[0].Tuning = ep.Tuning{Dispatch: ep.KernelTuning{Protocol: ep.FlagProtocol}}
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
