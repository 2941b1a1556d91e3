package main

import (
	"time"

	"github.com/spf13/cobra"

	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
)

// onGPUsFlags are the flags of benchmarks that have one shape, on GPUs alone.
type onGPUsFlags struct {
	gpus, ranks int
	ep          epFlags // only the shape is used
	deadline    time.Duration
	json        bool
	lines       string
}

func newOnGPUsFlags(tokens int, layout string) onGPUsFlags {
	o := onGPUsFlags{ep: epFlags{shape: defaultEP()}, deadline: 10 * time.Second}
	e := &o.ep.shape
	e.Tokens, e.Experts, e.Layout = tokens, 256, layout
	return o
}

func (o *onGPUsFlags) add(cmd *cobra.Command) {
	f, e := cmd.Flags(), &o.ep.shape
	f.IntVar(&o.gpus, "gpus", 0, "use the first of the GPUs that this process sees (0: all)")
	f.IntVar(&o.ranks, "ranks", 0, "how many ranks (0: one for each GPU)")
	f.IntVar(&e.Tokens, "tokens", e.Tokens, "tokens per rank")
	o.ep.rows(cmd)
	oneOf(cmd, &e.DType, "dtype", benchep.Payloads(), "element type (8-bit types are quantised from bf16)")
	oneOf(cmd, &e.Layout, "layout", benchep.Layouts(), "order in which a rank receives rows")
	f.DurationVar(&o.deadline, "deadline", o.deadline, "the deadline of each wait on a GPU")
	f.BoolVar(&o.json, "json", false, "print one JSON object a line")
	f.StringVar(&o.lines, "lines", "", "write the lines of --json to this `file` as well")
}
