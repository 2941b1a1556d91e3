package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

func newBenchJoin() *cobra.Command {
	ranks, rounds := counts{8}, 20
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Measure how long joining takes, and how much memory a rank has",
		Long: `Measure how long Join takes from its call to its return, again and again among the
same processes. Memory is what a rank has resident after that, shared memory left out.`,
		Args: cobra.NoArgs,
	}
	asJSON, reportFile := outputFlags(cmd)
	cmd.Flags().Var(&ranks, "ranks", "how many ranks")
	cmd.Flags().IntVar(&rounds, "iters", rounds, "how often to join")
	cmd.RunE = func(*cobra.Command, []string) error {
		if rounds < 1 {
			return usageError{fmt.Errorf("--iters %d: want at least 1", rounds)}
		}
		return benchmark(*asJSON, *reportFile, func(s *session) error {
			for _, n := range ranks {
				records, err := s.join(n, rounds)
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

func (s *session) join(n, rounds int) ([]measure.Record, error) {
	return s.run(fmt.Sprintf("join, %d ranks", n), n, bench.Task{Join: &bench.Join{Rounds: rounds}}, s.base, 0)
}
