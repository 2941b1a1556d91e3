package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
)

func newBenchEP() *cobra.Command {
	var (
		cfg    = defaultEP()
		ranks  = counts{4}
		tokens = counts{1, 8, 64, 512}
		kind   string
		mode   string
		place  string
	)
	cmd := &cobra.Command{
		Use:   "ep",
		Short: "Measure expert parallelism: dispatch and combine",
		Long: `Measure expert parallelism between ranks of this host.

Prepare, dispatch and combine are called in every iteration and timed apart, each from
a barrier to its return. Unless told otherwise, operands and routing are the same every time, as in the benchmarks of
other libraries: what fits into the caches stays there. With --fresh operands are
written anew before each operation, as a model would, and --batches makes routings
change. Lists of ranks and tokens are swept.

The rank-major and token-major layouts have one row per token and rank, so for them
--wire, --reduction and --sum default to per-rank, partial and plain.`,
		Example: `  weft bench ep --ranks 2,4 --tokens 1,8,64,512 --report report.html
  weft bench ep --ranks 2 --tokens 1 --json
  weft bench ep --dtype fp8 --layout expert-packed --routing zipf`,
		Args: cobra.NoArgs,
	}
	asJSON, reportFile := outputFlags(cmd)
	f := cmd.Flags()
	f.Var(&ranks, "ranks", "how many ranks")
	f.Var(&tokens, "tokens", "tokens per rank")
	f.IntVar(&cfg.Hidden, "hidden", cfg.Hidden, "elements of a row")
	f.IntVar(&cfg.TopK, "topk", cfg.TopK, "experts that a token selects")
	f.IntVar(&cfg.Experts, "experts", cfg.Experts, "experts of all ranks together")
	f.StringVar(&cfg.DType, "dtype", cfg.DType, "bf16, fp16, fp32, fp8 or fp8-ue8m0 (the last two quantised from bf16 on the way)")
	f.StringVar(&cfg.Layout, "layout", cfg.Layout, "expert-major, expert-packed, rank-major or token-major")
	f.StringVar(&cfg.Wire, "wire", cfg.Wire, "per-selection or per-rank")
	f.StringVar(&cfg.Reduction, "reduction", cfg.Reduction, "exact or partial")
	f.StringVar(&cfg.Sum, "sum", cfg.Sum, "weighted or plain")
	f.StringVar(&cfg.Counts, "counts", cfg.Counts, "host or device")
	f.StringVar(&kind, "routing", string(routing.Uniform), "uniform, zipf or hot (one hot rank)")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "of the routing")
	f.StringVar(&mode, "mode", "one-call", "one-call, or phases: send and receive apart")
	f.StringVar(&place, "operand", "window", "window: rows are read where they are; heap: they are staged first")
	f.BoolVar(&cfg.Cached, "cached", false, "prepare each routing once, outside the timing")
	f.BoolVar(&cfg.Fresh, "fresh", false, "write operands anew before each operation")
	f.IntVar(&cfg.Batches, "batches", 1, "different routings, taken in turn")
	f.BoolVar(&cfg.InPlace, "in-place", false, "experts overwrite the rows that they received")
	effortFlags(cmd, &cfg.Effort)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cfg.Layout == "rank-major" || cfg.Layout == "token-major" {
			for name, value := range map[string]string{"wire": "per-rank", "reduction": "partial", "sum": "plain"} {
				if !cmd.Flags().Changed(name) {
					_ = cmd.Flags().Set(name, value)
				}
			}
		}
		var err error
		if cfg.Routing, err = routing.ParseKind(kind); err != nil {
			return usageError{err}
		}
		if cfg.Phases, err = choice("mode", mode, "phases", "one-call"); err != nil {
			return usageError{err}
		}
		if cfg.Heap, err = choice("operand", place, "heap", "window"); err != nil {
			return usageError{err}
		}
		for _, n := range ranks { // refuse before anything is started
			for _, t := range tokens {
				shape := cfg
				shape.Tokens = t
				if _, err := shape.Spec(n); err != nil {
					return usageError{err}
				}
			}
		}
		return benchmark(*asJSON, *reportFile, func(s *session) error {
			for _, n := range ranks {
				for _, t := range tokens {
					shape := cfg
					shape.Tokens = t
					records, err := s.ep(n, shape)
					if err != nil {
						return err
					}
					if err := s.print(records); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	return cmd
}

// defaultEP is the shape that benchmarks measure unless told otherwise.
func defaultEP() bench.EP {
	return bench.EP{
		Hidden: 7168, TopK: 8, Experts: 64, DType: "bf16", Layout: "expert-major",
		Wire: "per-selection", Reduction: "exact", Sum: "weighted", Counts: "host",
		Routing: routing.Uniform, Seed: 1, Batches: 1,
	}
}

// ep measures one shape on n ranks.
func (s *session) ep(n int, shape bench.EP) ([]measure.Record, error) {
	base := s.base
	base.Tokens, base.Hidden, base.TopK, base.Experts = shape.Tokens, shape.Hidden, shape.TopK, shape.Experts
	base.DType, base.Layout, base.Wire, base.Reduction = shape.DType, shape.Layout, shape.Wire, shape.Reduction
	base.Sum, base.Counts, base.Routing, base.Cached = shape.Sum, shape.Counts, string(shape.Routing), shape.Cached
	base.Fresh, base.Batches = shape.Fresh, shape.Batches
	base.Mode, base.Operand = "one-call", "window"
	if shape.Phases {
		base.Mode = "phases"
	}
	if shape.Heap {
		base.Operand = "heap"
	}
	name := fmt.Sprintf("ep, %d ranks, %d tokens", n, shape.Tokens)
	return s.run(name, n, bench.Task{EP: &shape}, base, s.copySpeed(n))
}

// choice is whether a flag has the one of two values that sets an option.
func choice(name, value, yes, no string) (bool, error) {
	switch value {
	case yes:
		return true, nil
	case no:
		return false, nil
	}
	return false, fmt.Errorf("--%s %q: want %s or %s", name, value, no, yes)
}
