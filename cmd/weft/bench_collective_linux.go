package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench"
	benchcollective "github.com/weftgo/weft/cmd/weft/internal/bench/collective"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/link"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/collective"
)

// collectiveHelp is the help of every bench of a collective.
const collectiveHelp = `

Sizes are those of nccl-tests: of all-reduce, broadcast and reduce the vector, of the others
the whole of a rank's parts. They are rounded down to whole elements of each rank, one at
least; bytes in rows says what ran. Every element of an output is compared with a plain
loop's in the run that measured it. The root is rank 0. Under weft run its ranks measure,
and rank 0 prints.

With --device gpu ranks are goroutines of this process, rank r on GPU r % GPUs. A call is
timed until the host sees the end, or with --graph as one of many in a graph. With
--in-place the compared output is that of one more call. Rows of NCCL, through PyTorch,
follow where it can be loaded and there are two GPUs. On the host rows of Gloo, through
PyTorch, follow with --report.

--loopback has one rank, whose peers are regions of its own GPU's memory: it makes every load,
store and wait of an operation among as many ranks, and no wait lasts. What peers send are
zeros; where a peer would have reduced, zeros pass. That leaves out the links alone.`

// collectiveFlags are the flags of bench of a collective.
type collectiveFlags struct {
	sweep           benchcollective.Sweep
	ranks           counts
	sizes           sizes
	operand, device string
	plan            string

	gpus, sms, staging       int
	replays, ops             int
	graph, loopback, noPeers bool
	norm                     bool
	hidden                   int
	deadline                 time.Duration
}

// Flags that mean nothing on the other device.
var (
	collectiveHostOnly = []string{"iters", "time", "warmup"}
	collectiveGPUOnly  = []string{
		"gpus", "sms", "staging", "graph", "loopback", "replays", "operations", "deadline", "norm", "hidden",
	}
)

func newBenchCollectives() []*cobra.Command {
	var all []*cobra.Command
	for i := range benchcollective.Kinds {
		all = append(all, newBenchCollective(&benchcollective.Kinds[i]))
	}
	return all
}

func newBenchCollective(k *benchcollective.Kind) *cobra.Command {
	c := &collectiveFlags{
		sweep: defaultCollective(k.Name), ranks: counts{2}, operand: heap, device: onHost,
		sizes:   sizes{8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20},
		replays: 7, ops: 150, deadline: 10 * time.Second,
	}
	s := &c.sweep
	cmd := &cobra.Command{
		Use:   k.Name,
		Short: fmt.Sprintf("Measure %v, on the host or on GPUs", k.Collective),
		Long:  fmt.Sprintf("Measure %v, on the host or on GPUs.", k.Collective) + collectiveHelp,
		Example: fmt.Sprintf(`  weft bench %[1]s --ranks 2,4 --json
  weft bench %[1]s --report %[1]s.html
  weft run -n 4 weft bench %[1]s
  weft bench %[1]s --device gpu --ranks 4 --graph --loopback`, k.Name),
		Args: noArgs,
	}
	out, f := outputFlags(cmd), cmd.Flags()
	f.Var(&c.ranks, "ranks", "how many ranks; GPU: one number (if none is given: one for each GPU, or 4 with --loopback)")
	f.Var(&c.sizes, "sizes", "bytes of the operations")
	oneOf(cmd, &s.DType, "dtype", benchcollective.DTypes(), "element type")
	oneOf(cmd, &s.Op, "op", benchcollective.Ops(), "reduction")
	algorithms := slices.Concat(k.Algorithms(false), k.Algorithms(true))
	if k.Collective == collective.AllReduce {
		algorithms = slices.Concat(algorithms, benchcollective.NormAlgorithms())
	}
	oneOf(cmd, &s.Algorithm, "algorithm", algorithms,
		"use this one wherever it supports the operands")
	f.StringVar(&c.plan, "plan", "", "use the plan of this `file`, on as many ranks as it has")
	oneOf(cmd, &c.operand, "operand", []string{heap, window},
		"where operands are, in any memory or in registered memory (GPU: at the same place on all ranks)")
	f.BoolVar(&s.InPlace, "in-place", false, "the input is the output, or a part of it, or the other way round")
	f.BoolVar(&s.InPlace, "inplace", false, "the same as --in-place")
	hide(cmd, "inplace")
	oneOf(cmd, &c.device, "device", []string{onHost, onGPU}, "where ranks are")
	f.IntVar(&c.gpus, "gpus", 0, "GPU: use the first of the GPUs that this process sees (0: all)")
	f.IntVar(&c.sms, "sms", 0, "GPU: the most SMs that kernels fill (0: the library's choice)")
	f.IntVar(&c.staging, "staging", 0,
		"GPU: bytes of each rank's memory that hold what peers send (0: the library's choice)")
	f.BoolVar(&c.graph, "graph", false, "GPU: time operations in a graph of many, and not calls")
	f.BoolVar(&c.loopback, "loopback", false, "GPU: one rank, whose peers are regions of its own GPU's memory")
	f.BoolVar(&c.noPeers, "no-peers", false,
		"do not measure NCCL in the same run (host: Gloo, which is measured for a report)")
	f.IntVar(&c.replays, "replays", c.replays, "GPU: how many replays of a graph are timed")
	f.IntVar(&c.ops, "operations", c.ops, "GPU: how many operations a graph has")
	f.DurationVar(&c.deadline, "deadline", c.deadline, "GPU: the deadline of each wait on a GPU")
	if k.Collective == collective.AllReduce {
		f.BoolVar(&c.norm, "norm", false,
			"GPU: add a residual and normalise rows, fused, and then with a kernel behind the all-reduce")
		f.IntVar(&c.hidden, "hidden", 8192, "GPU: the numbers of a row of --norm")
	}
	effortFlags(cmd, &s.Effort)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.Changed("op") && !k.Collective.Reduces() {
			return usageError{fmt.Errorf("--op: %v reduces nothing; leave it out", k.Collective)}
		}
		if err := c.check(cmd); err != nil {
			return usageError{err}
		}
		if c.device == onGPU {
			return c.onGPUs(cmd, *out)
		}
		if launched() > 0 {
			return sweepAsMember(cmd.Context(), *out, c.jobs())
		}
		if err := validate(c.jobs()); err != nil {
			return err
		}
		return benchmark(*out, func(s *session) error { return c.onHost(cmd.Context(), s) })
	}
	return cmd
}

