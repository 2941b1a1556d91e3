package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench"
	benchcollective "github.com/weftgo/weft/cmd/weft/internal/bench/collective"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/terminal"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/collective/tuning"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/tuningfile"
)

// tuneCollectives is the command tune collectives.
type tuneCollectives struct {
	sweep              benchcollective.Sweep
	kinds              []string
	ranks              counts
	sizes              sizes
	plans              []string
	planned            []*benchcollective.Trial
	device, out        string
	profile            string
	repeats            int
	show, loopback     bool
	options            collective.Options
	gpus, replays, ops int
	deadline           time.Duration
}

// Flags that mean nothing on the other device.
var (
	tuneHostOnly = []string{"iters", "time", "warmup", "plan"}
	tuneGPUOnly  = []string{"gpus", "sms", "staging", "replays", "operations", "deadline", "loopback"}
)

func newTuneCollectives() *cobra.Command {
	t := &tuneCollectives{
		sweep: defaultCollective(""), ranks: counts{2, 4}, device: onHost, repeats: 3,
		sizes:   sizes{8, 1 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20},
		replays: 5, ops: 100, deadline: 10 * time.Second,
	}
	cmd := &cobra.Command{
		Use: "collectives", Short: "Measure every algorithm of the collectives, and have groups choose by that", Args: noArgs,
	}
	describe(cmd, "tune_collectives")
	f := cmd.Flags()
	f.StringSliceVar(&t.kinds, "kinds", nil, "collectives, as bench names them (default: all that have a choice)")
	f.Var(&t.ranks, "ranks", "how many ranks; GPU: if none is given, one for each GPU, or 4 with --loopback")
	f.Var(&t.sizes, "sizes", "bytes of the operations")
	f.StringArrayVar(&t.plans, "plan", nil, "measure the plan of this `file`, too, on its ranks (repeatable)")
	oneOf(cmd, &t.sweep.DType, "dtype", benchcollective.DTypes(), "element type")
	oneOf(cmd, &t.device, "device", []string{onHost, onGPU}, "where ranks are")
	f.IntVar(&t.repeats, "repeats", t.repeats, "how often each algorithm is measured; the least median counts")
	f.BoolVar(&t.show, "show", false, "measure nothing: print what groups choose")
	f.StringVar(&t.profile, "profile", "", "with --show: that of another machine")
	f.StringVar(&t.out, "out", "", "the `file` of tables (default: the one that groups read)")
	f.IntVar(&t.gpus, "gpus", 0, "GPU: use the first of the GPUs that this process sees (0: all)")
	f.IntVar(&t.options.SMs, "sms", 0, "GPU: the most SMs that kernels fill (0: the library's choice)")
	f.IntVar(&t.options.Staging, "staging", 0,
		"GPU: bytes of each rank's memory that hold what peers send (0: the library's choice)")
	f.IntVar(&t.replays, "replays", t.replays, "GPU: how many replays of a graph are timed")
	f.IntVar(&t.ops, "operations", t.ops, "GPU: how many operations a graph has")
	f.BoolVar(&t.loopback, "loopback", false, "GPU: one rank, whose peers are regions of its own GPU's memory")
	f.DurationVar(&t.deadline, "deadline", t.deadline, "GPU: the deadline of each wait on a GPU")
	effortFlags(cmd, &t.sweep.Effort)
	t.sweep.Time = 100 * time.Millisecond
	f.Lookup("time").DefValue = t.sweep.Time.String()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := t.check(cmd); err != nil {
			return usageError{err}
		}
		switch {
		case t.show && (t.device == onHost || t.profile != ""):
			return t.tell(cmp.Or(t.profile, tuning.SharedMemory), t.ranks...)
		case t.device == onGPU:
			return t.onGPUs(cmd.Context())
		default:
			return t.onHost()
		}
	}
	return cmd
}

