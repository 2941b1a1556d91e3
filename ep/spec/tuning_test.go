package spec_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/spec"
)

// exact is a Spec with a row for each selection, which goes through slots.
func exact(ranks int) spec.Spec {
	return spec.Spec{
		Experts: 3 * ranks, TopK: 3, Hidden: 40, MaxTokens: 6, SMs: 2 * ranks, Counts: spec.DeviceCounts,
		Layout: spec.ExpertMajor, Reduction: spec.Exact,
	}
}

// pulled is a Spec with a row for each token and rank, which its home reads where it is.
func pulled(s spec.Spec) spec.Spec {
	s.Layout, s.Reduction, s.Weighting = spec.TokenMajor, spec.Partial, spec.Plain
	return s
}

func TestTuningRefusals(t *testing.T) {
	base := exact(2)
	for _, tc := range []struct {
		name, words string
		kind        error
		engine      spec.Engine
		change      func(s *spec.Spec)
	}{
		{"none", "", nil, spec.HostEngine, func(*spec.Spec) {}},
		{
			"host", "leave Tuning.Dispatch", weft.ErrUnsupported, spec.HostEngine,
			func(s *spec.Spec) { s.Tuning.Combine.Threads = 64 },
		},
		{"copies on the host", "", nil, spec.HostEngine, func(s *spec.Spec) { s.Tuning.HostCopy = spec.CopyEach }},
		{"no such copies", "invalid(2)", weft.ErrInvalid, spec.HostEngine, func(s *spec.Spec) { s.Tuning.HostCopy = 2 }},
		{
			"copies on GPUs", "on the host", weft.ErrUnsupported, spec.GPUEngine,
			func(s *spec.Spec) { s.Tuning.HostCopy = spec.CopyEach },
		},
		{"all", "", nil, spec.GPUEngine, func(s *spec.Spec) {
			s.Tuning.Dispatch = spec.KernelTuning{Protocol: spec.FlagProtocol, Units: 4, Senders: 15, Threads: 512, Dependent: 1}
			s.Tuning.Combine = spec.KernelTuning{Protocol: spec.ValueProtocol, Senders: -1, Threads: 64, Dependent: -1}
		}},
		{"units", "want 1, 2 or 4", weft.ErrInvalid, spec.GPUEngine, func(s *spec.Spec) { s.Tuning.Dispatch.Units = 3 }},
		{"units of fp8", "at most 2", weft.ErrInvalid, spec.GPUEngine, func(s *spec.Spec) {
			s.Payload, s.Quantize, s.Hidden, s.Tuning.Dispatch.Units = spec.FP8, weft.BFloat16, 128, 4
		}},
		{"units of combine", "at most 0", weft.ErrInvalid, spec.GPUEngine, func(s *spec.Spec) { s.Tuning.Combine.Units = 1 }},
		{"senders", "want 1 to 15", weft.ErrInvalid, spec.GPUEngine, func(s *spec.Spec) { s.Tuning.Combine.Senders = 16 }},
		{
			"threads", "a multiple of 32", weft.ErrInvalid, spec.GPUEngine,
			func(s *spec.Spec) { s.Tuning.Combine.Threads = 96 + 1 },
		},
		{
			"threads of a unit", "at most 256", weft.ErrInvalid, spec.GPUEngine,
			func(s *spec.Spec) { s.Tuning.Dispatch.Threads = 512 },
		},
		{
			"dependent", "want 1 or -1", weft.ErrInvalid, spec.GPUEngine,
			func(s *spec.Spec) { s.Tuning.Dispatch.Dependent = 2 },
		},
		{"protocol", "invalid(9)", weft.ErrInvalid, spec.GPUEngine, func(s *spec.Spec) { s.Tuning.Dispatch.Protocol = 9 }},
		{"values of any bits", "tune dispatch to flags", weft.ErrUnsupported, spec.GPUEngine, func(s *spec.Spec) {
			s.Payload, s.Quantize, s.Hidden, s.Tuning.Dispatch.Protocol = spec.FP8UE8M0, weft.BFloat16, 512, spec.ValueProtocol
		}},
		{"many values", "want flags from more than", weft.ErrInvalid, spec.GPUEngine, func(s *spec.Spec) {
			s.MaxTokens, s.Tuning.Dispatch.Protocol = 5000, spec.ValueProtocol
		}},
		{
			"direct", "has no slots", weft.ErrUnsupported, spec.GPUEngine,
			func(s *spec.Spec) { s.Layout, s.Tuning.Dispatch.Units = spec.ExpertPacked, 1 },
		},
		{
			"slots", "go through slots", weft.ErrUnsupported, spec.GPUEngine,
			func(s *spec.Spec) { s.Tuning.Dispatch.Parts = 2 },
		},
		{"slots of combine", "go through slots", weft.ErrUnsupported, spec.GPUEngine, func(s *spec.Spec) {
			s.Layout, s.Reduction, s.Tuning.Combine.Bulk = spec.ExpertPacked, spec.Partial, 1
		}},
		{
			"pulled", "has no slots", weft.ErrUnsupported, spec.GPUEngine,
			func(s *spec.Spec) { *s = pulled(*s); s.Tuning.Combine.Dependent = 1 },
		},
		{
			"pulled by expert", "has no slots", weft.ErrUnsupported, spec.GPUEngine,
			func(s *spec.Spec) { s.Layout, s.Tuning.Combine.Dependent = spec.ExpertPacked, 1 },
		},
		{"all of direct", "", nil, spec.GPUEngine, func(s *spec.Spec) {
			*s = pulled(*s)
			s.Tuning.Dispatch = spec.KernelTuning{Threads: 512, Blocks: 1024, Bulk: 1, Warps: 16, Parts: 16}
			s.Tuning.Combine = spec.KernelTuning{Threads: 64, Blocks: 1, Bulk: -1}
		}},
		{
			"blocks", "want 1 to 1024", weft.ErrInvalid, spec.GPUEngine,
			func(s *spec.Spec) { *s = pulled(*s); s.Tuning.Combine.Blocks = -1 },
		},
		{
			"bulk", "want 1 or -1", weft.ErrInvalid, spec.GPUEngine,
			func(s *spec.Spec) { *s = pulled(*s); s.Tuning.Combine.Bulk = 2 },
		},
		{
			"warps", "want 1 to 16", weft.ErrInvalid, spec.GPUEngine,
			func(s *spec.Spec) { *s = pulled(*s); s.Tuning.Combine.Warps = 17 },
		},
		{"more warps than threads", "as many threads", weft.ErrInvalid, spec.GPUEngine, func(s *spec.Spec) {
			*s = pulled(*s)
			s.Tuning.Combine.Warps, s.Tuning.Combine.Threads = 5, 128
		}},
		{
			"parts", "want 1 to 16", weft.ErrInvalid, spec.GPUEngine,
			func(s *spec.Spec) { *s = pulled(*s); s.Tuning.Dispatch.Parts = 17 },
		},
		{"parts of threads", "want Bulk 0 or 1", weft.ErrInvalid, spec.GPUEngine, func(s *spec.Spec) {
			*s = pulled(*s)
			s.Tuning.Dispatch.Bulk, s.Tuning.Dispatch.Parts = -1, 2
		}},
		{"bulk copies of what is quantised", "needs threads", weft.ErrUnsupported, spec.GPUEngine, func(s *spec.Spec) {
			*s = pulled(*s)
			s.Payload, s.Quantize, s.Hidden, s.Tuning.Dispatch.Bulk = spec.FP8, weft.BFloat16, 128, 1
		}},
		{"sums of opaque rows", "cannot combine", weft.ErrUnsupported, spec.GPUEngine, func(s *spec.Spec) {
			s.Payload, s.RowBytes, s.Hidden, s.Output, s.Tuning.Combine.Threads = spec.Opaque, 64, 0, 0, 64
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

// However bulk copies are tuned, their parts are whole, together they are the row, and shared
// memory has room for them.
func TestTunedBulkCopiesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		threads := 32 * rapid.IntRange(2, 16).Draw(t, "warps of a block")
		k := spec.KernelTuning{
			Warps: rapid.IntRange(0, threads/32).Draw(t, "warps"),
			Parts: rapid.IntRange(0, 16).Draw(t, "parts"), Bulk: rapid.IntRange(0, 1).Draw(t, "bulk"),
		}
		s := exact(2)
		byRank := rapid.Bool().Draw(t, "a row for each rank")
		if s.Layout = spec.ExpertPacked; byRank {
			s = pulled(s)
		}
		s.Hidden, s.Tuning = 8*rapid.IntRange(1, 40_000).Draw(t, "hidden"), spec.Tuning{Dispatch: k, Combine: k}
		ranks := rapid.IntRange(1, 64).Draw(t, "ranks")
		s.TopK = rapid.IntRange(1, 32).Draw(t, "top-k")
		row, most := 2*s.Hidden, s.TopK
		if byRank {
			most = min(most, ranks)
		}
		s = s.Normalize()
		push, pull := s.PushCarry(threads), s.PullCarry(threads, s.PullRows(ranks))
		for _, c := range []struct {
			what                      string
			chunk, warps, unit, takes int
		}{
			{"push", push.Chunk, push.Warps, 16, push.Chunk * push.Warps},
			{"pull", pull.Chunk, pull.Warps, 512, spec.PullDepth * most * pull.Chunk * pull.Warps},
		} {
			if k.Bulk == 0 && row < 1024 {
				if c.chunk != 0 || c.warps != 0 {
					t.Errorf("%s of small rows: %+v", c.what, c)
				}
				continue
			}
			if c.chunk < 1 || c.chunk%c.unit != 0 || c.warps < 1 || c.warps > threads/32 ||
				c.takes > spec.BulkSharedBytes || k.Warps != 0 && c.warps > k.Warps {
				t.Errorf("%s of %d bytes by %d threads: %+v", c.what, row, threads, c)
			}
			if parts := (row + c.chunk - 1) / c.chunk; k.Parts > 0 && c.takes*2 < spec.BulkSharedBytes && parts > k.Parts {
				t.Errorf("%s of %d bytes: %d parts, want %d", c.what, row, parts, k.Parts)
			}
		}
	})
}

// Choices for shapes that weft tune ep has measured, on four H100s and on two, and for others. Senders are of 16
// blocks; with 0 all do both.
func TestChoices(t *testing.T) {
	const rank, partial, exact = spec.RankSums, spec.PartialSums, spec.ExactSums
	type side struct {
		senders   int
		dependent bool
	}
	for _, c := range []struct {
		form, ranks, tokens, hidden, topk, sms int

		units             int
		dispatch, combine side
	}{
		{rank, 4, 8, 7168, 8, 0, 1, side{0, true}, side{8, true}},
		{rank, 4, 32, 7168, 8, 0, 4, side{0, true}, side{4, true}},
		{rank, 4, 32, 7168, 8, 132, 2, side{0, true}, side{4, true}},
		{rank, 4, 128, 7168, 8, 0, 4, side{0, true}, side{4, true}},
		{rank, 4, 256, 7168, 8, 0, 4, side{0, true}, side{4, false}},
		{rank, 2, 32, 7168, 8, 0, 2, side{0, true}, side{4, true}},
		{rank, 2, 256, 7168, 8, 0, 4, side{4, true}, side{4, false}},
		{rank, 1, 256, 7168, 8, 0, 4, side{0, true}, side{0, false}},
		{rank, 8, 128, 4096, 6, 0, 4, side{0, true}, side{4, true}},
		{partial, 4, 8, 7168, 8, 0, 1, side{0, true}, side{8, true}},
		{partial, 4, 32, 7168, 8, 0, 4, side{3, true}, side{8, true}},
		{partial, 4, 32, 7168, 8, 132, 4, side{3, true}, side{8, true}},
		{partial, 4, 128, 7168, 8, 0, 4, side{3, false}, side{8, true}},
		{partial, 4, 256, 7168, 8, 0, 4, side{3, false}, side{8, true}},
		{partial, 4, 256, 7168, 8, 132, 4, side{2, false}, side{8, true}},
		{partial, 2, 32, 7168, 8, 0, 2, side{0, true}, side{0, true}},
		{partial, 2, 32, 7168, 8, 132, 2, side{0, true}, side{7, true}},
		{partial, 2, 128, 7168, 8, 0, 4, side{2, true}, side{7, true}},
		{partial, 2, 256, 7168, 8, 0, 4, side{2, true}, side{7, true}},
		{partial, 8, 128, 4096, 6, 0, 4, side{3, false}, side{8, true}},
		{partial, 3, 64, 2048, 8, 0, 1, side{0, true}, side{8, true}},
		{exact, 4, 8, 7168, 8, 0, 1, side{0, true}, side{8, true}},
		{exact, 4, 32, 7168, 8, 0, 2, side{0, true}, side{4, true}},
		{exact, 4, 32, 7168, 8, 132, 1, side{0, true}, side{8, true}},
		{exact, 4, 32, 4096, 6, 0, 1, side{0, true}, side{8, true}},
		{exact, 4, 128, 4096, 6, 0, 2, side{3, true}, side{8, false}},
		{exact, 4, 128, 7168, 8, 0, 2, side{3, true}, side{7, false}},
		{exact, 4, 256, 7168, 8, 0, 2, side{3, true}, side{7, false}},
		{exact, 4, 256, 7168, 8, 132, 2, side{2, true}, side{7, false}},
		{exact, 2, 32, 7168, 8, 0, 1, side{0, true}, side{4, true}},
		{exact, 2, 128, 7168, 8, 0, 2, side{4, true}, side{5, false}},
		{exact, 2, 512, 7168, 8, 0, 2, side{0, false}, side{0, false}}, // by flags
	} {
		s := spec.Spec{
			Experts: 48 * c.ranks, TopK: c.topk, Hidden: c.hidden, MaxTokens: c.tokens, SMs: c.sms,
			Layout: spec.ExpertMajor, Payload: spec.BF16, Output: weft.BFloat16, Reduction: spec.Partial,
		}
		switch c.form {
		case rank:
			s.Layout = spec.RankMajor
		case exact:
			s.Payload, s.Quantize, s.Reduction = spec.FP8, weft.BFloat16, spec.Exact
		}
		got := spec.Choose(s.Normalize(), c.ranks)
		dispatch, combine := side{got.DispatchSenders, got.DependentDispatch}, side{got.CombineSenders, got.DependentCombine}
		if got.DispatchUnits != c.units || dispatch != c.dispatch || combine != c.combine {
			t.Errorf("%+v: units %d, dispatch %+v, combine %+v", c, got.DispatchUnits, dispatch, combine)
		}
	}
}

// What is chosen is what a Spec may ask for, whatever the shape.
func TestChoicesAreTunings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(1, 64).Draw(t, "ranks")
		s := exact(ranks)
		switch rapid.SampledFrom([]int{spec.RankSums, spec.PartialSums, spec.ExactSums}).Draw(t, "sums") {
		case spec.RankSums:
			s.Layout, s.Reduction = spec.RankMajor, spec.Partial
		case spec.PartialSums:
			s.Reduction = spec.Partial
		}
		s.TopK = rapid.IntRange(1, min(32, s.Experts)).Draw(t, "top-k")
		s.Hidden, s.MaxTokens = 8*rapid.IntRange(1, 4000).Draw(t, "hidden / 8"), rapid.IntRange(1, 4096).Draw(t, "tokens")
		s.SMs = rapid.IntRange(2, 200).Draw(t, "SMs")
		s = s.Normalize()
		c := spec.Choose(s, ranks)
		for _, k := range []spec.KernelTuning{
			{Units: c.DispatchUnits, Senders: c.DispatchSenders, Threads: c.DispatchThreads},
			{Senders: c.CombineSenders, Threads: c.CombineThreads},
		} {
			if err := (spec.Tuning{Dispatch: k}).Check(); err != nil {
				t.Errorf("%+v: %v", c, err)
			}
		}
		if ranks == 1 && c.DispatchSenders+c.CombineSenders != 0 {
			t.Errorf("a rank alone sends: %+v", c)
		}
	})
}
