package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

func newBenchJoin() *cobra.Command {
	ranks, cfg := counts{8}, bench.Join{}
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Measure how long joining takes, and how much memory a rank has",
		Args:  noArgs,
	}
	describe(cmd, "bench_join")
	out := outputFlags(cmd)
	cmd.Flags().Var(&ranks, "ranks", "how many ranks")
	effortFlags(cmd, &cfg.Effort)
	cmd.RunE = func(*cobra.Command, []string) error {
		var jobs []job
		for _, n := range ranks {
			jobs = append(jobs, job{n, bench.Task{Join: &cfg}})
		}
		return sweep(*out, jobs)
	}
	return cmd
}

func (s *session) join(n int, cfg bench.Join) ([]measure.Record, error) {
	return s.run(fmt.Sprintf("join, %s", measure.Count(n, "rank")), n, bench.Task{Join: &cfg}, s.base, 0)
}