// check refuses flags that are wrong whatever the machine, and fills in what follows from them.
func (t *tuneCollectives) check(cmd *cobra.Command) error {
	if err := refuseOther(cmd, t.device, tuneHostOnly, tuneGPUOnly); err != nil {
		return err
	}
	gpu := t.device == onGPU
	tunable := benchcollective.Tunable(gpu)
	if len(t.kinds) == 0 {
		t.kinds = tunable
	}
	for _, k := range t.kinds {
		if !slices.Contains(tunable, k) {
			return fmt.Errorf("--kinds %s: want some of %s", k, strings.Join(tunable, ", "))
		}
	}
	if gpu {
		t.sweep.Time = 0
		if !cmd.Flags().Changed("ranks") {
			if t.ranks = (counts{0}); t.loopback {
				t.ranks = counts{4}
			}
		}
	}
	switch {
	case t.repeats < 1:
		return errors.New("--repeats: want at least 1")
	case t.profile != "" && !t.show:
		return errors.New("--profile: it goes with --show")
	case t.gpus < 0 || t.options.SMs < 0 || t.options.Staging < 0 || t.deadline <= 0:
		return errors.New("--gpus, --sms, --staging: want at least 0; --deadline: more than 0s")
	case t.show && t.profile != "" && t.ranks[0] == 0:
		return errors.New("--profile: name --ranks too, since such a machine may have any number of them")
	case t.loopback && slices.Min(t.ranks) < 2:
		return errors.New("--loopback: want --ranks of at least 2")
	}
	for _, file := range t.plans {
		p, err := benchcollective.PlanTrial(file)
		if err != nil {
			return err
		}
		if !slices.Contains(t.kinds, p.Kind.Name) || !slices.Contains(t.ranks, p.Ranks) {
			return fmt.Errorf("--plan %s: it is for %s on %d ranks, which --kinds or --ranks leave out", file, p.Kind.Name,
				p.Ranks)
		}
		t.planned = append(t.planned, p)
	}
	if profiles := tuning.Profiles(); t.profile != "" && !slices.Contains(profiles, t.profile) {
		_, found, err := tuning.Find(t.out, t.profile)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("--profile %s: there is no such table; want one of %s, or one that the file of tables has",
				t.profile, strings.Join(profiles, ", "))
		}
	}
	switch host := t.profile == tuning.SharedMemory; {
	case t.profile == "":
	case gpu && host:
		return fmt.Errorf("--profile %s: it is that of ranks on the host: leave out --device gpu", t.profile)
	case !gpu && !host:
		return fmt.Errorf("--profile %s: it is that of ranks on GPUs: add --device gpu", t.profile)
	}
	t.sweep.Bytes, t.sweep.Kind = t.sizes, t.kinds[0]
	for _, n := range t.ranks {
		most := weft.MaxRanks
		if gpu {
			most = device.MaxRanks
		}
		if err := timing.Within("--ranks", n, 0, most); err != nil {
			return err
		}
	}
	return errors.Join(timing.Within("--operations", t.ops, 1, timing.MostOperations),
		timing.Within("--replays", t.replays, 1, timing.MostReplays), t.sweep.Validate(gpu))
}

// onHost measures ranks of the host.
func (t *tuneCollectives) onHost() error {
	return benchmark(output{}, func(s *session) error {
		return t.tune(s.progress, func(int) string { return tuning.SharedMemory }, func(trial *benchcollective.Trial) error {
			sweep := trial.Sweep(t.sweep)
			records, err := s.run(trial.Name(), trial.Ranks, bench.Task{Collective: &sweep}, s.base, 0)
			for _, r := range records {
				trial.Take(r)
			}
			return err
		})
	})
}

// onGPUs measures ranks on GPUs.
func (t *tuneCollectives) onGPUs(parent context.Context) (err error) {
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	defer stop()
	most := slices.Max(t.ranks)
	if t.loopback {
		most = 1
	}
	contexts, ranks, closeAll, err := openRanks(t.gpus, most)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	if t.loopback {
		contexts = contexts[:1]
	} else if most == 0 {
		t.ranks = counts{ranks}
	}
	name, err := contexts[0].Device().Name()
	if err != nil {
		return err
	}
	profile := func(ranks int) string { return tuningfile.ProfileOf(name, !t.loopback && ranks > len(contexts)) }
	if t.show {
		for _, n := range t.ranks {
			err = errors.Join(err, t.tell(profile(n), n))
		}
		return err
	}
	progress := terminal.NewProgress(os.Stderr)
	defer progress.Close()
	g := benchcollective.GPUs{
		Graph: true, Loopback: t.loopback, SMs: t.options.SMs, Staging: t.options.Staging, GPUs: timing.GPUs{
			Contexts: contexts, Operations: t.ops, Replays: t.replays, Deadline: t.deadline,
			Cache: kernels(progress.Above(os.Stderr)),
		},
	}
	return t.tune(progress, profile, func(trial *benchcollective.Trial) error { return g.Try(ctx, t.sweep, trial) })
}

