package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/bench"
	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/link"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/report"
	"github.com/weftgo/weft/cmd/weft/internal/terminal"
	"github.com/weftgo/weft/cuda"
)

// Where bench ep measures.
const (
	onHost = "host"
	onGPU  = "gpu"
)

// gpuFlags are the flags of bench ep for GPUs.
type gpuFlags struct {
	device          string
	gpus            int
	capacity        int
	sms             choices
	gradients       bool
	quantize        string
	phases, lines   string
	noLink, noPeers bool
	replays, ops    int
	deadline        time.Duration
}

// Of the flags of bench ep, these mean nothing on the other device. Their names are known, so that
// a flag without effect is refused.
var (
	hostOnly = []string{
		"weighting", "counts", "calls", "operand", "cached", "fresh", "batches", "in-place",
		"iters", "time", "warmup",
	}
	gpuOnly = []string{
		"gpus", "capacity", "sms", "quantize", "phases", "gradients", "lines", "no-link",
		"no-peers", "replays", "operations", "deadline",
	}
)

func newGPUFlags(cmd *cobra.Command) *gpuFlags {
	g := &gpuFlags{device: onHost, replays: 7, ops: 100, deadline: 10 * time.Second}
	f := cmd.Flags()
	oneOf(cmd, &g.device, "device", []string{onHost, onGPU}, "where ranks are")
	f.IntVar(&g.gpus, "gpus", 0, "GPU: use the first of the GPUs that this process sees (0: all)")
	f.IntVar(&g.capacity, "capacity", 0,
		"GPU: the most tokens per rank that handles are made for (0: as many as there are)")
	g.multiprocessors(cmd, "GPU: ")
	g.quantisation(cmd, "GPU: ")
	oneOf(cmd, &g.phases, "phases", []string{"fused", "all"},
		"GPU: prepare with dispatch in one operation, or prepare and dispatch apart too (ll: fused, ht: all)")
	f.BoolVar(&g.gradients, "gradients", false, "GPU: measure the gradients of combine and dispatch too (ll: no, ht: yes)")
	f.StringVar(&g.lines, "lines", "", "GPU: write the lines of --json to this `file` as well")
	f.BoolVar(&g.noLink, "no-link", false, "GPU: do not measure the links first")
	f.BoolVar(&g.noPeers, "no-peers", false, "GPU: do not measure NCCL and PyTorch's symmetric memory in the same run")
	f.IntVar(&g.replays, "replays", g.replays, "GPU: how many replays of a graph are timed")
	f.IntVar(&g.ops, "operations", g.ops, "GPU: how many operations a graph has")
	f.DurationVar(&g.deadline, "deadline", g.deadline, "GPU: the deadline of each wait on a GPU")
	return g
}

func (g *gpuFlags) multiprocessors(cmd *cobra.Command, where string) {
	cmd.Flags().Var(&g.sms, "sms", where+"SMs for the kernels; a row for each number in a list "+
		"(0: the library's choice; ll: 0, ht: 8,12,24,96)")
}

func (g *gpuFlags) quantisation(cmd *cobra.Command, where string) {
	oneOf(cmd, &g.quantize, "quantize", []string{"bf16", "none"},
		where+"the type from which dispatch quantises fp8 rows, or none if they and their scales are the "+
			"caller's (ll: bf16, ht: none); bf16 alone means --dtype fp8")
}

// shapes are the shapes to measure: the defaults of GPUs where no flag was given.
func (g *gpuFlags) shapes(cmd *cobra.Command, e *epFlags) ([]benchep.Shape, error) {
	given, sms := cmd.Flags().Changed, g.sms.counts
	switch {
	case e.mode == highThroughput:
		if sms == nil {
			sms = counts{8, 12, 24, 96}
		}
	case !given("tokens"):
		e.tokens = counts{1, 8, 32, 128, 256}
	}
	if sms == nil {
		sms = counts{0}
	}
	contracts, err := g.contracts(given, e)
	if err != nil {
		return nil, err
	}
	var all []benchep.Shape
	for _, c := range contracts {
		for _, c.Tokens = range e.tokens {
			for _, c.SMs = range sms {
				all = append(all, c)
			}
		}
	}
	return all, nil
}

