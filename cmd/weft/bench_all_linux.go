package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

func newBenchAll() *cobra.Command {
	rounds, each := 5, time.Second
	cmd := &cobra.Command{
		Use:   "all",
		Short: "Measure the floors of this machine and the figures that Weft has targets for",
		Args:  noArgs,
	}
	describe(cmd, "bench_all")
	out := outputFlags(cmd)
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "how many rounds")
	cmd.Flags().DurationVar(&each, "time", each, "how long to measure each figure in a round")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if rounds < 1 {
			return usageError{fmt.Errorf("rounds %d: want at least 1", rounds)}
		}
		if err := (timing.Effort{Time: each}).Validate(); err != nil {
			return usageError{err}
		}
		return benchmark(*out, func(s *session) error {
			figures, err := s.all(rounds, each)
			if err != nil {
				return err
			}
			s.progress.Close()
			return printFigures(cmd, figures, out.json)
		})
	}
	return cmd
}

// figure is one number that is measured in every round.
type figure struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"` // the median of the rounds
	Unit   string  `json:"unit"`
	Target float64 `json:"target,omitempty"` // 0: a floor, without a target
	Least  bool    `json:"least,omitempty"`  // the target is a least, not a most
	Met    bool    `json:"met"`
	Rounds int     `json:"rounds"`

	samples []float64
}

func (f *figure) finish() {
	slices.Sort(f.samples)
	f.Rounds = len(f.samples)
	f.Value = f.samples[len(f.samples)/2]
	f.Met = f.Target == 0 || (f.Least && f.Value >= f.Target) || (!f.Least && f.Value <= f.Target)
}

// all measures every figure in interleaved rounds.
func (s *session) all(rounds int, each time.Duration) ([]*figure, error) {
	var figures []*figure
	note := func(name, unit string, target float64, least bool, value float64) {
		i := slices.IndexFunc(figures, func(f *figure) bool { return f.Name == name })
		if i < 0 {
			i = len(figures)
			figures = append(figures, &figure{Name: name, Unit: unit, Target: target, Least: least})
		}
		figures[i].samples = append(figures[i].samples, value)
	}
	for range rounds {
		for _, threads := range []int{1, 2} {
			note(fmt.Sprintf("memcpy, cold, %s, read and written", measure.Count(threads, "thread")), "GB/s", 0,
				false, s.copySpeed(threads)/1e9)
		}
		note("cache line from one processor to another", "us", 0, false, measure.Micros(bench.PingPong()))

		for _, n := range []int{2, 4} {
			there, back, err := s.roundTrip(n, 512, each)
			if err != nil {
				return nil, err
			}
			note(fmt.Sprintf("dispatch + combine, 512 tokens, %d ranks, of memcpy's speed", n), "", 0.6, true,
				(there.Floor+back.Floor)/(there.P50+back.P50))
		}
		for _, aim := range []struct {
			ranks  int
			target float64
		}{{2, 5}, {4, 40}} {
			there, back, err := s.roundTrip(aim.ranks, 1, each)
			if err != nil {
				return nil, err
			}
			note(fmt.Sprintf("dispatch + combine, 1 token, %d ranks", aim.ranks), "us", aim.target, false, there.P50+back.P50)
		}
		for _, n := range []int{2, 4} {
			shape := defaultEP()
			shape.Tokens, shape.Fresh, shape.Batches, shape.Time = 1, true, 16, each
			records, err := s.ep(n, shape)
			if err != nil {
				return nil, err
			}
			s.records = append(s.records, records...)
			total := 0.0
			for _, r := range records {
				total += r.P50
			}
			note(fmt.Sprintf("prepare + dispatch + combine, 1 token, %d ranks, fresh operands, 16 routings", n),
				"us", 0, false, total)
		}
		for _, aim := range []struct {
			ranks   int
			bytes   []int64
			targets []float64
		}{{2, []int64{8, 1 << 20}, []float64{0.4, 120}}, {4, []int64{8}, []float64{6.5}}} {
			cfg := defaultCollective("allreduce")
			cfg.Bytes, cfg.Time = aim.bytes, each
			records, err := s.collective(aim.ranks, cfg)
			if err != nil {
				return nil, err
			}
			s.records = append(s.records, records...)
			for i, r := range records {
				note(fmt.Sprintf("AllReduce, %s, %d ranks", measure.Size(r.Message()), aim.ranks), "us", aim.targets[i],
					false, r.P50)
			}
		}
		records, err := s.join(8, bench.Join{Effort: timing.Effort{Iterations: 20}})
		if err != nil {
			return nil, err
		}
		note("join, 8 ranks", "ms", 50, false, records[0].P50/1e3)
		note("memory of a rank beyond windows", "MiB", 32, false, float64(records[0].Memory)/(1<<20))
	}
	for _, f := range figures {
		f.finish()
	}
	return figures, nil
}

// roundTrip measures the default shape.
func (s *session) roundTrip(ranks, tokens int, each time.Duration) (dispatch, combine measure.Record, err error) {
	shape := defaultEP()
	shape.Tokens, shape.Time = tokens, each
	records, err := s.ep(ranks, shape)
	if err != nil {
		return dispatch, combine, err
	}
	s.records = append(s.records, records...)
	return records[0], records[1], nil
}

func printFigures(cmd *cobra.Command, figures []*figure, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(cmd.OutOrStdout())
		for _, f := range figures {
			if err := e.Encode(f); err != nil {
				return err
			}
		}
		return nil
	}
	measure.Comment(os.Stdout, "median: of the rounds, each of which measures all figures. target: of this project, for "+
		"two idle processors; figures without one are floors of this machine, or beside a target.")
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "figure\tmedian\ttarget\t")
	targets, met := 0, 0
	for _, f := range figures {
		target, verdict := "", ""
		if f.Target > 0 {
			target, verdict = fmt.Sprintf("at most %g %s", f.Target, f.Unit), "missed"
			if f.Least {
				target = fmt.Sprintf("at least %g %s", f.Target, f.Unit)
			}
			if f.Met {
				verdict = "met"
			}
		}
		if f.Target > 0 {
			if targets++; f.Met {
				met++
			}
		}
		fmt.Fprintf(w, "%s\t%.3g %s\t%s\t%s\n", f.Name, f.Value, f.Unit, target, verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Printf("\n%d of %s met\n", met, measure.Count(targets, "target"))
	return err
}
