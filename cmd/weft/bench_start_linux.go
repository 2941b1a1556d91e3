package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cuda/kernel"
)

func newBenchStart() *cobra.Command {
	s := &startFlags{onGPUsFlags: newOnGPUsFlags(128, "rank-major"), rounds: 5}
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Measure how long ranks on GPUs take from nothing to the end of their first dispatch",
		Args:  noArgs,
	}
	describe(cmd, "bench_start")
	f := cmd.Flags()
	s.add(cmd)
	f.IntVar(&s.ep.shape.Capacity, "capacity", 0,
		"the most tokens per rank that the handle takes (0: as many as --tokens)")
	f.IntVar(&s.rounds, "rounds", s.rounds, "rounds with all kernels in the cache, after the first")
	f.BoolVar(&s.noCold, "no-cold", false, "begin with the user's kernel cache, not with an empty one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s.ep.setDefaults(cmd)
		return s.run(cmd)
	}
	return cmd
}

// startFlags are the flags of bench start.
type startFlags struct {
	onGPUsFlags
	rounds int
	noCold bool
}

// check refuses flags that are wrong whatever the GPUs.
func (s *startFlags) check() error {
	if s.gpus < 0 || s.ranks < 0 || s.rounds < 1 || s.rounds > benchep.MostRounds || s.deadline <= 0 {
		return fmt.Errorf("--gpus, --ranks, --rounds, --deadline: want at least 0, at least 0, 1 to %d, and "+
			"more than 0s", benchep.MostRounds)
	}
	_, err := s.ep.shape.DeviceSpec(max(s.ranks, 1))
	return err
}

func (s *startFlags) run(cmd *cobra.Command) (err error) {
	if err := s.check(); err != nil {
		return usageError{err}
	}
	p := &startPrinter{gpuPrinter: gpuPrinter{to: cmd.OutOrStdout(), json: s.json}, noCold: s.noCold}
	closeLines, err := p.createLines(s.lines)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLines()) }()
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	contexts, ranks, closeAll, err := openRanks(s.gpus, s.ranks)
	if err != nil {
		return err
	}
	opened := time.Since(began)
	defer func() { err = errors.Join(err, closeAll()) }()
	start := benchep.Start{Contexts: contexts, Ranks: ranks, Rounds: s.rounds, Deadline: s.deadline}
	return s.measure(ctx, start, opened, p)
}

// measure shows how long the driver took to start, and measures the steps after it.
func (s *startFlags) measure(ctx context.Context, m benchep.Start, opened time.Duration, p *startPrinter) (err error) {
	if err := p.locate(m.Contexts[0]); err != nil {
		return err
	}
	us := measure.Micros(opened)
	if err := p.row(benchep.StartRow{
		Op: benchep.Driver, Engine: "gpu", Ranks: m.Ranks, GPUs: len(m.Contexts),
		Rounds: 1, P50: us, Max: us,
	}); err != nil {
		return err
	}
	m.Kernels.Logger = warnings(os.Stderr)
	if !s.noCold {
		dir, err := os.MkdirTemp("", "weft-start-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		m.Kernels = kernel.Options{Dir: dir, ReadOnly: []string{}, Compiler: m.Kernels.Compiler, Logger: m.Kernels.Logger}
	}
	err = m.Measure(ctx, s.ep.shape, p.row)
	if errors.Is(err, kernel.ErrNoCompiler) && !s.noCold {
		return fmt.Errorf("%w\nwith --no-cold kernels are taken from the user's cache and from WEFT_CACHE", err)
	}
	return err
}

// startPrinter shows rows as they come.
type startPrinter struct {
	gpuPrinter
	noCold bool
}

func (p *startPrinter) row(r benchep.StartRow) error {
	if p.noCold && r.Op == benchep.ColdStart {
		p.note("kernels were missing in the cache, and are there now: the first round is not shown, and will be next time")
		return nil
	}
	if err := p.encode(struct {
		benchep.StartRow
		where
	}{r, p.here}); err != nil || p.json {
		return err
	}
	const format = "%-12s %6s %9s %9s %9s %9s %9s\n"
	var b strings.Builder
	ms := func(us float64) string { return fmt.Sprintf("%.1f", us/1e3) }
	if !p.headed {
		p.headed = true
		measure.Comment(&b, fmt.Sprintf("%s on %s (%s)\n"+
			"all, max: ms from nothing to the end of the first dispatch, of the slowest rank: the median and the maximum of "+
			"the rounds. join, handle, dispatch: of that, Join, NewHandle (windows and kernels), and the first dispatch.\n"+
			"driver: cuInit and contexts; all starts come after it, and do not count it. start-cold compiles kernels, "+
			"start-first and start-warm find them in the cache.", measure.Count(r.Ranks, "rank"),
			measure.Count(r.GPUs, "GPU"), p.here.Device))
		fmt.Fprintf(&b, format, "op", "rounds", "all", "max", "join", "handle", "dispatch")
	}
	join, handle, dispatch := "", "", ""
	if r.Stages != nil {
		join, handle, dispatch = ms(r.Join), ms(r.Handle), ms(r.Dispatch)
	}
	fmt.Fprintf(&b, format, r.Op, fmt.Sprint(r.Rounds), ms(r.P50), ms(r.Max), join, handle, dispatch)
	_, err := io.WriteString(p.to, b.String())
	return err
}