// contracts are the shapes but for how many tokens and SMs they have.
func (g *gpuFlags) contracts(given func(flag string) bool, e *epFlags) ([]benchep.Shape, error) {
	s, many := e.shape, e.mode == highThroughput
	if !given("experts") {
		s.Experts = 256
	}
	s.Capacity, s.Counts, s.Time = g.capacity, "device", 0
	s.Given = g.quantize == "none" || g.quantize == "" && many
	payload := given("dtype") || given("payload")
	if g.quantize == "bf16" {
		if payload && !strings.HasPrefix(s.DType, "fp8") {
			return nil, fmt.Errorf("--quantize bf16: %s rows are not quantised; want --dtype fp8 or fp8-ue8m0", s.DType)
		}
		if !payload {
			s.DType, payload = "fp8", true
		}
	}
	with := func(layout, reduction, weighting, dtype, scales string) benchep.Shape {
		c := s
		c.Layout, c.Reduction, c.Weighting, c.DType, c.Scales = layout, reduction, weighting, dtype, scales
		return c
	}
	switch {
	case payload:
		return []benchep.Shape{s}, nil
	case many:
		return []benchep.Shape{
			with(s.Layout, s.Reduction, s.Weighting, "bf16", ""),
			with(s.Layout, s.Reduction, s.Weighting, "fp8", s.Scales),
		}, nil
	case given("layout") || given("reduction"):
		return []benchep.Shape{s}, nil
	}
	scales := "column-major" // as DeepEP has them
	if given("scales") {
		scales = s.Scales
	}
	return []benchep.Shape{
		with("rank-major", "partial", "plain", "bf16", ""),
		with("expert-major", "partial", "weighted", "bf16", ""),
		with("expert-major", "exact", "weighted", "fp8", scales),
	}, nil
}

// setDefaults fills in what follows from the mode.
func (g *gpuFlags) setDefaults(cmd *cobra.Command, mode string) {
	if !cmd.Flags().Changed("phases") && mode == highThroughput {
		g.phases = "all"
	}
	if !cmd.Flags().Changed("gradients") {
		g.gradients = mode == highThroughput
	}
}

// refuseOther says which of the flags that were given mean nothing on the device.
func refuseOther(cmd *cobra.Command, device string, hostOnly, gpuOnly []string) error {
	list, other := gpuOnly, onGPU
	if device == onGPU {
		list, other = hostOnly, onHost
	}
	for _, name := range list {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s is for --device %s", name, other)
		}
	}
	return nil
}

