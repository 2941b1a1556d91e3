package spec

import (
	"fmt"
	"math"
	"strings"

	"github.com/weftgo/weft"
)

// Layout is the order in which a rank receives rows.
type Layout uint8

const (
	// ExpertMajor gives every local expert a zone of fixed size. In a zone the rows stand without
	// gaps, by source rank, then token. The received tensor is [local experts, rows per expert,
	// hidden].
	ExpertMajor Layout = iota
	// ExpertPacked places the zones one after the other. Rows of zeros pad each zone to a multiple
	// of the alignment. The received tensor is [rows, hidden].
	ExpertPacked
	// RankMajor gives every source rank a zone of MaxTokens rows. A token stands at its own index,
	// once on each rank that has an expert for it. A row whose token has no expert here holds no
	// token. Rows can therefore leave before anything is counted. The received tensor is [ranks *
	// MaxTokens, hidden].
	RankMajor
	// TokenMajor is RankMajor without the gaps: one row per token and rank, by source rank, then
	// token. The received tensor is [rows, hidden].
	TokenMajor
	Layouts
)

// Reduction says where the rows of a token are summed when they come home.
type Reduction uint8

const (
	// Exact sums all rows of a token at home: fp32 fused multiply-adds, k ascending, from +0,
	// rounded once.
	Exact Reduction = iota
	// Partial sums a token's rows on each rank first (fp32, k ascending, rounded to the row's type);
	// the home sums these (fp32 adds in rank order, rounded once). Each rank's partial sum has one
	// more rounding: for bf16 a relative error of up to 2^-8 of that sum.
	Partial
	// PartialBySelection is Partial with another order of the home's sum: by the last selection of
	// the token that has a row on each rank.
	PartialBySelection
	// PartialByHost sums a token's rows on each host first: fp32, ranks ascending, and k ascending on each rank,
	// rounded once to the row's type. The home adds these sums in fp32, in the order of hosts, and rounds once.
	// Between hosts one row for each token and host comes home, where Partial brings one for each rank and Exact one
	// for each selection. Each host's sum has one more rounding: for bf16 a relative error of up to 2^-8 of that sum.
	// GPUs of one host do not have it.
	PartialByHost
	// PartialByHostFP32 is PartialByHost with sums of fp32 on their way home, which are not rounded: of bf16 rows they
	// take twice the bytes. A result of k rows from h hosts is off by at most half a unit of its last place, for bf16
	// 2^-8 of itself, and (k+h+1) x 2^-24 x the sum of the weighted rows' magnitudes.
	PartialByHostFP32
	reductions
)

// ByHost says whether each host sums its rows of a token.
func (r Reduction) ByHost() bool { return r == PartialByHost || r == PartialByHostFP32 }

// Weighting says whether combine applies the routing weights.
type Weighting uint8

const (
	// Weighted multiplies each selection's row by its weight.
	Weighted Weighting = iota
	// Plain adds rows without weights; the caller has weighted them, or needs no weights.
	Plain
	weightings
)

// Payload is the content of a dispatched row.
type Payload uint8

const (
	BF16     Payload = iota // hidden bf16 numbers
	FP16                    // hidden fp16 numbers
	FP32                    // hidden fp32 numbers
	FP8                     // hidden e4m3 numbers and an fp32 scale for each 128 of them
	FP8UE8M0                // hidden e4m3 numbers and a power-of-two scale for each 128, one byte each, four to a word
	Opaque                  // RowBytes bytes and ScaleBytes bytes that are moved, not interpreted (MXFP8, NVFP4, ...)
	payloads
)

// Counts says whether the host learns how many rows arrive, or only the GPU.
type Counts uint8

const (
	// HostCounts gives tensors of exactly the rows that arrive. The host waits for the counts.
	HostCounts Counts = iota
	// DeviceCounts gives tensors of the capacity, and the counts as tensors in the same memory. The
	// host does not wait.
	DeviceCounts
	countings
)

// Overflow says what happens when more rows arrive than Capacity.
type Overflow uint8

const (
	// OverflowRefuse makes Prepare return an [*OverflowError] on every rank. Nothing has moved.
	OverflowRefuse Overflow = iota
	// OverflowDrop drops the last rows, in row order, and still reports the true demand. Combine
	// omits dropped rows.
	OverflowDrop
	overflows
)

// ScaleOrder is the order of received scales in memory.
type ScaleOrder uint8

const (
	// RowMajorScales keeps the scales of a row together.
	RowMajorScales ScaleOrder = iota
	// ColumnMajorScales keeps the same scale of consecutive rows together, as grouped matrix
	// products read it. UE8M0 scales move in words of four.
	ColumnMajorScales
	scaleOrders
)

