package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/terminal"
	"github.com/weftgo/weft/collective/tuning"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/tuningfile"
)

func newTune() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Search for the fastest settings on this machine",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	describe(cmd, "tune_root")
	cmd.AddCommand(newTuneEP(), newTuneCollectives(), newTuneMerge())
	return cmd
}

// tuneFlags are the flags of tune ep.
type tuneFlags struct {
	ep  epFlags
	gpu *gpuFlags
	out string
}

func newTuneEP() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ep",
		Short: "Search for the fastest tuning of expert parallelism's kernels on this machine's GPUs",
		Args:  noArgs,
	}
	describe(cmd, "tune")
	t := &tuneFlags{ep: epFlags{shape: defaultEP(), mode: lowLatency}}
	e := &t.ep.shape
	e.Experts = 256
	t.ep.tokens = counts{1, 8, 32, 128, 256}
	t.gpu = &gpuFlags{replays: 5, ops: 100, deadline: 10 * time.Second}
	f := cmd.Flags()
	oneOf(cmd, &t.ep.mode, "mode", []string{lowLatency, highThroughput},
		"the defaults: few tokens (low latency) or many (high throughput)")
	f.Var(&t.ep.tokens, "tokens", "tokens per rank of the handles")
	t.ep.rows(cmd)
	oneOf(cmd, &e.DType, "dtype", benchep.Payloads(), "element type (those of 8 bits are quantised from bf16 on the way)")
	oneOf(cmd, &e.Scales, "scales", benchep.ScaleOrders(), "order of the scales that arrive with fp8 rows")
	oneOf(cmd, &e.Layout, "layout", benchep.Layouts(), "order in which a rank receives rows")
	oneOf(cmd, &e.Reduction, "reduction", benchep.Reductions(), "how rows are summed on their way home")
	t.gpu.quantisation(cmd, "")
	f.IntVar(&t.gpu.gpus, "gpus", 0, "use the first of the GPUs that this process sees (0: all)")
	t.gpu.multiprocessors(cmd, "")
	f.DurationVar(&t.gpu.deadline, "deadline", t.gpu.deadline, "of each wait on a GPU")
	f.StringVar(&t.out, "out", "", "the `file` of the table (default: the one that handles read)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t.ep.setDefaults(cmd)
		return t.run(cmd)
	}
	return cmd
}

func (t *tuneFlags) run(cmd *cobra.Command) (err error) {
	shapes, err := t.gpu.shapes(cmd, &t.ep)
	if err != nil {
		return usageError{err}
	}
	if t.gpu.gpus < 0 || t.gpu.deadline <= 0 {
		return usageError{errors.New("--gpus, --deadline: want at least 0, and more than 0s")}
	}
	for _, s := range shapes {
		if _, err := s.DeviceSpec(1); err != nil {
			return usageError{err}
		}
	}
	path, err := tunedFile(t.out)
	if err != nil {
		return err
	}
	table, err := ep.ReadTuningTable(path)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	driver, err := cuda.Open()
	if err != nil {
		return err
	}
	contexts, closeAll, err := primaries(driver, t.gpu.gpus)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	progress := terminal.NewProgress(os.Stderr)
	defer progress.Close()
	g := benchep.GPUs{GPUs: timing.GPUs{
		Contexts: contexts, Operations: t.gpu.ops, Replays: t.gpu.replays, Deadline: t.gpu.deadline,
		Cache: kernels(progress.Above(os.Stderr)),
	}}
	return t.tune(ctx, g, shapes, table, path, progress)
}

// tell says where rows are now, and who reads them.
func (t *tuneFlags) tell(w io.Writer, path, profile string, rows int) {
	fmt.Fprintf(w, "\n%s: %s, of the profile %s\n", path, measure.Count(rows, "row"), profile)
	if t.out != "" {
		fmt.Fprintln(w, "Handles read them where WEFT_TUNING names the file. \"weft tune merge\" puts them into another one.")
	}
}

// tunedFile is the file to write. What is measured from now on does not go by it.
func tunedFile(out string) (path string, err error) {
	if path = out; path == "" {
		if path, err = tuning.Path(); err != nil {
			return "", err
		}
		if path == "" {
			return "", usageError{errors.New("WEFT_TUNING=none, or no cache directory: name a file with --out")}
		}
	}
	return path, os.Setenv("WEFT_TUNING", tuning.None)
}

// tune searches, prints the results and writes the table.
func (t *tuneFlags) tune(ctx context.Context, g benchep.GPUs, shapes []benchep.Shape, table *ep.TuningTable,
	path string, progress *terminal.Progress,
) error {
	device := g.Contexts[0].Device()
	name, err := device.Name()
	if err != nil {
		return err
	}
	sms, err := device.Multiprocessors()
	if err != nil {
		return err
	}
	if err := table.Write(path); err != nil { // before anything is measured for nothing
		return err
	}
	bar := progress.Start("tune", 100*len(shapes))
	defer bar.Done("")
	measure.Comment(progress.Above(os.Stdout), "tried: tunings that were measured. dispatch, combine: us of the slowest "+
		"rank in a graph, with the library's choice; tuned: with the tuning that was found. how: that tuning, as in the "+
		"table.")
	w := tabwriter.NewWriter(progress.Above(os.Stdout), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "contract\ttokens\ttried\tdispatch\ttuned\tcombine\ttuned\thow")
	wrong := 0
	for i := range shapes {
		at := 0
		found, err := g.Tune(ctx, shapes[i:i+1], func(done float64) {
			bar.Advance(int(100*done) - at)
			at = int(100 * done)
		})
		if err != nil {
			return errors.Join(err, w.Flush())
		}
		f := found[0]
		row, err := f.Row(ep.Hardware{GPU: name, SMs: sms, Ranks: len(g.Contexts)}, version(), time.Now())
		if err != nil {
			return errors.Join(err, w.Flush())
		}
		how, err := json.Marshal(row.Tuning) // as in the table
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%s\n", f.Shape.Contract(), f.Shape.Tokens, f.Tried,
			row.Dispatch.Chosen, row.Dispatch.Tuned, row.Combine.Chosen, row.Combine.Tuned, how)
		for _, what := range f.Wrong {
			fmt.Fprintf(w, "\tWRONG: %s\n", what)
			wrong++
		}
		if len(f.Wrong) > 0 {
			table.Drop(row.Hardware, row.Kind) // an earlier result is void
		} else {
			table.Put(row)
		}
		if err := table.Write(path); err != nil {
			return errors.Join(err, w.Flush())
		}
	}
	bar.Done("")
	if err := w.Flush(); err != nil {
		return err
	}
	t.tell(progress.Above(os.Stdout), path, tuningfile.ProfileOf(name, false), len(table.Rows))
	if wrong > 0 {
		return fmt.Errorf("%d outputs were wrong, which no tuning may cause: the shapes above are not in the table", wrong)
	}
	return nil
}
