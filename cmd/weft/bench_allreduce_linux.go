package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/collective"
)

func newBenchAllReduce() *cobra.Command {
	var (
		cfg      = defaultAllReduce()
		ranks    = counts{2}
		messages = sizes{8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20}
		place    string
	)
	cmd := &cobra.Command{
		Use:     "allreduce",
		Short:   "Measure AllReduce over message sizes",
		Example: `  weft bench allreduce --ranks 2,4 --sizes 8,64K,1M --dtype bf16`,
		Args:    cobra.NoArgs,
	}
	asJSON, reportFile := outputFlags(cmd)
	var algorithms []string
	for _, a := range collective.Algorithms() {
		if a.Collective == collective.AllReduce {
			algorithms = append(algorithms, a.Name)
		}
	}
	f := cmd.Flags()
	f.Var(&ranks, "ranks", "how many ranks")
	f.Var(&messages, "sizes", "bytes of the messages")
	f.StringVar(&cfg.DType, "dtype", cfg.DType, "element type: bf16, fp16, fp32, fp64, int8 to int64, uint8 to uint64")
	f.StringVar(&cfg.Op, "op", cfg.Op, "sum, prod, min, max or avg")
	f.StringVar(&cfg.Algorithm, "algorithm", "", "force one of "+strings.Join(algorithms, ", "))
	f.StringVar(&place, "operand", "heap", "heap: any memory; window: registered memory")
	f.BoolVar(&cfg.InPlace, "in-place", false, "reduce into the input")
	effortFlags(cmd, &cfg.Effort)
	cmd.RunE = func(*cobra.Command, []string) error {
		var err error
		if cfg.Heap, err = choice("operand", place, "heap", "window"); err != nil {
			return usageError{err}
		}
		dtype, err := weft.ParseDType(cfg.DType)
		if err != nil {
			return usageError{err}
		}
		if _, err := weft.ParseOp(cfg.Op); err != nil {
			return usageError{err}
		}
		for _, n := range messages {
			if n%int64(dtype.Size()) != 0 {
				return usageError{fmt.Errorf("a message of %d bytes is no whole number of %v elements", n, dtype)}
			}
		}
		cfg.Bytes = messages
		return benchmark(*asJSON, *reportFile, func(s *session) error {
			for _, n := range ranks {
				records, err := s.allReduce(n, cfg)
				if err != nil {
					return err
				}
				if err := s.print(records); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return cmd
}

func defaultAllReduce() bench.AllReduce {
	return bench.AllReduce{DType: "fp32", Op: "sum", Heap: true}
}

// allReduce sweeps the sizes of cfg on n ranks.
func (s *session) allReduce(n int, cfg bench.AllReduce) ([]measure.Record, error) {
	base := s.base
	base.DType, base.Reduction, base.Operand = cfg.DType, cfg.Op, "window"
	if cfg.Heap {
		base.Operand = "heap"
	}
	return s.run(fmt.Sprintf("allreduce, %d ranks", n), n, bench.Task{AllReduce: &cfg}, base, 0)
}