var (
	LayoutNames    = [Layouts]string{"expert-major", "expert-packed", "rank-major", "token-major"}
	ReductionNames = [reductions]string{
		"exact", "partial", "partial-by-selection", "partial-by-host", "partial-by-host-fp32",
	}
	WeightingNames  = [weightings]string{"weighted", "plain"}
	PayloadNames    = [payloads]string{"bf16", "fp16", "fp32", "fp8", "fp8-ue8m0", "opaque"}
	CountNames      = [countings]string{"host", "device"}
	overflowNames   = [overflows]string{"refuse", "drop"}
	scaleOrderNames = [scaleOrders]string{"row-major", "column-major"}
)

func name[T ~uint8](names []string, v T) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("invalid(%d)", uint8(v))
}

// choice says what a field may be that has a number without a name.
func choice[T ~uint8](field string, v T, names []string) string {
	return fmt.Sprintf("%s is %d: want one of %s", field, uint8(v), strings.Join(names, ", "))
}

func parse[T ~uint8](what string, names []string, s string) (T, error) {
	for i, n := range names {
		if n == s {
			return T(i), nil
		}
	}
	return 0, weft.Invalidf("%s %q is none of %v", what, s, names)
}

func (l Layout) String() string     { return name(LayoutNames[:], l) }
func (r Reduction) String() string  { return name(ReductionNames[:], r) }
func (w Weighting) String() string  { return name(WeightingNames[:], w) }
func (p Payload) String() string    { return name(PayloadNames[:], p) }
func (c Counts) String() string     { return name(CountNames[:], c) }
func (o Overflow) String() string   { return name(overflowNames[:], o) }
func (o ScaleOrder) String() string { return name(scaleOrderNames[:], o) }

// ParseLayout is the inverse of [Layout.String].
func ParseLayout(s string) (Layout, error) { return parse[Layout]("layout", LayoutNames[:], s) }

// ParseReduction is the inverse of [Reduction.String].
func ParseReduction(s string) (Reduction, error) {
	return parse[Reduction]("reduction", ReductionNames[:], s)
}

// ParseWeighting is the inverse of [Weighting.String].
func ParseWeighting(s string) (Weighting, error) {
	return parse[Weighting]("weighting", WeightingNames[:], s)
}

// ParsePayload is the inverse of [Payload.String].
func ParsePayload(s string) (Payload, error) { return parse[Payload]("payload", PayloadNames[:], s) }

// ParseCounts is the inverse of [Counts.String].
func ParseCounts(s string) (Counts, error) { return parse[Counts]("counts", CountNames[:], s) }

// ParseScaleOrder is the inverse of [ScaleOrder.String].
func ParseScaleOrder(s string) (ScaleOrder, error) {
	return parse[ScaleOrder]("scale order", scaleOrderNames[:], s)
}

// ByExpert reports whether a row of the layout belongs to one expert (and one selection). In the
// other layouts it belongs to a rank.
func (l Layout) ByExpert() bool { return l == ExpertMajor || l == ExpertPacked }

// Packed reports whether the rows of the layout stand without gaps. Their number then follows from
// the routing.
func (l Layout) Packed() bool { return l == ExpertPacked || l == TokenMajor }

// fp8 reports whether rows are e4m3 numbers with scales that Weft interprets.
func (p Payload) fp8() bool { return p == FP8 || p == FP8UE8M0 }

// DType is the type of a row's elements.
func (p Payload) DType() weft.DType {
	switch p {
	case BF16:
		return weft.BFloat16
	case FP16:
		return weft.Float16
	case FP32:
		return weft.Float32
	case FP8, FP8UE8M0:
		return weft.Float8E4M3
	default:
		return weft.Uint8
	}
}

// Limits of a Spec.
const (
	MaxTopK    = 32
	MaxExperts = 1 << 15
	// ScaleBlock is how many elements share one scale.
	ScaleBlock = 128

	maxTokens   = 1 << 24
	maxCapacity = 1 << 30
	maxHidden   = 1 << 24
	maxRowBytes = 4 * maxHidden
)

