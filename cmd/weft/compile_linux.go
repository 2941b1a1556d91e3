package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/link"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/cuda/kernel"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/matmul"
	"github.com/weftgo/weft/plan/executor"
)

func newCompile() *cobra.Command {
	var (
		archs = architectures{list: []string{"sm_90a"}}
		out   string
		of    groups
	)
	cmd := &cobra.Command{
		Use:   "compile --out DIR [--arch ARCHITECTURES] [--ranks NUMBERS [--dtypes TYPES]]",
		Short: "Compile all GPU kernels into a directory, for machines without a compiler",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := noArgs(cmd, args); err != nil {
				return err
			}
			if out == "" {
				return errors.New("no directory: give one with --out DIR")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			var specs []kernel.Spec
			for _, arch := range archs.list {
				collectives, err := of.kernels(arch)
				if err != nil {
					return usageError{err}
				}
				specs = append(append(specs, catalogue(arch)...), collectives...)
			}
			return compile(ctx, cmd.OutOrStdout(), kernels(cmd.ErrOrStderr()), out, specs)
		},
	}
	describe(cmd, "compile")
	cmd.Flags().Var(&archs, "arch", "which GPUs to compile for")
	cmd.Flags().StringVar(&out, "out", "", "the `directory` to fill; it is made if it does not exist")
	cmd.Flags().Var(&of.ranks, "ranks",
		"also for collectives and plans among so many ranks, and for exchanges among more than 32, a list as 2,4,8")
	cmd.Flags().StringSliceVar(&of.dtypes, "dtypes", nil,
		"the types that those collectives and plans reduce, a list as bf16,fp32 (default: all)")
	return cmd
}

// kernels is the user's cache; it writes the entries that it refuses, which explains why a kernel
// is compiled again.
func kernels(to io.Writer) *kernel.Cache { return kernel.New(kernel.Options{Logger: warnings(to)}) }

// warnings is a logger of warnings.
func warnings(to io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// catalogue is all that this program, and programs with this library, run on GPUs of an
// architecture.
func catalogue(arch string) []kernel.Spec {
	return append(slices.Concat(ep.Kernels(arch), link.Kernels(arch), timing.Kernels(arch)), matmul.Kernel(arch))
}

// exchanges are the kernels of exchanges of so many ranks that the catalogue, which is for few, does not have.
func exchanges(arch string, ranks int) (specs []kernel.Spec) {
	for _, s := range ep.Kernels(arch) {
		if of := enginegpu.ForDomain(ranks, enginegpu.Source{Spec: s})[0]; of.Key() != s.Key() {
			specs = append(specs, of.Spec)
		}
	}
	return specs
}

// groups are groups' numbers of ranks, and the types that they reduce.
type groups struct {
	ranks  counts
	dtypes []string
}

// kernels are those of the groups.
func (g *groups) kernels(arch string) (specs []kernel.Spec, err error) {
	types := make([]weft.DType, len(g.dtypes))
	for i, name := range g.dtypes {
		if types[i], err = weft.ParseDType(name); err != nil {
			return nil, fmt.Errorf("--dtypes: %w", err)
		}
	}
	for _, n := range g.ranks {
		if n < 2 {
			return nil, fmt.Errorf("--ranks: %d; want at least 2", n)
		}
		specs = append(specs, collective.Kernels(arch, n, types...)...)
		specs = append(specs, exchanges(arch, n)...)
	}
	if len(g.ranks) > 0 {
		specs = append(specs, executor.Kernels(arch, types...)...)
	}
	return specs, nil
}

// compile fills a directory and lists its content. Kernels that fail do not keep the others out.
func compile(ctx context.Context, to io.Writer, cache *kernel.Cache, dir string, specs []kernel.Spec) error {
	there := map[kernel.Key]bool{}
	before, _ := kernel.List(dir) // counts as missing; Fill reports the error if it matters
	for _, e := range before {
		there[e.Key] = e.Err == nil
	}
	failed := cache.Fill(ctx, dir, specs)
	if errors.Is(failed, kernel.ErrNoCompiler) {
		failed = fmt.Errorf("%w here: python3 -m pip install nvidia-cuda-nvrtc, or name NVRTC in WEFT_NVRTC",
			kernel.ErrNoCompiler)
	}
	after, err := kernel.List(dir)
	if err != nil && failed == nil {
		failed = err
	}
	entries := map[kernel.Key]kernel.Entry{}
	for _, e := range after {
		if e.Err == nil {
			entries[e.Key] = e
		}
	}
	if len(entries) == 0 && failed != nil {
		return failed
	}
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "kernel\tarchitecture\tsize\tcompiler\t")
	total := 0
	for _, s := range specs {
		e, ok := entries[s.Key()]
		switch {
		case !ok:
			fmt.Fprintf(w, "%s\t%s\t\t\tFAILED\n", s.Name, s.Arch)
			continue
		case there[s.Key()]:
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\twas there\n", s.Name, s.Arch, measure.Size(int64(e.Size)), e.Compiler)
		default:
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\tadded\n", s.Name, s.Arch, measure.Size(int64(e.Size)), e.Compiler)
		}
		total += e.Size
	}
	fmt.Fprintf(w, "%s\t\t%s\t\t%s\n", measure.Count(len(specs), "kernel"), measure.Size(int64(total)), dir)
	if err := w.Flush(); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	return nil
}

// architectures is a flag that holds comma-separated lists of them, and may be given several times.
type architectures struct {
	list  []string
	given bool // without the flag the list is complete already
}

// oldest is the first compute capability that the kernels are written for.
const oldest = 80

var architecture = regexp.MustCompile(`^sm_[1-9][0-9]+[a-z]?$`)

func (a *architectures) String() string { return strings.Join(a.list, ",") }

func (a *architectures) Set(s string) error {
	list := a.list
	if !a.given {
		list = nil
	}
	for word := range strings.SplitSeq(s, ",") {
		word = strings.TrimSpace(word)
		if !architecture.MatchString(word) {
			return errors.New("want architectures, as sm_90a,sm_100a")
		}
		switch n, _ := strconv.Atoi(strings.TrimRight(word[3:], "abcdefghijklmnopqrstuvwxyz")); {
		case n < oldest:
			return fmt.Errorf("want sm_%d or newer", oldest)
		case n >= 90 && !strings.HasSuffix(word, "a"):
			return fmt.Errorf("from sm_90 on kernels are compiled for one architecture only; want sm_%da", n)
		}
		if !slices.Contains(list, word) {
			list = append(list, word)
		}
	}
	a.list, a.given = list, true
	return nil
}

func (a *architectures) Type() string { return "list" }
