package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	benchcollective "github.com/weftgo/weft/cmd/weft/internal/bench/collective"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

func newBenchAllReduce() *cobra.Command {
	var (
		cfg      = defaultAllReduce()
		ranks    = counts{2}
		messages = sizes{8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20}
		operand  = heap
	)
	cmd := &cobra.Command{
		Use:     "allreduce",
		Short:   "Measure AllReduce over message sizes",
		Example: `  weft bench allreduce --ranks 2,4 --sizes 8,64K,1M --dtype bf16`,
		Args:    noArgs,
	}
	out, f := outputFlags(cmd), cmd.Flags()
	f.Var(&ranks, "ranks", "how many ranks")
	f.Var(&messages, "sizes", "bytes of the messages")
	oneOf(cmd, &cfg.DType, "dtype", benchcollective.DTypes(), "element type")
	oneOf(cmd, &cfg.Op, "op", benchcollective.Ops(), "reduction")
	oneOf(cmd, &cfg.Algorithm, "algorithm", benchcollective.Algorithms(),
		"use this one wherever it supports the operands")
	oneOf(cmd, &operand, "operand", []string{heap, window}, "where messages are: in any memory, or in registered memory")
	f.BoolVar(&cfg.InPlace, "in-place", false, "reduce into the input")
	effortFlags(cmd, &cfg.Effort)
	cmd.RunE = func(*cobra.Command, []string) error {
		cfg.Heap, cfg.Bytes = operand == heap, messages
		var jobs []job
		for _, n := range ranks {
			jobs = append(jobs, job{n, bench.Task{AllReduce: &cfg}})
		}
		return sweep(*out, jobs)
	}
	return cmd
}

func defaultAllReduce() benchcollective.AllReduce {
	return benchcollective.AllReduce{DType: "fp32", Op: "sum", Heap: true}
}

// allReduce sweeps the sizes of cfg on n ranks.
func (s *session) allReduce(n int, cfg benchcollective.AllReduce) ([]measure.Record, error) {
	base := s.base
	base.DType, base.Reduction, base.Operand = cfg.DType, cfg.Op, operandName(cfg.Heap)
	return s.run(fmt.Sprintf("allreduce, %s", measure.Count(n, "rank")), n, bench.Task{AllReduce: &cfg}, base, 0)
}
