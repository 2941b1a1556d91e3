package spec_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/spec"
)

// TestValidate refuses Specs that cannot be, each with a sentence.
func TestValidate(t *testing.T) {
	tests := []struct {
		name  string
		words string
		kind  error
		spoil func(*spec.Spec)
	}{
		{"experts", "want a multiple of the ranks", weft.ErrInvalid, func(s *spec.Spec) { s.Experts = 9 }},
		{"no experts", "want 1 to", weft.ErrInvalid, func(s *spec.Spec) { s.Experts = 0 }},
		{"top-k", "TopK is 33", weft.ErrInvalid, func(s *spec.Spec) { s.TopK = 33 }},
		{"top-k of few", "more experts than there are", weft.ErrInvalid, func(s *spec.Spec) { s.TopK = 9 }},
		{"tokens", "MaxTokens is 0", weft.ErrInvalid, func(s *spec.Spec) { s.MaxTokens = 0 }},
		{"hidden", "multiple of 16 bytes", weft.ErrUnsupported, func(s *spec.Spec) { s.Hidden = 12 }},
		{"no hidden", "multiple of 16 bytes", weft.ErrUnsupported, func(s *spec.Spec) { s.Hidden = 0 }},
		{"hidden of fp8", "multiple of 128", weft.ErrUnsupported, func(s *spec.Spec) { s.Payload, s.Hidden = spec.FP8, 64 }},
		{
			"hidden of UE8M0", "multiple of 512", weft.ErrUnsupported,
			func(s *spec.Spec) { s.Payload, s.Hidden = spec.FP8UE8M0, 128 },
		},
		{
			"opaque row", "pad both to a multiple of 16", weft.ErrUnsupported,
			func(s *spec.Spec) { s.Payload, s.RowBytes = spec.Opaque, 24 },
		},
		{
			"opaque scales", "pad both to a multiple of 16", weft.ErrUnsupported,
			func(s *spec.Spec) { s.Payload, s.RowBytes, s.ScaleBytes = spec.Opaque, 32, 8 },
		},
		{
			"layout", "Layout is 9: want one of expert-major, expert-packed, rank-major, token-major", weft.ErrInvalid,
			func(s *spec.Spec) { s.Layout = 9 },
		},
		{
			"payload", "Payload is 77: want one of bf16, fp16, fp32, fp8, fp8-ue8m0, opaque", weft.ErrInvalid,
			func(s *spec.Spec) { s.Payload = 77 },
		},
		{"alignment", "power of two", weft.ErrInvalid, func(s *spec.Spec) { s.Layout, s.Alignment = spec.ExpertPacked, 48 }},
		{"alignment of zones", "expert-packed", weft.ErrUnsupported, func(s *spec.Spec) { s.Alignment = 16 }},
		{"capacity", "want 0", weft.ErrInvalid, func(s *spec.Spec) { s.Capacity = -1 }},
		{"too much capacity", "want 0", weft.ErrInvalid, func(s *spec.Spec) { s.Capacity = math.MaxInt }},
		{
			"more rows than can be numbered", "lower MaxTokens", weft.ErrUnsupported,
			func(s *spec.Spec) { s.Experts, s.MaxTokens = 4*32, 1<<24 },
		},
		{"rows of capacities", "lower MaxTokens", weft.ErrUnsupported, func(s *spec.Spec) { s.Capacity = 1 << 30 }},
		{"capacity of ranks", "leave Capacity 0", weft.ErrUnsupported, func(s *spec.Spec) {
			s.Layout, s.Reduction, s.Weighting, s.Capacity = spec.RankMajor, spec.Partial, spec.Plain, 8
		}},
		{
			"scale order", "row-major scales", weft.ErrUnsupported,
			func(s *spec.Spec) { s.ScaleOrder = spec.ColumnMajorScales },
		},
		{"quantise", "leave Quantize out", weft.ErrUnsupported, func(s *spec.Spec) { s.Quantize = weft.Float32 }},
		{
			"quantise from", "convert them first", weft.ErrUnsupported,
			func(s *spec.Spec) { s.Payload, s.Hidden, s.Quantize = spec.FP8, 128, weft.Float64 },
		},
		{
			"powers of two", "set Quantize", weft.ErrUnsupported,
			func(s *spec.Spec) { s.Payload, s.Hidden, s.PowerOfTwoScales = spec.FP8, 128, true },
		},
		{"output", "leave Output out", weft.ErrUnsupported, func(s *spec.Spec) { s.Output = weft.Float32 }},
		{
			"bytes of rows", "RowBytes is", weft.ErrInvalid,
			func(s *spec.Spec) { s.Payload, s.RowBytes = spec.Opaque, 1<<26+16 },
		},
		{
			"too many bytes of rows", "RowBytes is", weft.ErrInvalid,
			func(s *spec.Spec) { s.Payload, s.RowBytes = spec.Opaque, math.MaxInt&^15 },
		},
		{
			"negative bytes of rows", "RowBytes is", weft.ErrInvalid,
			func(s *spec.Spec) { s.Payload, s.RowBytes = spec.Opaque, -16 },
		},
		{
			"bytes of scales", "ScaleBytes is", weft.ErrInvalid,
			func(s *spec.Spec) { s.Payload, s.RowBytes, s.ScaleBytes = spec.Opaque, 16, math.MaxInt&^15 },
		},
		{
			"negative bytes of scales", "ScaleBytes is", weft.ErrInvalid,
			func(s *spec.Spec) { s.Payload, s.RowBytes, s.ScaleBytes = spec.Opaque, 16, -16 },
		},
		{"no bytes of rows", "give RowBytes", weft.ErrUnsupported, func(s *spec.Spec) { s.Payload = spec.Opaque }},
		{"output of opaque rows", "Hidden so that a row of the Output type", weft.ErrUnsupported, func(s *spec.Spec) {
			s.Payload, s.RowBytes, s.Hidden, s.Output = spec.Opaque, 16, 4, weft.BFloat16
		}},
		{
			"no output type", "choose one of them", weft.ErrUnsupported,
			func(s *spec.Spec) { s.Payload, s.RowBytes, s.Output = spec.Opaque, 16, 99 },
		},
		// 2^30 rows a rank of 2^26 bytes each, 2^10 times: 2^66.
		{"more memory than there are addresses", "than there are addresses", weft.ErrUnsupported, func(s *spec.Spec) {
			s.Layout, s.Payload, s.RowBytes, s.Capacity, s.Live = spec.ExpertPacked, spec.Opaque, 1<<26, 1<<30, 1024
		}},
		{"more scales than there are addresses", "than there are addresses", weft.ErrUnsupported, func(s *spec.Spec) {
			s.Layout, s.Payload, s.RowBytes = spec.ExpertPacked, spec.Opaque, 16
			s.ScaleBytes, s.Capacity, s.Live = 1<<26, 1<<30, 1024
		}},
		{"more rows of most numbers", "than there are addresses", weft.ErrUnsupported, func(s *spec.Spec) {
			s.Layout, s.Payload, s.Hidden, s.Capacity, s.Live = spec.ExpertPacked, spec.FP32, 1<<24, 1<<30, 1024
		}},
		{
			"output type", "choose one of them", weft.ErrUnsupported,
			func(s *spec.Spec) { s.Payload, s.Hidden, s.Output = spec.FP8, 128, weft.Int32 },
		},
		{"live", "Live is", weft.ErrInvalid, func(s *spec.Spec) { s.Live = 5000 }},
	}
	if err := small(4).Validate(4); err != nil {
		t.Fatal(err)
	}
	for _, ranks := range []int{-1, 0, 65} {
		if err := small(1).Validate(ranks); !errors.Is(err, weft.ErrInvalid) {
			t.Errorf("%d ranks: %v", ranks, err)
		}
	}
	for _, test := range tests {
		s := small(4)
		test.spoil(&s)
		if err := s.Validate(4); !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.words) {
			t.Errorf("%s: %v, want one with %q", test.name, err, test.words)
		}
	}
}