// Spec describes the exchanges of an ep.Handle. It is plain data: copy it, change it, compare it. It
// must be the same on every rank.
type Spec struct {
	// Experts of all ranks: a multiple of the number of ranks. Rank r has the experts
	// [r*Experts/ranks, (r+1)*Experts/ranks).
	Experts   int
	TopK      int // selections a token, 1 to 32
	Hidden    int // elements of a row; a row is a multiple of 16 bytes; FP8: a multiple of 128, UE8M0: of 512
	MaxTokens int // the most tokens that any rank dispatches at once

	Layout    Layout
	Reduction Reduction
	Weighting Weighting
	Payload   Payload

	// Quantize, for the FP8 payloads, is the type of the caller's rows (bf16, fp16 or fp32), which
	// dispatch quantises. Without it the caller passes e4m3 rows and their scales.
	Quantize weft.DType
	// PowerOfTwoScales rounds the scales of quantised FP8 rows up to powers of two. UE8M0 scales
	// always are powers of two.
	PowerOfTwoScales bool
	ScaleOrder       ScaleOrder

	RowBytes   int // Opaque: bytes of a row, a multiple of 16, at most 64 MiB
	ScaleBytes int // Opaque: bytes of its scales, a multiple of 16, or 0; at most 64 MiB

	// Output is the type of the rows that combine takes and returns. For BF16, FP16 and FP32 it is
	// the payload's type. For the others it is one of these, bf16 by default. Opaque rows can be
	// combined only if Output and Hidden are given.
	Output weft.DType

	Counts Counts
	// Capacity is the most rows that a rank can receive, or for ExpertMajor that an expert can. 0 is
	// the worst case: nothing can overflow. RankMajor has none.
	Capacity int
	Overflow Overflow
	// Alignment, for ExpertPacked, is the multiple to which zones are padded: a power of two up to
	// 65536. 0 and 1 pad nothing.
	Alignment int

	// SMs, on GPUs, is the number of SMs that the kernels of the handle may fill. 0 is three
	// quarters of the SMs that other handles have left; for operations in direct mode it is at most
	// 32, unless Tuning says otherwise. Kernels that wait for peers are all resident at once, so all
	// handles together cannot have more SMs than the GPU has. An idle GPU gives each block an SM of
	// its own: where several blocks would fill one SM, a kernel may run on more SMs than this, in
	// part of each. In direct mode blocks fill whole SMs.
	SMs int
	// SerialGroup, on GPUs, is the number of a serial group. Invariant: the operations of its
	// handles follow each other in stream order, in the same order on every rank. They never run at
	// once, so the handles of a group share one reservation of SMs. 0 is a handle of its own.
	SerialGroup int

	// Tuning overrides Weft's choice of how rows move. Results never depend on it.
	Tuning Tuning

	// Live is the number of received batches that may be unreleased at once; 0 is 2. On GPUs
	// senders write rank-major rows of many tokens straight into the receive buffer: more than 256
	// tokens a rank, or 128 for three ranks and more, unless Tuning says otherwise. Every rank uses
	// the same buffer for a batch, so these batches must be released in the order of their arrival.
	Live int
}

// Normalize fills in the defaults.
func (s Spec) Normalize() Spec {
	if s.Live == 0 {
		s.Live = 2
	}
	if s.Alignment == 0 {
		s.Alignment = 1
	}
	if s.Output == weft.InvalidDType {
		switch {
		case s.Payload == BF16 || s.Payload == FP16 || s.Payload == FP32:
			s.Output = s.Payload.DType()
		case s.Payload.fp8():
			s.Output = weft.BFloat16
		}
	}
	return s
}

// anyBits reports whether dispatched rows may be any bits. Then a word of ones may be data, and
// values cannot be their own flags.
func (s Spec) anyBits() bool { return s.Payload == Opaque || s.Payload == FP8UE8M0 }

// Combines reports whether the handle can combine.
func (s Spec) Combines() bool { return s.Output != weft.InvalidDType }

// RowSize is the size of a dispatched row without its scales.
func (s Spec) RowSize() int {
	if s.Payload == Opaque {
		return s.RowBytes
	}
	return s.Hidden * s.Payload.DType().Size()
}

// ScaleSize is the size of the scales of a row.
func (s Spec) ScaleSize() int {
	switch s.Payload {
	case FP8:
		return s.Hidden / ScaleBlock * 4
	case FP8UE8M0:
		return s.Hidden / ScaleBlock
	case Opaque:
		return s.ScaleBytes
	default:
		return 0
	}
}

// OutputSize is the size of a row that combine takes or returns.
func (s Spec) OutputSize() int { return s.Hidden * s.Output.Size() }

// SumSize is the size of a sum on its way home.
func (s Spec) SumSize() int {
	if s.Reduction == PartialByHostFP32 {
		return s.Hidden * 4
	}
	return s.OutputSize()
}

// Validate checks whether the host engine supports the Spec for the given number of ranks. The error
// names the reason and the way out.
func (s Spec) Validate(ranks int) error { return s.ValidateOn(HostEngine, ranks) }

// ValidateOn is Validate for a given engine; for GPUs, of one host: see [Spec.ValidateBetween].
func (s Spec) ValidateOn(e Engine, ranks int) error {
	if e >= engines {
		return weft.Invalidf("engine %v", e)
	}
	return s.validate(e, ranks, s.refusal(e, ranks))
}

