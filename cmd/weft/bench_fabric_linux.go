package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/fabrics"
	"github.com/weftgo/weft/cmd/weft/internal/launch"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

func newBenchFabric() *cobra.Command {
	var (
		o      = fabrics.Options{Bursts: 30}
		bytes  = sizes{4 << 10, 64 << 10, 1 << 20}
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "fabric",
		Short: "Measure a provider of libfabric between two ranks",
		Args:  noArgs,
	}
	describe(cmd, "bench_fabric")
	f := cmd.Flags()
	f.StringVar(&o.Provider, "provider", "",
		"one of libfabric's, as tcp or 'tcp;ofi_rxm' (default: the first that is there)")
	f.StringVar(&o.Source, "source", "", "the `address` of the interface to use (default: that by which the ranks meet)")
	f.Var(&bytes, "sizes", "bytes of the writes of streams")
	f.IntVar(&o.Bursts, "bursts", o.Bursts, "how many bursts are timed of each row, of which the best counts")
	f.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := timing.Within("--bursts", o.Bursts, 1, 100_000); err != nil {
			return usageError{err}
		}
		for _, n := range bytes {
			if err := timing.Within("--sizes", int(n), 1, 64<<20); err != nil {
				return usageError{err}
			}
			o.Sizes = append(o.Sizes, int(n))
		}
		if os.Getenv("WEFT_RANK") != "" {
			return measureFabric(cmd, o, asJSON)
		}
		gone, supervisor := launch.Lifeline()
		if !supervisor {
			return ended(launch.Guard())
		}
		job := launch.Job{
			Program: "/proc/self/exe", Args: os.Args[1:], Size: 2, Bind: launch.BindOff,
			Grace: 2 * time.Second, Timeout: taskTimeout,
			Sink: launch.Text(os.Stdout, os.Stderr, launch.TextOptions{Size: 2, NoPrefix: true}),
		}
		res, err := job.Run(gone)
		return ended(res.Code, err)
	}
	return cmd
}

// measureFabric is what each of the two ranks does. Rank 0 prints.
func measureFabric(cmd *cobra.Command, o fabrics.Options, asJSON bool) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	environment, err := bootstrap.Detect(os.Getenv)
	if err != nil {
		return err
	}
	dialing, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	meet, err := environment.Dial(dialing)
	if err != nil {
		return err
	}
	defer meet.Close()
	if o.Address, _, err = net.SplitHostPort(environment.Address); err != nil {
		return fmt.Errorf("rank 0's address: %w", err)
	}
	hostname, _ := os.Hostname()
	to := json.NewEncoder(cmd.OutOrStdout())
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	rows := 0
	wrong := false
	if err := fabrics.Measure(ctx, meet, o, func(r fabrics.Row) error {
		r.Host, r.Version = hostname, version()
		wrong = wrong || !r.Verified
		if asJSON {
			return to.Encode(r)
		}
		if rows++; rows == 1 {
			measure.Comment(table, fmt.Sprintf("%s of %s, two ranks. Each row is the best of %s, by its median: us of one\n"+
				"write, or of half a round trip. floor: a bare TCP connection between the same processes.",
				r.Provider, r.Library, measure.Count(r.Bursts, "burst")))
			fmt.Fprint(table, "what\tbytes\tbatch\tp50 us\tmin us\tMops/s\tGB/s\tfloor us\tratio\t\n")
		}
		floor, ratio := "-", "-"
		if r.Floor > 0 {
			floor, ratio = fmt.Sprintf("%.2f", r.Floor), fmt.Sprintf("%.2f", r.Ratio)
		}
		verified := "verified"
		if !r.Verified {
			verified = "WRONG"
		}
		_, err := fmt.Fprintf(table, "%s\t%d\t%d\t%.2f\t%.2f\t%.3f\t%.2f\t%s\t%s\t%s\n", r.What, r.Bytes, r.Batch, r.P50,
			r.Min, r.Rate, r.GBps, floor, ratio, verified)
		return err
	}); err != nil {
		return err
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if wrong {
		return errors.New("some received data were wrong: see the rows that are not verified")
	}
	return nil
}