// run measures on GPUs.
func (g *gpuFlags) run(cmd *cobra.Command, e *epFlags, to output) (err error) {
	g.setDefaults(cmd, e.mode)
	shapes, err := g.shapes(cmd, e)
	if err != nil {
		return usageError{err}
	}
	if cmd.Flags().Changed("ranks") && len(e.ranks) != 1 {
		return usageError{errors.New("--device gpu takes one number of --ranks")}
	}
	if g.gpus < 0 || g.ops < 1 || g.replays < 1 || g.deadline <= 0 {
		return usageError{errors.New("--gpus, --operations, --replays, --deadline: want at least " +
			"0, 1, 1, and more than 0s")}
	}
	if g.ops > timing.MostOperations || g.replays > timing.MostReplays {
		return usageError{fmt.Errorf("want at most %d --operations, %d --replays",
			timing.MostOperations, timing.MostReplays)}
	}
	for _, s := range shapes { // with the fewest ranks that there can be; the rest is for when GPUs are known
		ranks := 1
		if cmd.Flags().Changed("ranks") {
			ranks = e.ranks[0]
		}
		if _, err := s.DeviceSpec(ranks); err != nil {
			return usageError{err}
		}
	}
	if to.report != "" {
		if err := checkReport(to.report); err != nil {
			return usageError{err}
		}
	}
	var file io.Writer
	if g.lines != "" {
		f, failed := openLines(g.lines)
		if failed != nil {
			return usageError{failed}
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		file = f
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ranks := 0
	if cmd.Flags().Changed("ranks") {
		ranks = e.ranks[0]
	}
	contexts, ranks, closeAll, err := openRanks(g.gpus, ranks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	p := &gpuPrinter{lines: file, json: to.json, progress: terminal.NewProgress(os.Stderr)}
	defer p.progress.Close()
	p.to = p.progress.Above(os.Stdout)
	measuring := benchep.GPUs{GPUs: timing.GPUs{
		Contexts: contexts, Ranks: ranks, Operations: g.ops, Replays: g.replays, Deadline: g.deadline,
		Cache: kernels(p.progress.Above(os.Stderr)),
	}, Phases: g.phases == "all", Gradients: g.gradients}
	quoted := bench.QuotedPeers()
	if e.mode == highThroughput {
		quoted = bench.QuotedThroughputPeers()
	}
	if err := g.measure(ctx, measuring, shapes, quoted, p); err != nil {
		return err
	}
	if to.report != "" {
		if err := writeReport(to.report, p.here.Host, report.Report{Facts: p.facts, GPUs: &p.found}); err != nil {
			return err
		}
	}
	if p.wrong {
		return errors.New("some output was wrong: see the rows that are not verified")
	}
	return nil
}

// measure measures the links, the shapes and the peers, in one run.
func (g *gpuFlags) measure(ctx context.Context, m benchep.GPUs, shapes []benchep.Shape, peers []bench.Peer,
	p *gpuPrinter,
) error {
	if err := p.locate(m.Contexts[0]); err != nil {
		return err
	}
	name := p.here.Device
	p.facts = []report.Fact{{
		Name: "measured",
		Value: fmt.Sprintf("%s on %s (%s), by weft %s", measure.Count(m.Ranks, "rank"),
			measure.Count(min(m.Ranks, len(m.Contexts)), "GPU"), name, version()),
	}}
	contexts := m.Contexts[:min(m.Ranks, len(m.Contexts))]
	var c link.Ceiling
	if !g.noLink {
		var err error
		if c, err = link.Measure(ctx, contexts, quickLink(m.GPUs, shapes)); err != nil {
			return err
		}
		best := c.Best()
		links := fmt.Sprintf("kernels get %.0f GB/s out of each (%s, %s); a kernel that does nothing takes "+
			"%.2f us in a graph, a hop %.2f us",
			best.GBps, best.Way, measure.Count(best.SMs,
				"SM"), measure.Micros(c.Small(link.Empty)), measure.Micros(c.Small(link.Hop)))
		p.note("%s, %s: %s", measure.Count(len(contexts), "GPU"), name, links)
		p.facts = append(p.facts, report.Fact{Name: "links", Value: links})
	}
	bar := p.progress.Start("ep, "+measure.Count(m.Ranks, "rank"), m.Rows()*len(shapes))
	defer bar.Done("")
	var bytes []int64
	err := m.Measure(ctx, shapes, func(r benchep.GPURow) error {
		r.SetLink(c.With(r.SMsUsed))
		if r.WireBytes > 0 && !slices.Contains(bytes, r.WireBytes) {
			bytes = append(bytes, r.WireBytes)
		}
		bar.Advance(1)
		return p.row(r)
	})
	if err != nil {
		return err
	}
	bar.Done("")
	if !g.noPeers {
		peers = append(bench.MeasurePeers(ctx, min(m.Ranks, len(m.Contexts)), bytes), peers...)
	}
	return p.peers(peers)
}

// quickLink is a short bench link: the ceiling for as many SMs as the shapes ask for, and the
// largest one.
func quickLink(m timing.GPUs, shapes []benchep.Shape) link.Options {
	o := link.Options{
		Bytes: []int64{16 << 20}, SMs: []int{48, 132},
		Movers: []link.Way{link.Store, link.Load, link.BulkStore, link.BulkLoad}, Replays: 3, Cache: m.Cache,
	}
	sms := 0
	for _, c := range m.Contexts {
		if n, err := c.Device().Multiprocessors(); err == nil && (sms == 0 || n < sms) {
			sms = n
		}
	}
	if sms > 0 {
		o.SMs = []int{min(48, sms), sms}
	}
	for _, s := range shapes {
		if s.SMs > 0 {
			o.SMs = append(o.SMs, s.SMs)
		}
	}
	return o
}

// openRanks opens the GPUs, as many as asked or all, for so many ranks, or one on each.
func openRanks(gpus, ranks int) (contexts []*cuda.Context, n int, closeAll func() error, err error) {
	driver, err := cuda.Open()
	if err != nil {
		return nil, 0, nil, err
	}
	if contexts, closeAll, err = primaries(driver, gpus); err != nil {
		return nil, 0, nil, err
	}
	if ranks == 0 {
		ranks = len(contexts)
	}
	if ranks > len(contexts) {
		if err := withQueues(); err != nil {
			return nil, 0, nil, errors.Join(err, closeAll())
		}
	}
	return contexts, ranks, closeAll, nil
}

// withQueues starts the command anew if the driver would put several ranks' streams in one queue of
// a GPU, where one that waits for another can be before it.
func withQueues() error {
	const name, enough = "CUDA_DEVICE_MAX_CONNECTIONS", "32"
	if os.Getenv(name) == enough {
		return nil
	}
	// The driver reads its environment from the C library's, which was made when the process began.
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, name+"=") })
	return syscall.Exec("/proc/self/exe", os.Args, append(env, name+"="+enough))
}

// gpuPrinter shows rows as they come.
type gpuPrinter struct {
	to, lines io.Writer
	json      bool
	progress  *terminal.Progress
	here      where
	headed    bool
	wrong     bool
	found     report.GPUs // for the report
	facts     []report.Fact
}

// locate says where the rows are measured.
func (p *gpuPrinter) locate(c *cuda.Context) error {
	name, err := c.Device().Name()
	if err != nil {
		return err
	}
	hostname, _ := os.Hostname()
	p.here = where{name, hostname, version()}
	return nil
}