// ValidateBetween is Validate for ranks on GPUs of several hosts.
func (s Spec) ValidateBetween(ranks int) error {
	return s.validate(GPUEngine, ranks, s.refusedBy(ranks, cellRules, detailRules, gpuRules))
}

// validate is Validate, where a rule refuses the Spec or none does.
func (s Spec) validate(e Engine, ranks int, refused *rule) error {
	s = s.Normalize()
	if err := s.validateRanges(ranks); err != nil {
		return err
	}
	if refused != nil {
		return weft.Unsupportedf("%s", refused.reason(request{s, ranks}))
	}
	if n := mostRows(s, ranks); n > math.MaxInt32 {
		return weft.Unsupportedf("%d rows at one rank, at most %d: lower MaxTokens, or give a Capacity", n, math.MaxInt32)
	}
	if err := s.ValidateTuning(e, ranks); err != nil {
		return err
	}
	g := NewGeometry(s, ranks)
	if size := g.WindowSizes(s); !size.fit(s.Live, math.MaxInt) {
		return weft.Unsupportedf("%d rows at one rank, %d live tensors: together they need more memory than "+
			"there are addresses; "+
			"lower MaxTokens, Live or the size of a row, or give a Capacity", g.Rows(), s.Live)
	}
	return nil
}

func (s Spec) validateRanges(ranks int) error {
	for _, f := range []struct {
		what string
		ok   bool
	}{
		{fmt.Sprintf("%d ranks: want 1 to %d", ranks, weft.MaxRanks), ranks >= 1 && ranks <= weft.MaxRanks},
		{fmt.Sprintf("Experts is %d: want 1 to %d", s.Experts, MaxExperts), s.Experts >= 1 && s.Experts <= MaxExperts},
		{fmt.Sprintf("Experts is %d on %d ranks: want a multiple of the ranks", s.Experts, ranks), ranks < 1 ||
			s.Experts%ranks == 0},
		{fmt.Sprintf("TopK is %d: want 1 to %d", s.TopK, MaxTopK), s.TopK >= 1 && s.TopK <= MaxTopK},
		{fmt.Sprintf("TopK is %d of %d experts: a token cannot select more experts than there are", s.TopK,
			s.Experts), s.TopK <= s.Experts},
		{fmt.Sprintf("MaxTokens is %d: want 1 to %d", s.MaxTokens, maxTokens), s.MaxTokens >= 1 &&
			s.MaxTokens <= maxTokens},
		{fmt.Sprintf("Hidden is %d: want 0 to %d", s.Hidden, maxHidden), s.Hidden >= 0 && s.Hidden <= maxHidden},
		{fmt.Sprintf("RowBytes is %d: want 0 to %d", s.RowBytes, maxRowBytes), s.RowBytes >= 0 &&
			s.RowBytes <= maxRowBytes},
		{fmt.Sprintf("ScaleBytes is %d: want 0 to %d", s.ScaleBytes, maxRowBytes), s.ScaleBytes >= 0 &&
			s.ScaleBytes <= maxRowBytes},
		{choice("Layout", s.Layout, LayoutNames[:]), s.Layout < Layouts},
		{choice("Reduction", s.Reduction, ReductionNames[:]), s.Reduction < reductions},
		{choice("Weighting", s.Weighting, WeightingNames[:]), s.Weighting < weightings},
		{choice("Payload", s.Payload, PayloadNames[:]), s.Payload < payloads},
		{choice("Counts", s.Counts, CountNames[:]), s.Counts < countings},
		{choice("Overflow", s.Overflow, overflowNames[:]), s.Overflow < overflows},
		{choice("ScaleOrder", s.ScaleOrder, scaleOrderNames[:]), s.ScaleOrder < scaleOrders},
		{
			fmt.Sprintf("Alignment is %d: want a power of two up to 65536", s.Alignment),
			s.Alignment >= 1 && s.Alignment <= 1<<16 && s.Alignment&(s.Alignment-1) == 0,
		},
		{fmt.Sprintf("Capacity is %d: want 0 (the worst case) to %d", s.Capacity, maxCapacity), s.Capacity >= 0 &&
			s.Capacity <= maxCapacity},
		{fmt.Sprintf("SMs is %d: want 0 (three quarters of the free ones) to 1024", s.SMs), s.SMs >= 0 && s.SMs <= 1024},
		{fmt.Sprintf("SerialGroup is %d: want 0 (none) or a positive number", s.SerialGroup), s.SerialGroup >= 0},
		{fmt.Sprintf("Live is %d: want 1 to 1024", s.Live), s.Live >= 1 && s.Live <= 1024},
	} {
		if !f.ok {
			return weft.Invalidf("%s", f.what)
		}
	}
	return nil
}
