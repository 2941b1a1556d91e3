package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/lowering"
	"github.com/weftgo/weft/plan/spec"
)

func newPlan() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Check, run, draw, fix, measure, make and optimise communication plans",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	describe(cmd, "plan_root")
	cmd.AddCommand(newPlanCheck(), newPlanRun(), newPlanShow(), newPlanFix(), newPlanFormat(), newPlanDiff(),
		newPlanBench(), newPlanSynthesise(), newPlanOptimise())
	return cmd
}

// onePlan wants one file.
func onePlan(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{errors.New("want the name of one file")}
	}
	return nil
}

// decodePlan reads a plan, which may break rules.
func decodePlan(name string) (*plan.File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, exitError{2, err}
	}
	f, err := spec.Decode(text)
	if err != nil {
		return nil, exitError{2, fmt.Errorf("%s: %w", name, err)}
	}
	return f, nil
}

// loadPlan reads a plan that breaks no rule.
func loadPlan(name string) (*plan.File, error) {
	f, err := decodePlan(name)
	if err == nil {
		if broken := f.Check(); broken != nil {
			return nil, fmt.Errorf("%s: %w", name, broken)
		}
	}
	return f, err
}

func newPlanCheck() *cobra.Command {
	var strict, peer, asJSON bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Prove that a plan is right, or show by which operations it goes wrong",
		Args: func(cmd *cobra.Command, args []string) error {
			if peer && !strict {
				return usageError{errors.New("--mscclpp is of --strict")}
			}
			return onePlan(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := decodePlan(args[0])
			if err != nil {
				return err
			}
			v := plan.Verify(f)
			if asJSON {
				err = planJSON(cmd.OutOrStdout(), args[0], v)
			} else {
				err = planText(cmd.OutOrStdout(), args[0], f, v)
			}
			counts := func(x plan.Finding) bool { return !x.Warning || strict && (peer || x.Class != plan.Limits) }
			if err == nil && slices.ContainsFunc(v.Findings, counts) {
				return exitError{status: 1}
			}
			return err
		},
	}
	describe(cmd, "plan_check")
	cmd.Flags().BoolVar(&strict, "strict", false, "end with status 1 for warnings, too, but for those of limits")
	cmd.Flags().BoolVar(&peer, "mscclpp", false, "with --strict: the plan is for MSCCL++'s executor, so limits count, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// planText writes findings, each with the operations that lead to it.
func planText(w io.Writer, name string, f *plan.File, v *plan.Verdict) error {
	for _, x := range v.Findings {
		severity := "error"
		if x.Warning {
			severity = "warning"
		}
		if _, err := fmt.Fprintf(w, "%s: %v: %s\n", severity, x.Class, x.Text); err != nil {
			return err
		}
		for _, e := range x.Events {
			if _, err := fmt.Fprintf(w, "    %v\n", e); err != nil {
				return err
			}
		}
	}
	verdict := "nothing to find"
	if n, warnings := v.Errors(), len(v.Findings)-v.Errors(); n+warnings > 0 {
		verdict = measure.Count(n, "error") + ", " + measure.Count(warnings, "warning")
	}
	order := ""
	if v.Errors() == 0 && (f.Collective == spec.AllReduce || f.Collective == spec.ReduceScatter) {
		order = "; sums in an order of its own"
		if v.RankOrder {
			order = "; sums in the order of ranks"
		}
	}
	if v.Errors() == 0 && !v.Compared {
		order = fmt.Sprintf("; %q defines no outputs, so none were compared", f.Collective)
	}
	_, err := fmt.Fprintf(w, "%s: %s%s\n", name, verdict, order)
	return err
}

// planEvent and planFinding are what --json prints. Numbers that do not belong to a finding are left out.
type planEvent struct {
	Rank      *int   `json:"rank,omitempty"`
	Block     *int   `json:"block,omitempty"`
	Operation *int   `json:"operation,omitempty"`
	Inner     *int   `json:"inner,omitempty"`
	Name      string `json:"name,omitempty"`
	Does      string `json:"does,omitempty"`
}

type planFinding struct {
	Class    plan.Class  `json:"class"`
	Severity string      `json:"severity"`
	Text     string      `json:"text"`
	Events   []planEvent `json:"events"`
}

func planJSON(w io.Writer, name string, v *plan.Verdict) error {
	number := func(n int) *int {
		if n < 0 {
			return nil
		}
		return &n
	}
	findings := make([]planFinding, 0, len(v.Findings))
	for _, x := range v.Findings {
		f := planFinding{Class: x.Class, Severity: "error", Text: x.Text, Events: []planEvent{}}
		if x.Warning {
			f.Severity = "warning"
		}
		for _, e := range x.Events {
			f.Events = append(f.Events, planEvent{
				number(e.Site.Rank), number(e.Site.Block), number(e.Site.Op), number(e.Site.Inner), e.Op, e.Does,
			})
		}
		findings = append(findings, f)
	}
	verdict := "clean"
	if v.Errors() > 0 {
		verdict = "errors"
	} else if len(findings) > 0 {
		verdict = "warnings"
	}
	return json.NewEncoder(w).Encode(struct {
		File      string        `json:"file"`
		Verdict   string        `json:"verdict"`
		Errors    int           `json:"errors"`
		Warnings  int           `json:"warnings"`
		RankOrder bool          `json:"rank_order"`
		Compared  bool          `json:"compared"`
		Findings  []planFinding `json:"findings"`
	}{name, verdict, v.Errors(), len(findings) - v.Errors(), v.RankOrder, v.Compared, findings})
}

func newPlanRun() *cobra.Command {
	var simulated, trace bool
	var schedules uint64
	o := plan.Simulation{Launches: 3}
	h := hostRun{}
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "Run a plan on ranks of this host, or in a simulation",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := onePlan(cmd, args); err != nil {
				return err
			}
			for _, name := range []string{"seed", "schedules", "weak", "trace"} {
				if !simulated && cmd.Flags().Changed(name) {
					return usageError{fmt.Errorf("--%s is of simulations: add --simulate", name)}
				}
			}
			for _, name := range []string{"bytes", "unverified"} {
				if simulated && cmd.Flags().Changed(name) {
					return usageError{fmt.Errorf("--%s is of real ranks: leave out --simulate", name)}
				}
			}
			if o.Launches < 1 || schedules < 1 {
				return usageError{errors.New("--launches, --schedules: want at least 1")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := loadPlan(args[0])
			if err != nil {
				return err
			}
			if !simulated {
				h.file, h.launches = f, o.Launches
				return h.run(cmd.Context(), cmd.OutOrStdout(), args[0])
			}
			if trace {
				o.Trace = func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) }
			}
			first, steps := o.Seed, 0
			for ; o.Seed-first < schedules; o.Seed++ {
				r := plan.Simulate(f, o)
				if steps += r.Steps; r.Failure != "" {
					return fmt.Errorf("%s: seed %d: %s", args[0], o.Seed, r.Failure)
				}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: right in %s of %d launches, %d steps\n", args[0],
				measure.Count(int(schedules), "schedule"), o.Launches, steps)
			return err
		},
	}
	describe(cmd, "plan_run")
	f := cmd.Flags()
	f.BoolVar(&simulated, "simulate", false, "run all ranks as a simulation in this process")
	f.Uint64Var(&o.Seed, "seed", 0, "which order of events; the same one runs again under the same seed")
	f.Uint64Var(&schedules, "schedules", 1, "try so many seeds, from --seed on, and end at the first that fails")
	f.IntVar(&o.Launches, "launches", o.Launches, "launches of each rank; in a simulation no rank waits between")
	f.Var(&h.bytes, "bytes", "the size of a message: of the output of an all-gather, else of the input")
	f.BoolVar(&h.unverified, "unverified", false, "run it though the verifier finds errors")
	f.BoolVar(&o.Weak, "weak", false, "let relaxed signals overtake stores, as no GPU of today does")
	f.BoolVar(&trace, "trace", false, "say when ranks and blocks begin and end")
	return cmd
}

func newPlanShow() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "show FILE",
		Short: "Draw a plan: ranks, blocks, time, and what waits for what",
		Args:  onePlan,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			f, err := loadPlan(args[0])
			if err != nil {
				return err
			}
			return written(cmd, out, func(w io.Writer) error { return plan.Draw(w, f) })
		},
	}
	describe(cmd, "plan_show")
	cmd.Flags().StringVar(&out, "out", "", "the `file` to write (default: the standard output)")
	return cmd
}

func newPlanFix() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "fix FILE",
		Short: "Give a plan the barriers of threads that it lacks",
		Args:  onePlan,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := loadPlan(args[0])
			if err != nil {
				return err
			}
			text := append(lowering.Fix(f).Text(), '\n')
			return written(cmd, out, func(w io.Writer) error {
				_, err := w.Write(text)
				return err
			})
		},
	}
	describe(cmd, "plan_fix")
	cmd.Flags().StringVar(&out, "out", "", "the `file` to write (default: the standard output)")
	return cmd
}

// written writes to a file, or to the standard output if it has no name.
func written(cmd *cobra.Command, name string, write func(io.Writer) error) error {
	if name == "" {
		return write(cmd.OutOrStdout())
	}
	to, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(to), to.Close())
}
