package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
)

func newBenchEP() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ep",
		Short: "Measure expert parallelism: dispatch and combine",
		Args:  noArgs,
	}
	describe(cmd, "bench_ep")
	out, flags := outputFlags(cmd), newEPFlags(cmd)
	gpus := newGPUFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		flags.setDefaults(cmd)
		if err := refuseOther(cmd, gpus.device, hostOnly, gpuOnly); err != nil {
			return usageError{err}
		}
		if err := launchedRanks(cmd, gpus.device, &flags.ranks); err != nil {
			return usageError{err}
		}
		if gpus.device == onGPU {
			return gpus.run(cmd, flags, *out)
		}
		if launched() > 0 {
			return sweepAsMember(cmd.Context(), *out, flags.jobs())
		}
		return sweep(*out, flags.jobs())
	}
	return cmd
}

// epFlags are the shapes that a command line asks for.
type epFlags struct {
	shape                benchep.Shape
	ranks, tokens        counts
	mode, calls, operand string
}

// rows adds the flags of what rows are, and where they may go.
func (e *epFlags) rows(cmd *cobra.Command) {
	s, f := &e.shape, cmd.Flags()
	f.IntVar(&s.Hidden, "hidden", s.Hidden, "elements of a row")
	f.IntVar(&s.TopK, "topk", s.TopK, "experts that a token selects")
	f.IntVar(&s.Experts, "experts", s.Experts, "experts of all ranks together")
}

func newEPFlags(cmd *cobra.Command) *epFlags {
	e := &epFlags{
		shape: defaultEP(), ranks: counts{4}, tokens: counts{1, 8, 64, 512}, mode: lowLatency,
		calls: oneCall, operand: window,
	}
	s, f := &e.shape, cmd.Flags()
	f.Var(&e.ranks, "ranks", "how many ranks")
	f.Var(&e.tokens, "tokens", "tokens per rank")
	e.rows(cmd)
	f.Lookup("experts").Usage += "; 256 with --device gpu if it is not given"
	oneOf(cmd, &s.DType, "dtype", benchep.Payloads(), "element type (8-bit types are quantised from bf16)")
	oneOf(cmd, &s.DType, "payload", benchep.Payloads(), "the same as --dtype")
	hide(cmd, "payload")
	oneOf(cmd, &s.Scales, "scales", benchep.ScaleOrders(), "order of the scales that arrive with fp8 rows")
	oneOf(cmd, &s.Layout, "layout", benchep.Layouts(), "order in which a rank receives rows")
	oneOf(cmd, &s.Reduction, "reduction", benchep.Reductions(), "how rows are summed on their way home")
	oneOf(cmd, &s.Weighting, "weighting", benchep.Weightings(), "whether combine applies the weights")
	oneOf(cmd, &s.Counts, "counts", benchep.CountModes(), "whether the host learns how many rows arrive, or only the GPU")
	oneOf(cmd, &s.Routing, "routing", routing.Kinds(), "how popular experts are; hot is one hot rank")
	f.Uint64Var(&s.Seed, "seed", s.Seed, "of the routing")
	oneOf(cmd, &e.mode, "mode", []string{lowLatency, highThroughput},
		"the defaults: few tokens (low latency) or many (high throughput)")
	oneOf(cmd, &e.calls, "calls", []string{oneCall, phases}, "send and receive in one call, or in phases apart")
	oneOf(cmd, &e.operand, "operand", []string{window, heap},
		"where rows are: read there from a window, staged first from the heap")
	f.BoolVar(&s.Cached, "cached", false, "prepare each routing once, outside the timing")
	f.BoolVar(&s.Fresh, "fresh", false, "write operands anew before each operation")
	f.IntVar(&s.Batches, "batches", s.Batches, "different routings, taken in turn")
	f.BoolVar(&s.InPlace, "in-place", false, "experts overwrite the rows that they received")
	effortFlags(cmd, &s.Effort)
	return e
}

// The values of --mode.
const (
	lowLatency     = "ll"
	highThroughput = "ht"
)

// The values of --calls and --operand, here and in rows.
const (
	oneCall = "one-call"
	phases  = "phases"
	window  = "window"
	heap    = "heap"
)

// setDefaults fills in the defaults that depend on the given flags.
func (e *epFlags) setDefaults(cmd *cobra.Command) {
	s := &e.shape
	s.Phases, s.Heap = e.calls == phases, e.operand == heap
	if e.mode == highThroughput {
		if !cmd.Flags().Changed("tokens") {
			e.tokens = counts{4096}
		}
		if !cmd.Flags().Changed("layout") {
			s.Layout = "token-major"
		}
	}
	if s.Layout != "rank-major" && s.Layout != "token-major" {
		return
	}
	for name, field := range map[string]*string{"reduction": &s.Reduction, "weighting": &s.Weighting} {
		if !cmd.Flags().Changed(name) {
			*field = map[string]string{"reduction": "partial", "weighting": "plain"}[name]
		}
	}
}

func (e *epFlags) jobs() []job {
	var jobs []job
	for _, n := range e.ranks {
		for _, t := range e.tokens {
			shape := e.shape
			shape.Tokens = t
			jobs = append(jobs, job{n, bench.Task{EP: &shape}})
		}
	}
	return jobs
}

// defaultEP is the shape that benchmarks measure by default.
func defaultEP() benchep.Shape {
	return benchep.Shape{
		Hidden: 7168, TopK: 8, Experts: 64, DType: "bf16", Layout: "expert-major",
		Reduction: "exact", Weighting: "weighted", Counts: "host",
		Scales: "row-major", Routing: routing.Uniform, Seed: 1, Batches: 1,
	}
}

// ep measures one shape on n ranks.
func (s *session) ep(n int, shape benchep.Shape) ([]measure.Record, error) {
	base := s.base
	base.Tokens, base.Hidden, base.TopK, base.Experts = shape.Tokens, shape.Hidden, shape.TopK, shape.Experts
	base.DType, base.Layout, base.Reduction = shape.DType, shape.Layout, shape.Reduction
	base.Weighting, base.Counts = shape.Weighting, shape.Counts
	base.Routing, base.Cached = string(shape.Routing), shape.Cached
	base.Scales, base.Fresh, base.Batches = shape.ScaleOrder(), shape.Fresh, shape.Batches
	base.Mode, base.Operand = oneCall, operandName(shape.Heap)
	if shape.Phases {
		base.Mode = phases
	}
	name := fmt.Sprintf("ep, %s, %s", measure.Count(n, "rank"), measure.Count(shape.Tokens, "token"))
	return s.run(name, n, bench.Task{EP: &shape}, base, s.copySpeed(n))
}

func operandName(onHeap bool) string {
	if onHeap {
		return heap
	}
	return window
}