// onHost measures ranks of the host, and for a report Gloo beside each number of them.
func (c *collectiveFlags) onHost(parent context.Context, s *session) error {
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	defer stop()
	for _, j := range c.jobs() {
		before := len(s.records)
		if err := s.sweep([]job{j}); err != nil {
			return err
		}
		if !s.reports || c.noPeers {
			continue
		}
		bar := s.progress.Start(fmt.Sprintf("%s of Gloo, %s", c.sweep.Kind, measure.Count(j.ranks, "rank")), 1)
		peers, err := bench.MeasureHostPeers(ctx, c.sweep, s.records[before:])
		bar.Advance(1)
		bar.Done("")
		if err != nil {
			_, _ = fmt.Fprintf(s.progress.Above(os.Stderr), "weft: Gloo is not available: %v\n", err)
			c.noPeers = ctx.Err() == nil
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := s.peers(peers); err != nil {
			return err
		}
	}
	return nil
}

// peers shows rows of other libraries.
func (s *session) peers(rows []measure.Record) error {
	for _, r := range rows {
		s.wrong = s.wrong || !r.Verified
	}
	return s.print(rows)
}

func defaultCollective(name string) benchcollective.Sweep {
	return benchcollective.Sweep{Kind: name, DType: "fp32", Op: "sum", Heap: true}
}

// check refuses flags that are wrong whatever the machine, and fills in what follows from them.
func (c *collectiveFlags) check(cmd *cobra.Command) error {
	if err := refuseOther(cmd, c.device, collectiveHostOnly, collectiveGPUOnly); err != nil {
		return err
	}
	c.sweep.Heap, c.sweep.Bytes = c.operand == heap, c.sizes
	if c.plan != "" {
		if err := c.planned(cmd); err != nil {
			return err
		}
	}
	if err := launchedRanks(cmd, c.device, &c.ranks); err != nil {
		return err
	}
	if c.device == onHost {
		return nil
	}
	if !cmd.Flags().Changed("ranks") && c.plan == "" {
		if c.ranks = (counts{0}); c.loopback {
			c.ranks = counts{4}
		}
	}
	switch {
	case len(c.ranks) != 1:
		return errors.New("--device gpu takes one number of --ranks")
	case c.loopback && c.plan != "":
		return errors.New("--loopback: a plan waits for ranks that a loopback does not have; leave --plan out")
	case c.loopback && c.ranks[0] < 2:
		return errors.New("--loopback: want --ranks of at least 2")
	case c.loopback && c.operand == window:
		return errors.New("--loopback: its peers have no windows; leave --operand out")
	case c.loopback && c.sweep.Op == weft.Avg.String():
		return errors.New("--loopback: peers send zeros, of which there is no average")
	case c.gpus < 0 || c.sms < 0 || c.staging < 0 || c.deadline <= 0:
		return errors.New("--gpus, --sms, --staging: want at least 0; --deadline: more than 0s")
	}
	c.sweep.Time = 0
	if c.norm {
		c.sweep.Hidden, c.noPeers = max(c.hidden, 1), true
	}
	return errors.Join(timing.Within("--operations", c.ops, 1, timing.MostOperations),
		timing.Within("--replays", c.replays, 1, timing.MostReplays), c.sweep.Validate(true))
}

// planned makes the sweep one by a plan.
func (c *collectiveFlags) planned(cmd *cobra.Command) error {
	for _, other := range []string{"algorithm", "op", "in-place", "ranks"} {
		if cmd.Flags().Changed(other) {
			return fmt.Errorf("--plan says what --%s is; leave that out", other)
		}
	}
	sweep, ranks, err := c.sweep.Planned(c.plan)
	c.sweep, c.ranks = sweep, counts{ranks}
	if err == nil && launched() > 0 && launched() != ranks {
		err = fmt.Errorf("%s: it is for %d ranks, and the launcher has started %d", c.plan, ranks, launched())
	}
	return err
}

func (c *collectiveFlags) jobs() []job {
	var jobs []job
	for _, n := range c.ranks {
		jobs = append(jobs, job{n, bench.Task{Collective: &c.sweep}})
	}
	return jobs
}

// launchedRanks makes the ranks those that a launcher has started, if there are any.
func launchedRanks(cmd *cobra.Command, device string, ranks *counts) error {
	size := launched()
	if size == 0 {
		return nil
	}
	switch given := cmd.Flags().Changed("ranks"); {
	case device == onGPU:
		return errors.New("--device gpu makes its ranks itself: run it without a launcher")
	case given && (len(*ranks) != 1 || (*ranks)[0] != size):
		return fmt.Errorf("--ranks %v: the launcher has started %d", ranks, size)
	}
	*ranks = counts{size}
	return nil
}

// launched is how many ranks a launcher has started, of which this process is one, or 0.
func launched() int {
	if os.Getenv("WEFT_RANK") == "" {
		return 0
	}
	n, _ := strconv.Atoi(os.Getenv("WEFT_SIZE"))
	return n
}

// collective sweeps the sizes of cfg on n ranks of the host.
func (s *session) collective(n int, cfg benchcollective.Sweep) ([]measure.Record, error) {
	base := s.base
	base.DType, base.Operand, base.InPlace = cfg.DType, operandName(cfg.Heap), cfg.InPlace
	if benchcollective.Named(cfg.Kind).Collective.Reduces() {
		base.Reduction = cfg.Op
	}
	name := fmt.Sprintf("%s, %s", cfg.Kind, measure.Count(n, "rank"))
	records, err := s.run(name, n, bench.Task{Collective: &cfg}, base, 0)
	if s.prints {
		read := s.copySpeed(n) / 2 // as many are written
		ceil(records, read/float64(n)/1e9)
	}
	return records, err
}

// ceil notes what the links, or memcpy, carry in rows.
func ceil(records []measure.Record, gbps float64) {
	for i := range records {
		records[i].SetCeiling(gbps)
	}
}

// onGPUs measures on GPUs.
func (c *collectiveFlags) onGPUs(cmd *cobra.Command, to output) (err error) {
	if to.report != "" {
		if err := checkReport(to.report); err != nil {
			return usageError{err}
		}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ranks := c.ranks[0]
	if c.loopback {
		ranks = 1
	}
	contexts, ranks, closeAll, err := openRanks(c.gpus, ranks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	if c.loopback {
		contexts, ranks = contexts[:1], c.ranks[0]
	}
	s := newSession(to, os.Stderr)
	defer s.progress.Close()
	m := benchcollective.GPUs{Graph: c.graph, Loopback: c.loopback, SMs: c.sms, Staging: c.staging, GPUs: timing.GPUs{
		Contexts: contexts, Ranks: ranks, Operations: c.ops, Replays: c.replays, Deadline: c.deadline,
		Cache: kernels(s.progress.Above(os.Stderr)),
	}}
	if err := c.measure(ctx, s, m); err != nil {
		return err
	}
	s.progress.Close()
	return s.finish(to)
}

// measure measures the sweep, and then peers.
func (c *collectiveFlags) measure(ctx context.Context, s *session, m benchcollective.GPUs) error {
	var most float64
	if s.reports && !c.loopback {
		links, err := link.Measure(ctx, m.Contexts, quickLink(m.GPUs, nil))
		if err != nil {
			return err
		}
		most = links.Best().GBps
	}
	bar := s.progress.Start(fmt.Sprintf("%s, %s", c.sweep.Kind, measure.Count(m.Ranks, "rank")), len(c.sweep.Bytes))
	defer bar.Done("")
	row := func(r measure.Record) error {
		r.Host, r.Version = s.base.Host, s.base.Version
		if !c.sweep.Heap {
			r.Operand = window
		}
		s.wrong = s.wrong || !r.Verified
		bar.Advance(1)
		one := []measure.Record{r}
		ceil(one, most)
		return s.print(one)
	}
	err := m.Measure(ctx, c.sweep, row)
	if c.norm && err == nil {
		apart := c.sweep
		apart.Apart = true
		err = m.Measure(ctx, apart, row)
	}
	if err != nil || c.noPeers {
		return err
	}
	bar.Done("")
	peers, err := bench.MeasureCollectivePeers(ctx, len(m.Contexts), c.graph, c.sweep, s.records)
	if err != nil {
		_, _ = fmt.Fprintf(s.progress.Above(os.Stderr), "weft: NCCL is not available: %v\n", err)
	}
	return s.peers(peers)
}
