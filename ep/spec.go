package ep

import (
	"io"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine"
	"github.com/weftgo/weft/ep/spec"
)

// Package spec has the types that describe exchanges; these are its names here.
type (
	Spec         = spec.Spec
	Layout       = spec.Layout
	Reduction    = spec.Reduction
	Weighting    = spec.Weighting
	Payload      = spec.Payload
	Counts       = spec.Counts
	Overflow     = spec.Overflow
	ScaleOrder   = spec.ScaleOrder
	Engine       = spec.Engine
	Tuning       = spec.Tuning
	KernelTuning = spec.KernelTuning
	HostCopy     = spec.HostCopy
	Protocol     = spec.Protocol
	Cell         = spec.Cell

	Copies            = spec.Copies
	Traffic           = spec.Traffic
	DeviceTokenCounts = spec.DeviceTokenCounts
	TokenCounts       = spec.TokenCounts
	OverflowError     = spec.OverflowError
)

const (
	ExpertMajor  = spec.ExpertMajor
	ExpertPacked = spec.ExpertPacked
	RankMajor    = spec.RankMajor
	TokenMajor   = spec.TokenMajor

	Exact              = spec.Exact
	Partial            = spec.Partial
	PartialBySelection = spec.PartialBySelection
	PartialByHost      = spec.PartialByHost
	PartialByHostFP32  = spec.PartialByHostFP32

	Weighted = spec.Weighted
	Plain    = spec.Plain

	BF16     = spec.BF16
	FP16     = spec.FP16
	FP32     = spec.FP32
	FP8      = spec.FP8
	FP8UE8M0 = spec.FP8UE8M0
	Opaque   = spec.Opaque

	HostCounts   = spec.HostCounts
	DeviceCounts = spec.DeviceCounts

	OverflowRefuse = spec.OverflowRefuse
	OverflowDrop   = spec.OverflowDrop

	RowMajorScales    = spec.RowMajorScales
	ColumnMajorScales = spec.ColumnMajorScales

	HostEngine = spec.HostEngine
	GPUEngine  = spec.GPUEngine

	ChosenProtocol = spec.ChosenProtocol
	ValueProtocol  = spec.ValueProtocol
	FlagProtocol   = spec.FlagProtocol

	FanOut   = spec.FanOut
	CopyEach = spec.CopyEach

	MaxTopK    = spec.MaxTopK
	MaxExperts = spec.MaxExperts
	ScaleBlock = spec.ScaleBlock
)

// NoGeneration is the [weft.Tensor].Generation of rows that were released: it matches no batch.
const NoGeneration = engine.NoGeneration

// ParseLayout is the inverse of Layout.String; the other parse functions likewise.
func ParseLayout(s string) (Layout, error) { return spec.ParseLayout(s) }

// ParseReduction: see [ParseLayout].
func ParseReduction(s string) (Reduction, error) { return spec.ParseReduction(s) }

// ParseWeighting: see [ParseLayout].
func ParseWeighting(s string) (Weighting, error) { return spec.ParseWeighting(s) }

// ParsePayload: see [ParseLayout].
func ParsePayload(s string) (Payload, error) { return spec.ParsePayload(s) }

// ParseCounts: see [ParseLayout].
func ParseCounts(s string) (Counts, error) { return spec.ParseCounts(s) }

// ParseScaleOrder: see [ParseLayout].
func ParseScaleOrder(s string) (ScaleOrder, error) { return spec.ParseScaleOrder(s) }

// ParseProtocol: see [ParseLayout].
func ParseProtocol(s string) (Protocol, error) { return spec.ParseProtocol(s) }

// CountRouting counts where tokens go, on the host and without an exchange: see [spec.CountRouting].
func CountRouting(topk weft.Tensor, experts, ranks, ranksPerNode int) (*TokenCounts, error) {
	return spec.CountRouting(topk, experts, ranks, ranksPerNode)
}

// Cells lists what is supported and what is refused: see [spec.Cells].
func Cells() []Cell { return spec.Cells() }

// WriteSupport writes the table of what is supported: see [spec.WriteSupport].
func WriteSupport(w io.Writer) error { return spec.WriteSupport(w) }