// createLines has the rows written to a file of this name as well, if it is not empty.
func (p *gpuPrinter) createLines(name string) (closeLines func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	f, err := openLines(name)
	if err != nil {
		return nil, usageError{err}
	}
	p.lines = f
	return f.Close, nil
}

func (p *gpuPrinter) note(format string, args ...any) {
	if !p.json {
		_, _ = fmt.Fprintf(p.to, format+"\n", args...)
	}
}

func (p *gpuPrinter) encode(line any) error {
	if p.lines != nil {
		if err := json.NewEncoder(p.lines).Encode(line); err != nil {
			return err
		}
	}
	if p.json {
		return json.NewEncoder(p.to).Encode(line)
	}
	return nil
}

func (p *gpuPrinter) row(r benchep.GPURow) error {
	p.wrong = p.wrong || !r.Verified
	p.found.Rows = append(p.found.Rows, r)
	if err := p.encode(struct {
		benchep.GPURow
		where
	}{r, p.here}); err != nil || p.json {
		return err
	}
	const format = "%-45s %-17s %6s %4s %8s %8s %8s %8s %8s %8s %8s %9s %6s %8s %6s  %s\n"
	var b strings.Builder
	if !p.headed {
		p.headed = true
		b.WriteByte('\n')
		measure.Comment(&b, fmt.Sprintf("p50, max: us of the slowest rank, in graphs of %d operations. alone, p99: the "+
			"median and the 99th percentile of graphs of one operation; there a kernel that does nothing takes %.2f.\n"+
			"eager: without a graph, until the host sees the end. issue: of that, the call. cold: in a graph, with caches "+
			"emptied before each.\n"+
			"MB: 10^6 bytes that leave a rank. GB/s: the same over p50.\n"+
			"floor: us in which kernels on as many SMs carry these bytes over the links. ratio: floor over p50; 1 is the "+
			"links' speed.", r.Operations, r.Empty))
		fmt.Fprintf(&b, format, "contract", "op", "tokens", "SMs", "p50", "max", "alone", "p99", "eager",
			"issue", "cold", "MB", "GB/s", "floor", "ratio", "output")
	}
	output, ratio, floor := "verified", "", ""
	if !r.Verified {
		output = "WRONG: " + strings.Join(r.Problems, "; ")
	}
	if r.Timed != nil || r.UngatedTimed != nil {
		output += ", replays differ"
	}
	us := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	if r.FloorRatio > 0 {
		floor, ratio = us(r.Floor), us(r.FloorRatio)
	}
	tokens := fmt.Sprint(r.Tokens)
	if r.Capacity != r.Tokens {
		tokens += fmt.Sprintf("/%d", r.Capacity)
	}
	fmt.Fprintf(&b, format, r.Contract, r.Op, tokens, fmt.Sprint(r.SMsUsed), us(r.P50), us(r.Max), us(r.Kernel),
		us(r.KernelP99), us(r.Eager), us(r.Issue),
		us(r.Cold), fmt.Sprintf("%.3f", float64(r.WireBytes)/1e6), fmt.Sprintf("%.0f", r.GBps), floor, ratio, output)
	_, err := io.WriteString(p.to, b.String())
	return err
}

// peers prints the figures of other libraries, measured and quoted.
func (p *gpuPrinter) peers(rows []bench.Peer) error {
	p.found.Peers = rows
	for _, r := range rows {
		if err := p.encode(struct {
			bench.Peer
			where
		}{r, p.here}); err != nil {
			return err
		}
	}
	if p.json {
		return nil
	}
	w := tabwriter.NewWriter(p.to, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "\npeer\top\ttokens or bytes\tus\tmeasured\t\n")
	var sources []string
	for _, r := range rows {
		size, took, measured := fmt.Sprint(r.Tokens), fmt.Sprintf("%.1f", r.P50), "in this run"
		if r.WireBytes > 0 {
			size = measure.Size(r.WireBytes)
		}
		if r.SMs > 0 {
			size += fmt.Sprintf(" on %s", measure.Count(r.SMs, "SM"))
		}
		switch {
		case r.Skipped != "":
			size, took, measured = "", "", "skipped: "+r.Skipped
		case r.Date != "":
			if !slices.Contains(sources, r.Source) {
				sources = append(sources, r.Source)
			}
			measured = fmt.Sprintf("%s (%d)", r.Date, 1+slices.Index(sources, r.Source))
		case r.Verified == nil || !*r.Verified:
			measured += ", WRONG"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", r.Contract, r.Op, size, took, measured)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i, source := range sources {
		p.note("(%d) quoted, not measured here: %s", i+1, source)
	}
	return nil
}
