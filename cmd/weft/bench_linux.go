package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/launch"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/report"
	"github.com/weftgo/weft/cmd/weft/internal/terminal"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure operations between ranks on this host, verified in the same run",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	describe(cmd, "bench")
	cmd.AddCommand(newBenchEP(), newBenchLink(), newBenchJoin(), newBenchFabric(), newBenchOverlap(),
		newBenchStart(), newBenchAll(), newBenchRank())
	cmd.AddCommand(newBenchCollectives()...)
	return cmd
}

// newBenchRank is the command that the other bench commands start as ranks.
func newBenchRank() *cobra.Command {
	return &cobra.Command{
		Use: "rank", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return bench.Serve(cmd.Context(), os.Stdout) },
	}
}

// session is one run of a bench command: it starts ranks, shows progress, prints rows
// and remembers them for the report.
type session struct {
	host     runner
	progress *terminal.Progress
	printer  measure.Printer
	base     measure.Record
	records  []measure.Record
	shown    int // how many of them the printer has had
	wrong    bool
	reports  bool // a report is asked for
	prints   bool // rows are shown, and not for others alone
	table    bool // as a table, which ends with a verdict
	copiers  map[int]*bench.Copier
}

// runner does a task on ranks: it starts them, or is one of those that a launcher has started.
type runner interface {
	Run(ranks int, task bench.Task, progress func(done, total int)) ([][]timing.Series, error)
}

// taskTimeout bounds one task, far above the time of any.
const taskTimeout = 10 * time.Minute

// job is a task and how many ranks do it.
type job struct {
	ranks int
	task  bench.Task
}

// sweep runs jobs one after the other and prints their results. All are checked before any is
// started.
func sweep(out output, jobs []job) error {
	if err := validate(jobs); err != nil {
		return err
	}
	return benchmark(out, func(s *session) error { return s.sweep(jobs) })
}

func validate(jobs []job) error {
	for _, j := range jobs {
		if err := j.task.Validate(j.ranks); err != nil {
			return usageError{err}
		}
	}
	return nil
}

func (s *session) sweep(jobs []job) error {
	for _, j := range jobs {
		records, err := s.measure(j)
		if err != nil {
			return err
		}
		if err := s.print(records); err != nil {
			return err
		}
	}
	return nil
}

// sweepAsMember is sweep on ranks that a launcher has started, of which this process is one. Rank 0
// prints.
func sweepAsMember(ctx context.Context, out output, jobs []job) error {
	if err := validate(jobs); err != nil {
		return err
	}
	show, first := os.Stderr, os.Getenv("WEFT_RANK") == "0"
	if !first {
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer null.Close()
		show, out.report = null, ""
	}
	s := newSession(out, show)
	s.host = bench.Member{Context: ctx}
	if !first {
		s.printer, s.prints, s.table = measure.Lines(show), false, false
	}
	err := s.sweep(jobs)
	s.progress.Close()
	if err != nil {
		return err
	}
	return s.finish(out)
}

// benchmark runs f in a session, below a guard, and writes the report.
func benchmark(to output, f func(s *session) error) error {
	if to.report != "" {
		if err := checkReport(to.report); err != nil {
			return usageError{err}
		}
	}
	gone, supervisor := launch.Lifeline()
	if !supervisor {
		return ended(launch.Guard())
	}
	s := newSession(to, os.Stderr)
	s.host = &bench.Host{Gone: gone, Args: []string{"bench", "rank"}, Timeout: taskTimeout}
	err := f(s)
	s.progress.Close()
	var exit *bench.ExitError
	if errors.As(err, &exit) && exit.Code > 128 {
		return exitError{status: exit.Code} // interrupted, and said so
	}
	if err != nil {
		return err
	}
	return s.finish(to)
}

// newSession makes a session that shows progress in a file.
func newSession(to output, show *os.File) *session {
	hostname, _ := os.Hostname()
	s := &session{
		progress: terminal.NewProgress(show),
		base:     measure.Record{Engine: "host", Host: hostname, Version: version()},
		copiers:  map[int]*bench.Copier{},
		reports:  to.report != "",
		prints:   true,
	}
	out := s.progress.Above(os.Stdout)
	s.printer, s.table = measure.Table(out), true
	if to.json {
		s.printer, s.table = measure.Lines(out), false
	}
	return s
}

// finish says what the rows amount to, and writes the report. It is an error if any output was wrong.
func (s *session) finish(to output) error {
	if s.table && s.shown > 0 {
		fmt.Println()
		for _, line := range measure.Verdict(s.records[:s.shown]) {
			fmt.Println(line)
		}
	}
	if to.report != "" {
		if err := writeReport(to.report, s.base.Host, report.Report{Records: s.records}); err != nil {
			return err
		}
	}
	if s.wrong {
		return errors.New("some output was wrong: see the rows that are not verified")
	}
	return nil
}

// measure does a job and returns its records.
func (s *session) measure(j job) ([]measure.Record, error) {
	switch {
	case j.task.EP != nil:
		return s.ep(j.ranks, *j.task.EP)
	case j.task.Collective != nil:
		return s.collective(j.ranks, *j.task.Collective)
	}
	return s.join(j.ranks, *j.task.Join)
}

// run does a task on so many ranks and returns its records.
func (s *session) run(name string, ranks int, task bench.Task, base measure.Record,
	speed float64,
) ([]measure.Record, error) {
	const steps = 100
	bar := s.progress.Start(name, steps)
	defer bar.Done("") // for a task that fails
	shown := 0
	series, err := s.host.Run(ranks, task, func(done, total int) {
		if at := done * steps / max(total, 1); at > shown && at < steps {
			bar.Advance(at - shown)
			shown = at
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	bar.Advance(steps - shown)
	records, problems, err := bench.Merge(base, series, speed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	bar.Done("")
	for _, p := range problems {
		s.wrong = true
		_, _ = fmt.Fprintf(s.progress.Above(os.Stderr), "weft: %s: %s\n", name, p)
	}
	return records, nil
}

// print shows records and keeps them for the report.
func (s *session) print(records []measure.Record) error {
	s.records = append(s.records, records...)
	s.shown = len(s.records)
	for _, r := range records {
		if err := s.printer.Print(r); err != nil {
			return err
		}
	}
	return nil
}

// copySpeed measures memcpy on this machine now, with a thread for each rank that has a processor.
// It is 0 on ranks that print nothing: ranks of a launcher that all measured at once would disturb each other.
func (s *session) copySpeed(ranks int) float64 {
	if !s.prints {
		return 0
	}
	c := s.copiers[ranks]
	if c == nil {
		c = bench.NewCopier(ranks)
		s.copiers[ranks] = c
	}
	return c.Measure()
}

// output is the destination of a bench command's results.
type output struct {
	json   bool
	report string // a file, or empty
}

// outputFlags are common to the bench commands.
func outputFlags(cmd *cobra.Command) *output {
	var out output
	cmd.Flags().BoolVar(&out.json, "json", false, "print one JSON object a line")
	cmd.Flags().StringVar(&out.report, "report", "", "write a self-contained HTML report to this `file`")
	return &out
}

// effortFlags say how long to measure.
func effortFlags(cmd *cobra.Command, e *timing.Effort) {
	f := cmd.Flags()
	f.IntVar(&e.Iterations, "iters", 0, "iterations to time, up to 100000 (0: as many as fit in --time, but 20 at least)")
	f.DurationVar(&e.Time, "time", 1500*time.Millisecond, "how long to measure each row, up to an hour")
	f.IntVar(&e.Warmup, "warmup", 0, "iterations before that, all verified (0: a sensible number)")
}
