package spec

import (
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/thresholds"
)

// rule refuses a part of the space of Specs. The rules alone say what is not supported:
// [Spec.Validate] refuses by them, the table in docs/ is generated from them, and the conformance
// suite runs every cell that they allow. Numbers out of range, and more rows than memory has room
// for, are checked elsewhere.
type rule struct {
	refuses func(s request) bool
	because string                 // a sentence that names the way out
	given   func(s request) string // the numbers that it is about; may be nil
}

// reason is why a Spec is refused, with its numbers.
func (r *rule) reason(s request) string {
	if r.given == nil {
		return r.because
	}
	return r.given(s) + ": " + r.because
}

func hidden(s request) string { return fmt.Sprintf("Hidden is %d", s.Hidden) }

func rowSize(s request) string {
	return fmt.Sprintf("Hidden is %d, and a row of %v has %d bytes", s.Hidden, s.Payload, s.RowSize())
}

func opaqueSize(s request) string {
	return fmt.Sprintf("RowBytes is %d, ScaleBytes %d", s.RowBytes, s.ScaleBytes)
}

func outputSize(s request) string {
	return fmt.Sprintf("Hidden is %d, and a row of %v has %d bytes", s.Hidden, s.Output, s.OutputSize())
}

func mostTokens(s request) string { return fmt.Sprintf("MaxTokens is %d", s.MaxTokens) }

// request is a Spec for so many ranks.
type request struct {
	Spec
	ranks int
}

// cellRules refuse whole cells of the table.
var cellRules = []rule{
	{
		func(s request) bool { return !s.Layout.ByExpert() && s.Reduction == Exact },
		"a row of the rank-major and token-major layouts stands for all of a rank's experts, so it comes " +
			"home as their sum; use a partial reduction", nil,
	},
	{
		func(s request) bool { return !s.Layout.ByExpert() && s.Weighting == Weighted },
		"rank-major and token-major rows are summed by the caller, who applies the weights; use plain weighting", nil,
	},
}

// detailRules hold in every cell. The first that refuses gives the reason.
var detailRules = []rule{
	{
		func(s request) bool { return s.Alignment > 1 && s.Layout != ExpertPacked },
		"only the expert-packed layout pads its zones; use it, or alignment 1", nil,
	},
	{
		func(s request) bool { return s.Capacity > 0 && s.Layout == RankMajor },
		"the rank-major layout has MaxTokens rows for every rank and cannot overflow; leave Capacity 0", nil,
	},
	{
		func(s request) bool { return s.ScaleOrder == ColumnMajorScales && !s.Payload.fp8() },
		"only fp8 payloads have scales whose order can be chosen; use row-major scales", nil,
	},
	{
		func(s request) bool { return s.Payload.fp8() && s.Hidden%ScaleBlock != 0 },
		"fp8 rows have one scale for each 128 elements; pad hidden to a multiple of 128", hidden,
	},
	{
		func(s request) bool { return s.Payload == FP8UE8M0 && s.Hidden%(4*ScaleBlock) != 0 },
		"UE8M0 scales travel four to a word; pad hidden to a multiple of 512, or use fp32 scales", hidden,
	},
	{
		func(s request) bool { return s.Quantize != weft.InvalidDType && !s.Payload.fp8() },
		"only fp8 payloads are quantised on the way; leave Quantize out", nil,
	},
	{
		func(s request) bool {
			return s.Quantize != weft.InvalidDType && s.Quantize != weft.BFloat16 &&
				s.Quantize != weft.Float16 && s.Quantize != weft.Float32
		},
		"rows are quantised from bf16, fp16 or fp32; convert them first", nil,
	},
	{
		func(s request) bool {
			return s.PowerOfTwoScales && (s.Payload != FP8 || s.Quantize == weft.InvalidDType)
		},
		"scales are rounded to powers of two when dispatch quantises to the fp8 payload; set Quantize, or " +
			"round them yourself", nil,
	},
	{
		func(s request) bool {
			return (s.Payload == BF16 || s.Payload == FP16 || s.Payload == FP32) && s.Output != s.Payload.DType()
		},
		"combine returns rows of the type that dispatch sent; leave Output out", nil,
	},
	{
		func(s request) bool {
			return s.Combines() && s.Output != weft.BFloat16 && s.Output != weft.Float16 && s.Output != weft.Float32
		},
		"combine sums bf16, fp16 or fp32 rows; choose one of them as Output", nil,
	},
	{
		func(s request) bool { return s.Payload != Opaque && (s.RowSize() == 0 || s.RowSize()%16 != 0) },
		"rows move in pieces of 16 bytes; pad hidden so that a row is a multiple of 16 bytes", rowSize,
	},
	{
		func(s request) bool {
			return s.Payload == Opaque && (s.RowBytes == 0 || s.RowBytes%16 != 0 || s.ScaleBytes%16 != 0)
		},
		"opaque rows and their scales move in pieces of 16 bytes; give RowBytes, and pad both to a multiple of 16",
		opaqueSize,
	},
	{
		func(s request) bool { return s.Combines() && (s.OutputSize() == 0 || s.OutputSize()%16 != 0) },
		"combined rows move in pieces of 16 bytes; give Hidden so that a row of the Output type is a multiple of 16 bytes",
		outputSize,
	},
}