// tablesIn are the tables of collectives in a file, to which others may be added; none if there is no file.
func tablesIn(path string) (map[string]*tuning.Table, error) {
	tables, err := tuning.Read(path)
	if tables == nil {
		tables = map[string]*tuning.Table{}
	}
	return tables, err
}

// tune measures, writes tables and prints what is chosen now.
func (t *tuneCollectives) tune(progress *terminal.Progress, profile func(ranks int) string,
	try func(*benchcollective.Trial) error,
) error {
	path, err := tunedFile(t.out)
	if err != nil {
		return err
	}
	tables, err := tablesIn(path)
	if err != nil {
		return err
	}
	if err := tuning.Write(path, tables); err != nil { // before anything is measured for nothing
		return err
	}
	before := maps.Clone(tables)
	gpu := t.device == onGPU
	var wrong []string
	for _, n := range t.ranks {
		name := profile(n)
		table := &tuning.Table{}
		if old := tables[name]; old != nil {
			*table = *old
			table.Measured = slices.Clone(old.Measured)
		}
		table.Weft, table.Date = version(), time.Now().UTC().Format(time.DateOnly)
		tables[name] = table
		for _, kind := range t.kinds {
			trials := benchcollective.Trials(gpu, kind, n, t.loopback)
			for _, p := range t.planned {
				if p.Kind.Name == kind && p.Ranks == n {
					trials = append(trials, p)
				}
			}
			found, err := benchcollective.Search(trials, t.repeats, try, table)
			if err != nil {
				return err
			}
			wrong = append(wrong, found...)
			if t.loopback {
				continue
			}
			if err := tuning.Write(path, tables); err != nil {
				return err
			}
		}
	}
	progress.Close()
	for _, w := range wrong {
		fmt.Fprintln(os.Stderr, "weft:", w)
	}
	for _, n := range t.ranks {
		name := profile(n)
		if err := t.print(name, over(tables[name], name), over(before[name], name), n); err != nil {
			return err
		}
	}
	if !t.loopback {
		fmt.Printf("\n%s: written\n", path)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d outputs were wrong, which no choice may cause: those algorithms have no times", len(wrong))
	}
	return nil
}

// over is a table of a file with what the library knows beside.
func over(t *tuning.Table, profile string) *tuning.Table {
	base := tuning.Builtin(profile)
	if t == nil {
		return base
	}
	return t.Over(base)
}

// tell prints what groups choose, by the table that they find.
func (t *tuneCollectives) tell(profile string, ranks ...int) error {
	table, _, err := tuning.Find(t.out, profile)
	if err != nil {
		return err
	}
	for _, n := range ranks {
		if err := t.print(profile, table, table, n); err != nil {
			return err
		}
	}
	return nil
}

// print prints what groups of so many ranks choose by a table, and where another chose otherwise.
func (t *tuneCollectives) print(profile string, table, before *tuning.Table, ranks int) error {
	dtype, err := weft.ParseDType(t.sweep.DType)
	if err != nil {
		return err
	}
	gpu := t.device == onGPU
	fmt.Println()
	measure.Comment(os.Stdout, fmt.Sprintf("%s, %s of %v\n"+
		"operands: where they lie. algorithms: which runs up to which size of nccl-tests. before: what ran, where that "+
		"changed.", profile, measure.Count(ranks, "rank"), dtype))
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "operation\toperands\talgorithms\tbefore")
	was := benchcollective.Choices(gpu, t.options, before, t.kinds, ranks, dtype)
	for i, c := range benchcollective.Choices(gpu, t.options, table, t.kinds, ranks, dtype) {
		old := was[i].String()
		if old == c.String() {
			old = ""
		}
		fmt.Fprintf(w, "%s\t%s\t%v\t%s\n", c.Kind, c.Operands, &c, old)
	}
	if gpu {
		one, two, part := collective.GPUCaps(dtype, t.options, ranks)
		fmt.Fprintf(w, "one launch takes at most\t\tone-shot %s, two-shot %s, of others a part of %s\t\n",
			measure.Size(int64(one)), measure.Size(int64(two)), measure.Size(int64(part)))
	}
	return w.Flush()
}
