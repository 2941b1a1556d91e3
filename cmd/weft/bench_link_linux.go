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
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/link"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/terminal"
	"github.com/weftgo/weft/cuda"
)

func newBenchLink() *cobra.Command {
	var (
		gpus    int
		asJSON  bool
		lines   string
		bytes   = sizes{64 << 20}
		sms     = counts{1, 4, 6, 8, 12, 24, 48, 96, 132}
		replays = 5
		tokens  int
	)
	cmd := &cobra.Command{
		Use:   "link",
		Short: "Measure the links between GPUs, and the cost of the smallest operations",
		Args:  noArgs,
	}
	describe(cmd, "bench_link")
	f := cmd.Flags()
	f.IntVar(&gpus, "gpus", 0, "use the first of the GPUs that this process sees (0: all)")
	f.Var(&bytes, "sizes", "bytes that a GPU sends to each receiver in one operation")
	f.Var(&sms, "sms", "numbers of SMs; those that the GPUs do not have are left out")
	f.IntVar(&tokens, "rows", 0, "move rows of so many tokens of each GPU, as a dispatch does that knows where they go")
	f.IntVar(&replays, "replays", replays, "how many replays of each graph are timed")
	f.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	f.StringVar(&lines, "lines", "", "write the lines of --json to this `file` as well")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if gpus < 0 || replays < 1 || replays > 1000 {
			return usageError{fmt.Errorf("--gpus %d, --replays %d: want at least 0 GPUs, and 1 "+
				"to 1000 replays", gpus, replays)}
		}
		var file *linesFile
		if lines != "" {
			var err error
			if file, err = openLines(lines); err != nil {
				return usageError{err}
			}
			defer file.Close()
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		c, err := links(ctx, gpus, link.Options{Bytes: bytes, SMs: sms, Replays: replays, Tokens: tokens})
		if err != nil {
			return err
		}
		if asJSON {
			err = linkLines(cmd.OutOrStdout(), c)
		} else {
			err = linkTables(cmd.OutOrStdout(), c)
		}
		if file != nil {
			err = errors.Join(err, linkLines(file, c), file.Close())
		}
		if err == nil && slices.ContainsFunc(c.Rows, func(r link.Row) bool { return !r.Verified }) {
			err = errors.New("some received data were wrong: see the rows that are not verified")
		}
		return err
	}
	return cmd
}

// links measures the links between the first GPUs of this process, and shows how far it is.
func links(ctx context.Context, gpus int, o link.Options) (c link.Ceiling, err error) {
	driver, err := cuda.Open()
	if err != nil {
		return c, err
	}
	contexts, closeAll, err := primaries(driver, gpus)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	progress := terminal.NewProgress(os.Stderr)
	defer progress.Close()
	var bar *terminal.Task
	o.Each = func(_ link.Row, _, total int) {
		if bar == nil {
			bar = progress.Start("link, "+measure.Count(len(contexts), "GPU"), total)
		}
		bar.Advance(1)
	}
	o.Cache = kernels(progress.Above(os.Stderr))
	c, err = link.Measure(ctx, contexts, o)
	if bar != nil {
		bar.Done("")
	}
	return c, err
}

// primaries are the contexts of the first n GPUs, or of all.
func primaries(driver *cuda.Driver, n int) (contexts []*cuda.Context, closeAll func() error, err error) {
	closeAll = func() error {
		var errs []error
		for _, c := range contexts {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}
	devices := driver.Devices()
	if n > len(devices) {
		return nil, nil, fmt.Errorf("%d GPUs: this process sees %d", n, len(devices))
	}
	if n > 0 {
		devices = devices[:n]
	}
	for _, d := range devices {
		c, err := d.Primary()
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("GPU %d: %w", d.Ordinal(), err), closeAll())
		}
		contexts = append(contexts, c)
	}
	return contexts, closeAll, nil
}

// where says on which machine something was measured.
type where struct {
	Device  string `json:"device"`
	Host    string `json:"host"`
	Version string `json:"version"`
}

func whereOf(c link.Ceiling) where {
	hostname, _ := os.Hostname()
	return where{c.Device, hostname, version()}
}

