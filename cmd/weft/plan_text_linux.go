package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/spec"
)

func newPlanFormat() *cobra.Command {
	var out string
	var compact bool
	cmd := &cobra.Command{
		Use:   "fmt FILE",
		Short: "Write a plan in the one form that all have",
		Args:  onePlan,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := loadPlan(args[0])
			if err != nil {
				return err
			}
			text := f.Text()
			if compact {
				text = f.Compact()
			}
			return written(cmd, out, func(w io.Writer) error {
				_, err := w.Write(append(text, '\n'))
				return err
			})
		},
	}
	describe(cmd, "plan_fmt")
	cmd.Flags().StringVar(&out, "out", "", "the `file` to write (default: the standard output)")
	cmd.Flags().BoolVar(&compact, "compact", false, "write one line")
	return cmd
}

func newPlanDiff() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff FILE FILE",
		Short: "Say how two plans differ, operation by operation",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError{errors.New("want the names of two files")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := loadPlan(args[0])
			if err != nil {
				return err
			}
			b, err := loadPlan(args[1])
			if err != nil {
				return err
			}
			if string(a.Text()) == string(b.Text()) {
				return nil
			}
			lines := append(differ("plan", heading(a), heading(b)), differing(a, b)...)
			lines = append(lines, contents(args, a, b))
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(lines, "\n")); err != nil {
				return err
			}
			return exitError{status: 1}
		},
	}
	describe(cmd, "plan_diff")
	return cmd
}

// contents says whether two plans leave the same.
func contents(names []string, a, b *plan.File) string {
	if what := plan.Same(a, b); what != "" {
		return "they leave other contents: " + what
	}
	for i, f := range []*plan.File{a, b} {
		if plan.Verify(f).Errors() > 0 {
			return fmt.Sprintf("they may leave other contents: weft plan check %s has errors", names[i])
		}
	}
	return "both leave the same in the inputs and outputs of all ranks"
}

// heading is what a plan has beside its ranks, a line each.
func heading(f *plan.File) []string {
	return []string{
		"name " + f.Name, "collective " + f.Collective, "protocol " + string(f.Protocol),
		fmt.Sprintf("in place %t", f.InPlace), fmt.Sprintf("shares scratch %t", f.ReuseResources),
		fmt.Sprintf("threads %d", f.Threads), fmt.Sprintf("two halves of scratch %t", f.DoubleScratch),
		fmt.Sprintf("alignment %d", f.Alignment), fmt.Sprintf("messages of %d to %d bytes", f.MinBytes, f.MaxBytes),
		fmt.Sprintf("%d ranks", len(f.Ranks)),
	}
}

// differing compares the blocks of two plans.
func differing(a, b *plan.File) (lines []string) {
	for r := range max(len(a.Ranks), len(b.Ranks)) {
		x, y := &spec.Rank{}, &spec.Rank{}
		if r < len(a.Ranks) {
			x = &a.Ranks[r]
		}
		if r < len(b.Ranks) {
			y = &b.Ranks[r]
		}
		lines = append(lines, differ(fmt.Sprintf("rank %d", r), holdings(x), holdings(y))...)
		for i := range max(len(x.Blocks), len(y.Blocks)) {
			lines = append(lines, differ(fmt.Sprintf("rank %d, block %d", r, i), operations(x, i), operations(y, i))...)
		}
	}
	return lines
}

// holdings is what a rank has beside its blocks.
func holdings(r *spec.Rank) (lines []string) {
	lines = append(lines, fmt.Sprintf("chunks: input %d, output %d, scratch %d", r.Input, r.Output, r.Scratch))
	for _, c := range r.Channels {
		lines = append(lines, fmt.Sprintf("%v channels to %v", c.Type, c.Peers))
	}
	for _, s := range r.Switches {
		lines = append(lines, fmt.Sprintf("switch of the %v of %v", s.Buffer, s.Ranks))
	}
	return append(lines, fmt.Sprintf("semaphores %v", r.Semaphores))
}

// operations is those of a block, a line each.
func operations(r *spec.Rank, i int) (lines []string) {
	if i >= len(r.Blocks) {
		return nil
	}
	block := &r.Blocks[i]
	for k := range block.Ops {
		op := &block.Ops[k]
		lines = append(lines, operation(r, block, op))
		for n := range op.Ops {
			lines = append(lines, "  "+operation(r, block, &op.Ops[n]))
		}
	}
	return lines
}

// operation is one on a line.
func operation(r *spec.Rank, block *spec.Block, op *spec.Op) string {
	text := []string{op.Kind.String()}
	add := func(format string, args ...any) { text = append(text, fmt.Sprintf(format, args...)) }
	place := func(p spec.Place) string {
		buffer := p.Buffer.String()
		switch p.At {
		case spec.RemoteBuffer:
			remote := r.Remotes[block.Remote(op.Via, p.ID)]
			buffer = fmt.Sprintf("%v of %d", remote.Buffer, remote.Rank)
		case spec.Members:
			s := r.Switches[block.Channel(spec.Switched, p.ID)]
			buffer = fmt.Sprintf("%v of %v", s.Buffer, s.Ranks)
		}
		return fmt.Sprintf("%s[%d:%d]", buffer, p.Index, p.Index+p.Size)
	}
	list := func(all []spec.Place) string {
		var names []string
		for _, p := range all {
			names = append(names, place(p))
		}
		return strings.Join(names, ", ")
	}
	if len(op.Src)+len(op.Dst) > 0 {
		add("%s -> %s", list(op.Src), list(op.Dst))
	}
	if op.Via != spec.NoChannel && len(op.Channels) > 0 {
		ids := make([]int, len(op.Channels))
		for i, id := range op.Channels {
			ids[i] = block.Channel(op.Via, id)
		}
		add("by %v %v", op.Via, ids)
	}
	if op.Reduce != spec.NoReduction {
		add("%v", op.Reduce)
	}
	if op.Group.Size > 0 {
		add("part %d of %d", op.Group.ID, op.Group.Size)
	}
	switch op.Kind {
	case spec.Barrier:
		add("%d of %d blocks", op.Barrier, op.Blocks)
	case spec.SemAcquire, spec.SemRelease:
		add("%v", op.Semaphores)
	case spec.Pipeline:
		add("%d chunks in windows of %d bytes", op.Chunks, op.Unit)
	}
	return strings.Join(text, " ")
}

// differ is how lists of lines differ, below a heading: what only the first has after "-", what only the second has
// after "+", with their numbers. It is the shortest such list.
func differ(of string, a, b []string) (lines []string) {
	if slices.Equal(a, b) {
		return nil
	}
	common := make([][]int, len(a)+1) // lines that the rests have in common
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for k := len(b) - 1; k >= 0; k-- {
			if common[i][k] = max(common[i+1][k], common[i][k+1]); a[i] == b[k] {
				common[i][k] = common[i+1][k+1] + 1
			}
		}
	}
	lines = append(lines, of+":")
	for i, k := 0, 0; i < len(a) || k < len(b); {
		switch {
		case i < len(a) && k < len(b) && a[i] == b[k]:
			i++
			k++
		case k == len(b) || i < len(a) && common[i+1][k] >= common[i][k+1]:
			lines = append(lines, fmt.Sprintf("  - %d %s", i, a[i]))
			i++
		default:
			lines = append(lines, fmt.Sprintf("  + %d %s", k, b[k]))
			k++
		}
	}
	return lines
}