// gpuRules hold on GPUs, beside all others.
var gpuRules = []rule{
	{
		func(s request) bool { return s.MaxTokens > maxTokensGPU },
		fmt.Sprintf("handles on GPUs take up to %d tokens a rank; lower MaxTokens and call more often, or "+
			"use a host communicator", maxTokensGPU), mostTokens,
	},
	{
		func(s request) bool {
			return s.Capacity > 0 && int64(s.Capacity) < worst(s.Spec, s.ranks) && s.Counts == DeviceCounts &&
				s.Overflow == OverflowRefuse
		},
		"with device counts on GPUs rows leave before a rank could report an overflow; use OverflowDrop, " +
			"HostCounts, or Capacity 0, where nothing overflows", nil,
	},
}

// withinRules hold between GPUs of one host, beside all others: they refuse what only the host engine supports.
var withinRules = []rule{
	{
		func(s request) bool { return s.Reduction.ByHost() },
		"on GPUs of one host rows are not summed host by host; use the partial reduction, or a host communicator", nil,
	},
}

// ThroughPorts says whether kernels and port channels move the rows of a handle between GPUs of several hosts: few
// tokens, whose slots have room for all. Otherwise a processor of each host does.
func (s Spec) ThroughPorts(ranks int) bool {
	s = s.Normalize()
	return !s.direct(ranks) && !s.Reduction.ByHost() && s.MaxTokens <= thresholds.PortTokens
}

// maxTokensGPU is the most tokens that a rank on a GPU may dispatch at once.
const maxTokensGPU = 1 << 15

//go:generate go run ../internal/supportdoc -o ../../docs/guides/ep-support.md

// supportHeading is the heading of docs/guides/ep-support.md.
//
//go:embed support.md
var supportHeading string

// WriteSupportPage writes the page docs/guides/ep-support.md: the table of [WriteSupport] under a
// heading.
func WriteSupportPage(w io.Writer) error {
	if _, err := io.WriteString(w, supportHeading); err != nil {
		return err
	}
	return WriteSupport(w)
}

// WriteSupport writes the table of what is supported as Markdown: a row for each layout, reduction
// and weighting, a column for each payload. Every cell holds for one-call and split-phase
// operations, host and device counts, forward and backward. Opaque rows are combined, and have
// gradients, only if the Spec gives an Output type.
func WriteSupport(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| layout | reduction | weighting |")
	for p := range payloads {
		fmt.Fprintf(&b, " %v |", p)
	}
	b.WriteString("\n|---|---|---|" + strings.Repeat("---|", int(payloads)) + "\n")
	var notes []string
	note := func(text string) int {
		for i, n := range notes {
			if n == text {
				return i + 1
			}
		}
		notes = append(notes, text)
		return len(notes)
	}
	for _, c := range Cells() {
		if c.Payload == 0 {
			fmt.Fprintf(&b, "| %v | %v | %v |", c.Layout, c.Reduction, c.Weighting)
		}
		s := c.Spec(4)
		if r := s.refusal(HostEngine, 4); r != nil {
			fmt.Fprintf(&b, " refused (%d) |", note(r.because))
		} else if s.refusal(GPUEngine, 4) != nil {
			b.WriteString(" tested on the host |")
		} else {
			b.WriteString(" tested |")
		}
		if c.Payload == payloads-1 {
			b.WriteString("\n")
		}
	}
	b.WriteString("\nRefused, in the words of the error:\n\n")
	for i, n := range notes {
		fmt.Fprintf(&b, "%d. %s\n", i+1, strings.ReplaceAll(n, "; ", ";\n   "))
	}
	ways := func(rules []rule) {
		b.WriteString("| why | way out |\n|---|---|\n")
		for _, r := range rules {
			why, way, _ := strings.Cut(r.because, "; ")
			fmt.Fprintf(&b, "| %s | %s |\n", why, way)
		}
	}
	b.WriteString("\nRefused in every cell:\n\n")
	ways(detailRules)
	b.WriteString("\nRefused on GPUs:\n\n")
	ways(gpuRules)
	b.WriteString("\nRefused on GPUs of one host:\n\n")
	ways(withinRules)
	_, err := io.WriteString(w, b.String())
	return err
}

// refusal is the first rule that refuses the Spec on the engine, or nil. GPUs are those of one host.
func (s Spec) refusal(e Engine, ranks int) *rule {
	all := [][]rule{cellRules, detailRules}
	if e == GPUEngine {
		all = append(all, gpuRules, withinRules)
	}
	return s.refusedBy(ranks, all...)
}

func (s Spec) refusedBy(ranks int, all ...[]rule) *rule {
	asked := request{s.Normalize(), ranks}
	for _, rules := range all {
		for i := range rules {
			if rules[i].refuses(asked) {
				return &rules[i]
			}
		}
	}
	return nil
}

// Cell is one point of the table of what is supported.
type Cell struct {
	Layout    Layout
	Reduction Reduction
	Weighting Weighting
	Payload   Payload
}

// Cells lists all cells; the payload varies fastest.
func Cells() []Cell {
	var all []Cell
	for l := range Layouts {
		for r := range reductions {
			for w := range weightings {
				for p := range payloads {
					all = append(all, Cell{l, r, w, p})
				}
			}
		}
	}
	return all
}

// Spec makes a small Spec of the cell for the given number of ranks. It passes [Spec.Validate]
// unless the cell is refused.
func (c Cell) Spec(ranks int) Spec {
	s := Spec{
		Experts: 4 * ranks, TopK: 4, Hidden: 512, MaxTokens: 8,
		Layout: c.Layout, Reduction: c.Reduction, Weighting: c.Weighting, Payload: c.Payload,
	}
	if c.Payload == Opaque {
		s.RowBytes, s.ScaleBytes, s.Output = 256, 32, weft.BFloat16
	}
	return s
}