// linkLines prints every row, and then the ceiling, as a line of JSON.
func linkLines(to io.Writer, c link.Ceiling) error {
	e := json.NewEncoder(to)
	here := whereOf(c)
	for _, r := range c.Rows {
		if err := e.Encode(struct {
			link.Row
			where
		}{r, here}); err != nil {
			return err
		}
	}
	best, at8 := c.Best(), c.At(8)
	return e.Encode(struct {
		Op      string   `json:"op"`
		GPUs    int      `json:"gpus"`
		PerGPU  int      `json:"sms_per_gpu"`
		Local   bool     `json:"local"`
		GBps    float64  `json:"gbps"`
		Way     link.Way `json:"way"`
		SMs     int      `json:"sms"`
		GBpsAt8 float64  `json:"gbps_at_8"`
		WayAt8  link.Way `json:"way_at_8"`
		Empty   float64  `json:"empty_us"`
		Hop     float64  `json:"hop_us"`
		Barrier float64  `json:"barrier_us"`
		where
	}{
		"ceiling", c.GPUs, c.SMs, c.Local(), best.GBps, best.Way, best.SMs, at8.GBps, at8.Way,
		measure.Micros(c.Small(link.Empty)), measure.Micros(c.Small(link.Hop)), measure.Micros(c.Small(link.Barrier)), here,
	})
}

// linkTables prints the small operations, then a table for each size and pattern, then the ceiling.
func linkTables(to io.Writer, c link.Ceiling) error {
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	name := measure.Count(c.GPUs, "GPU")
	if c.Local() {
		name += ": local memory, no link"
	}
	measure.Comment(to, fmt.Sprintf("%s (%s, %d SMs each)\n"+
		"us: of one operation in a graph of many, of the slowest GPU, the median of replays. empty: a kernel that does "+
		"nothing. hop: a word from one GPU to another. barrier: all wait for all. dependent: kernels that may begin "+
		"while the one before ends.\n"+
		"GB/s: 10^9 bytes a second, by how many SMs a kernel fills; with 0 SMs copy engines.", name, c.Device, c.SMs))
	fmt.Fprint(w, "\nan operation in a graph\tblocks x threads\tus\t\n")
	for _, r := range c.Rows {
		if r.Bytes == 0 {
			fmt.Fprintf(w, "%s\t%d x %d\t%.2f\t%s\n", r.Way, r.SMs, r.Threads, r.Micros, verdict(r))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	moved := slices.DeleteFunc(slices.Clone(c.Rows), func(r link.Row) bool { return r.Bytes == 0 })
	for len(moved) > 0 {
		n := slices.IndexFunc(moved, func(r link.Row) bool {
			return r.Pattern != moved[0].Pattern ||
				r.Bytes != moved[0].Bytes
		})
		if n < 0 {
			n = len(moved)
		}
		if err := linkTable(to, moved[:n]); err != nil {
			return err
		}
		moved = moved[n:]
	}
	best, at8 := c.Best(), c.At(8)
	_, err := fmt.Fprintf(to, "\nceiling for kernels: %.0f GB/s (%s, %s); with 8 SMs or fewer %.0f GB/s (%s)\n",
		best.GBps, best.Way, measure.Count(best.SMs, "SM"), at8.GBps, at8.Way)
	return err
}

// linkTable prints the rows of one size and pattern: a line for each way, a column for each number
// of SMs.
func linkTable(to io.Writer, rows []link.Row) error {
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	rates := map[link.Pattern]string{
		link.AllToAll: "GB/s out of each GPU", link.Pair: "GB/s one way",
		link.AllToOne: "GB/s into the one GPU", link.Local: "GB/s in local memory",
		link.Routed: "GB/s to the other GPUs",
	}[rows[0].Pattern]
	fmt.Fprintf(w, "\n%s, %s: %s, by SMs\t", rows[0].Pattern, measure.Size(rows[0].Bytes), rates)
	var ways []link.Way
	var sms []int
	for _, r := range rows {
		if !slices.Contains(ways, r.Way) {
			ways = append(ways, r.Way)
		}
		if !slices.Contains(sms, r.SMs) {
			sms = append(sms, r.SMs)
		}
	}
	slices.Sort(sms)
	for _, n := range sms {
		fmt.Fprintf(w, "%d\t", n)
	}
	for _, way := range ways {
		fmt.Fprintf(w, "\n%s\t", way)
		for _, n := range sms {
			i := slices.IndexFunc(rows, func(r link.Row) bool { return r.Way == way && r.SMs == n })
			if i >= 0 {
				fmt.Fprintf(w, "%.0f%s", rows[i].GBps, verdict(rows[i]))
			}
			fmt.Fprint(w, "\t")
		}
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// verdict marks a row that was wrong.
func verdict(r link.Row) string {
	if r.Verified {
		return ""
	}
	return " WRONG"
}