// TestValidateOnGPUs refuses what only the host does.
func TestValidateOnGPUs(t *testing.T) {
	const ranks = 4
	for _, test := range []struct {
		name  string
		words string // none: both engines take it
		spoil func(*spec.Spec)
	}{
		{"small", "", func(*spec.Spec) {}},
		{"packed", "", func(s *spec.Spec) { s.Layout = spec.ExpertPacked }},
		{"token-major", "", func(s *spec.Spec) {
			s.Layout, s.Reduction, s.Weighting = spec.TokenMajor, spec.Partial, spec.Plain
		}},
		{"as many tokens as there can be", "", func(s *spec.Spec) { s.MaxTokens = 1 << 15 }},
		{"more tokens", "lower MaxTokens", func(s *spec.Spec) { s.MaxTokens = 1<<15 + 1 }},
		{"less than the worst case", "", func(s *spec.Spec) { s.Capacity = ranks*s.MaxTokens - 1 }},
		{
			"the same, counted on the device", "use OverflowDrop",
			func(s *spec.Spec) { s.Capacity, s.Counts = ranks*s.MaxTokens-1, spec.DeviceCounts },
		},
		{"dropping", "", func(s *spec.Spec) {
			s.Capacity, s.Counts, s.Overflow = ranks*s.MaxTokens-1, spec.DeviceCounts, spec.OverflowDrop
		}},
		{"the worst case", "", func(s *spec.Spec) { s.Capacity = ranks * s.MaxTokens }},
	} {
		s := small(ranks)
		test.spoil(&s)
		if err := s.ValidateOn(spec.HostEngine, ranks); err != nil {
			t.Errorf("%s, on the host: %v", test.name, err)
		}
		err := s.ValidateOn(spec.GPUEngine, ranks)
		if test.words == "" && err != nil || test.words != "" &&
			(!errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), test.words)) {
			t.Errorf("%s, on GPUs: %v, want one with %q", test.name, err, test.words)
		}
	}
	if err := small(ranks).ValidateOn(spec.GPUEngine+1, ranks); !errors.Is(err, weft.ErrInvalid) {
		t.Errorf("no engine: %v", err)
	}
}

// TestNames parses every name that prints.
func TestNames(t *testing.T) {
	for _, c := range spec.Cells() {
		l, e1 := spec.ParseLayout(c.Layout.String())
		r, e2 := spec.ParseReduction(c.Reduction.String())
		w, e3 := spec.ParseWeighting(c.Weighting.String())
		p, e4 := spec.ParsePayload(c.Payload.String())
		if got := (spec.Cell{Layout: l, Reduction: r, Weighting: w, Payload: p}); got != c ||
			errors.Join(e1, e2, e3, e4) != nil {
			t.Fatalf("%+v reads %+v: %v", c, got, errors.Join(e1, e2, e3, e4))
		}
	}
	if n, err := spec.ParseCounts(spec.DeviceCounts.String()); n != spec.DeviceCounts || err != nil {
		t.Errorf("counts: %v %v", n, err)
	}
	if _, err := spec.ParseLayout("sideways"); !errors.Is(err, weft.ErrInvalid) {
		t.Errorf("no layout: %v", err)
	}
}

// small is a Spec that tests vary.
func small(ranks int) spec.Spec {
	return spec.Spec{Experts: 2 * ranks, TopK: 2, Hidden: 24, MaxTokens: 4}
}
