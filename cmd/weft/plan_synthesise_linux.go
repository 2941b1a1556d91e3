package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/spec"
	"github.com/weftgo/weft/plan/synthesis"
)

func newPlanSynthesise() *cobra.Command {
	var topology, out string
	bytes := size(64 << 20)
	s := synthesis.Spec{Time: time.Minute}
	cmd := &cobra.Command{
		Use:     "synthesise",
		Aliases: []string{"synthesize"},
		Short:   "Make a plan for ranks and the links between them",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return usageError{fmt.Errorf("%q is no flag: want none but flags", args[0])}
			case !slices.Contains(synthesis.Collectives, s.Collective):
				return usageError{fmt.Errorf("--collective %q: want one of %s", s.Collective,
					strings.Join(synthesis.Collectives, ", "))}
			case topology == "":
				return usageError{errors.New("--topology: want the name of a file of ranks and links")}
			case s.Time <= 0:
				return usageError{errors.New("--time: want more than 0")}
			case cmd.Flags().Changed("root") && s.Collective != spec.Broadcast:
				return usageError{errors.New("--root is of broadcasts")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := os.ReadFile(topology)
			if err != nil {
				return exitError{2, err}
			}
			if s.Topology, err = cost.Parse(text); err != nil {
				return exitError{2, fmt.Errorf("%s: %w", topology, err)}
			}
			s.Bytes = int(bytes)
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			f, report, err := synthesis.Synthesize(ctx, s)
			if err != nil {
				return err
			}
			err = written(cmd, out, func(w io.Writer) error {
				_, err := w.Write(append(f.Text(), '\n'))
				return err
			})
			to := cmd.OutOrStdout()
			if out == "" {
				to = cmd.ErrOrStderr()
			}
			return errors.Join(err, synthesised(to, f.Name, &report, s.Collective))
		},
	}
	describe(cmd, "plan_synthesise")
	f := cmd.Flags()
	f.StringVar(&s.Collective, "collective", "", "what the plan does: "+strings.Join(synthesis.Collectives, ", "))
	f.StringVar(&topology, "topology", "", "a `file` of ranks and links")
	f.Var(&bytes, "bytes", "the size of message to make it for: of the output of an all-gather, else of the input")
	f.IntVar(&s.Root, "root", 0, "the rank that a broadcast is from")
	f.BoolVar(&s.RankOrder, "ranks-order", false, "add up in the order of ranks, as the library does")
	f.StringVar(&s.Name, "name", "", "the plan's name (default: made of collective and ranks)")
	f.Uint64Var(&s.Seed, "seed", 0, "which of equal choices to take; the same seed gives the same plan")
	f.DurationVar(&s.Time, "time", s.Time, "how long the search may take; then the best plan so far is given")
	f.StringVar(&out, "out", "", "the `file` to write (default: the standard output)")
	return cmd
}

// synthesised says what a plan takes, by the model.
func synthesised(w io.Writer, name string, r *synthesis.Report, collective string) error {
	order := ""
	if collective == spec.AllReduce || collective == spec.ReduceScatter {
		order = "; sums in an order of its own"
		if r.Verdict.RankOrder {
			order = "; sums in the order of ranks"
		}
	}
	times := ""
	if bound := r.Bound.Time(); bound > 0 {
		times = fmt.Sprintf(", which is %.2f times the least possible", r.Cost.Time/bound)
	}
	if r.Cut {
		order += "; the search ended with its --time"
	}
	busiest := cost.Traffic{}
	for _, l := range r.Cost.Links {
		if l.Busy > busiest.Busy {
			busiest = l
		}
	}
	_, err := fmt.Fprintf(w, "%s: %.2f us for %s%s\n%s%s\n", name, r.Cost.Time, measure.Size(int64(r.Bytes)), times,
		r.Form, order)
	if err == nil && busiest.Busy > 0 {
		_, err = fmt.Fprintf(w, "the busiest link, from rank %d to rank %d, carries %s\n", busiest.From, busiest.To,
			measure.Size(int64(busiest.Bytes)))
	}
	return err
}
