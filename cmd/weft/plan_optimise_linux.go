package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/optimizer"
)

func newPlanOptimise() *cobra.Command {
	var out, topology string
	var measured bool
	bytes := size(1 << 20)
	o := optimizer.Options{Instances: 1, Time: time.Minute}
	cmd := &cobra.Command{
		Use:     "optimise FILE",
		Aliases: []string{"optimize"},
		Short:   "Make a plan that does the same in less, and say what that gained",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := onePlan(cmd, args); err != nil {
				return err
			}
			if o.Instances < 1 || o.Time <= 0 {
				return usageError{errors.New("--instances, --time: want more than 0")}
			}
			o.Bytes = int(bytes)
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := loadPlan(args[0])
			if err != nil {
				return err
			}
			if topology != "" {
				text, err := os.ReadFile(topology)
				if err != nil {
					return exitError{2, err}
				}
				t, err := cost.Parse(text)
				if err != nil {
					return exitError{2, fmt.Errorf("%s: %w", topology, err)}
				}
				o.Model = optimizer.DefaultModel(len(f.Ranks))
				o.Model.Topology = t
			}
			if measured {
				o.Measure = executor.Measure
			}
			better, report, err := optimizer.Optimize(cmd.Context(), f, o)
			if err != nil {
				return err
			}
			to := cmd.OutOrStdout()
			if out == "" {
				to = cmd.ErrOrStderr()
			}
			if err := optimised(to, args[0], f, better, report); err != nil {
				return err
			}
			return written(cmd, out, func(w io.Writer) error {
				_, err := w.Write(append(better.Text(), '\n'))
				return err
			})
		},
	}
	describe(cmd, "plan_optimise")
	f := cmd.Flags()
	f.StringVar(&out, "out", "", "the `file` to write (default: the standard output)")
	f.StringVar(&topology, "topology", "", "a `file` of links between ranks (default: one between any two, 50 GB/s, 1 us)")
	f.Var(&bytes, "bytes", "the size of message that is to be faster: of the output of an all-gather, else of the input")
	f.IntVar(&o.Instances, "instances", o.Instances, "try up to so many instances of the plan")
	f.BoolVar(&measured, "measure", false, "time plans on ranks of this host, in place of the model")
	f.Uint64Var(&o.Seed, "seed", 0, "which order of looking at blocks")
	f.DurationVar(&o.Time, "time", o.Time, "how long to look")
	return cmd
}

// optimised writes what an optimisation gained.
func optimised(w io.Writer, name string, was, is *plan.File, r optimizer.Report) error {
	b, a := r.Before, r.After
	times := "modelled us"
	if r.Measured {
		times = "measured us"
	}
	us := func(t time.Duration) string { return fmt.Sprintf("%.1f", float64(t.Nanoseconds())/1000) }
	lines := []string{
		fmt.Sprintf("%s: %s, message of %s", name, measure.Count(len(was.Ranks), "rank"), measure.Size(int64(r.Bytes))),
		fmt.Sprintf("%-18s %10s %10s", "", "before", "after"),
		fmt.Sprintf("%-18s %10d %10d", "operations", b.Operations, a.Operations),
		fmt.Sprintf("%-18s %10d %10d", "synchronisations", b.Syncs, a.Syncs),
		fmt.Sprintf("%-18s %10d %10d", "blocks", b.Blocks, a.Blocks),
		fmt.Sprintf("%-18s %10s %10s", times, us(b.Time), us(a.Time)),
	}
	var removed []string
	for _, k := range []struct {
		n    int
		name string
	}{
		{r.Removed.Signals, "signal with its wait"},
		{r.Removed.Semaphores, "release with its acquire"},
		{r.Removed.Barriers, "meeting at a barrier"},
		{r.Removed.Flushes, "flush"},
		{r.Removed.Nops, "nop"},
	} {
		if k.n > 0 {
			removed = append(removed, fmt.Sprintf("%d x %s", k.n, k.name))
		}
	}
	if removed != nil {
		lines = append(lines, "removed: "+strings.Join(removed, ", "))
	}
	if r.Joined > 0 {
		lines = append(lines, fmt.Sprintf("joined: %d operations into those before them", r.Joined))
	}
	for _, m := range r.Moves {
		lines = append(lines, "moved: "+m)
	}
	if r.Instances > 1 {
		lines = append(lines, fmt.Sprintf("%d instances: messages are multiples of %d bytes, and were of %d", r.Instances,
			optimizer.Grain(is), optimizer.Grain(was)))
	}
	if was == is {
		lines = append(lines, "nothing was found: the plan stays as it is")
	}
	if r.Stopped {
		lines = append(lines, "the time was over before all was tried; --time gives more")
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}
