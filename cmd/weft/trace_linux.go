package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/terminal"
	"github.com/weftgo/weft/trace"
)

func newTrace() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Record what operations of a job do, draw it, and say who was waited for",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	describe(cmd, "trace_root")
	cmd.AddCommand(newTraceRun(), newTraceMerge(), newTraceSummary())
	return cmd
}

// readTrace reads directories and files, and aligns what they have. It reports which files of directories cannot be
// read.
func readTrace(report io.Writer, names []string) (*trace.Trace, error) {
	var files []*trace.File
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			f, err := trace.Read(name)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
			continue
		}
		more, err := trace.ReadDir(name)
		switch {
		case len(more) == 0:
			return nil, err
		case err != nil:
			fmt.Fprintf(report, "weft: left out: %v\n", err)
		}
		files = append(files, more...)
	}
	slices.SortStableFunc(files, func(a, b *trace.File) int { return a.Rank - b.Rank })
	return trace.Align(files)
}

// wantTraces wants directories or files.
func wantTraces(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError{fmt.Errorf("want a directory with files of ranks, or such files (*%s)", trace.Extension)}
	}
	return nil
}

// draw writes a trace as Chrome's JSON to a file; "-" is out.
func draw(t *trace.Trace, name string, out io.Writer, o trace.ChromeOptions) error {
	if name == "-" {
		return t.Chrome(out, o)
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(t.Chrome(f, o), f.Close())
}

func newTraceMerge() *cobra.Command {
	var out string
	var o trace.ChromeOptions
	cmd := &cobra.Command{
		Use:   "merge [flags] DIR|FILE...",
		Short: "Make one drawing of the files of all ranks",
		Args:  wantTraces,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := readTrace(cmd.ErrOrStderr(), args)
			if err != nil {
				return err
			}
			return draw(t, out, cmd.OutOrStdout(), o)
		},
	}
	describe(cmd, "trace_merge")
	cmd.Flags().StringVarP(&out, "out", "o", "-", "the `FILE` to write; -: standard output")
	cmd.Flags().BoolVar(&o.Blocks, "blocks", false, "give each block of a kernel a row of its own")
	return cmd
}

func newTraceSummary() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "summary [flags] DIR|FILE...",
		Short: "Say what operations took, which rank was last, and why",
		Args:  wantTraces,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := readTrace(cmd.ErrOrStderr(), args)
			if err != nil {
				return err
			}
			s := t.Summarise()
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(s)
			}
			return s.Text(cmd.OutOrStdout())
		},
	}
	describe(cmd, "trace_summary")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func newTraceRun() *cobra.Command {
	var out, dir string
	cmd := &cobra.Command{
		Use:   "run [flags] [--] PROGRAM [ARGS...]",
		Short: "Run a program with traces on, and draw them",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("no program given")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return traceRun(cmd.ErrOrStderr(), out, dir, args) },
	}
	describe(cmd, "trace_run")
	f := cmd.Flags()
	f.SetInterspersed(false) // arguments after the program are the program's
	f.StringVarP(&out, "out", "o", "weft-trace.json", "the `FILE` to write")
	f.StringVar(&dir, "dir", "", "keep the files of the ranks in this `DIR`; without it they are removed")
	return cmd
}

// traceRun runs a program whose ranks record what they do, then draws it and says what is in it.
func traceRun(report io.Writer, out, dir string, args []string) (err error) {
	if err := writable(out); err != nil {
		return err // before the program has run for nothing
	}
	temporary := dir == ""
	if temporary {
		if dir, err = os.MkdirTemp("", "weft-trace-"); err != nil {
			return err
		}
		defer func() {
			if temporary {
				err = errors.Join(err, os.RemoveAll(dir))
			}
		}()
	} else if old, _ := filepath.Glob(filepath.Join(dir, "*"+trace.Extension)); len(old) > 0 {
		return usageError{fmt.Errorf("--dir %s has %d files of another run: name a new directory", dir, len(old))}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	status, err := follow(dir, args)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // a closed pipe is an error like others: the temporary directory goes
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(interrupt)
	go func() {
		s := <-interrupt
		fmt.Fprintf(report, "weft: trace run: interrupted before %s was whole; the files of the ranks are in %s, for weft "+
			"trace merge\n", out, dir)
		if n, ok := s.(syscall.Signal); ok {
			os.Exit(128 + int(n))
		}
	}()
	var t *trace.Trace
	files, _ := filepath.Glob(filepath.Join(dir, "*"+trace.Extension))
	if len(files) == 0 {
		err = fmt.Errorf("%s recorded nothing: no rank of it joined on this host", args[0])
	} else if t, err = readTrace(report, []string{dir}); err == nil {
		err = draw(t, out, os.Stdout, trace.ChromeOptions{})
	}
	if err != nil && temporary && len(files) > 0 {
		temporary = false
		err = fmt.Errorf("%w; the files of the ranks are in %s, for weft trace merge", err, dir)
	}
	if err == nil {
		fmt.Fprintf(report, "weft: trace run: %s is for ui.perfetto.dev\n", out)
		err = t.Summarise().Text(report)
	}
	if status != 0 {
		if err != nil {
			fmt.Fprintf(report, "weft: trace run: %v\n", err)
		}
		return exitError{status: status}
	}
	return err
}

// writable reports why a file cannot be written, and leaves it as it is.
func writable(name string) error {
	if name == "-" {
		return nil
	}
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil // a pipe is opened once
	}
	isNew := errors.Is(err, os.ErrNotExist)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	err = f.Close()
	if isNew {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// follow runs a program with traces in a directory, and passes signals on. It returns the program's exit status.
func follow(dir string, args []string) (status int, err error) {
	runtime.LockOSThread() // the program gets its signal when the thread that started it ends
	defer runtime.UnlockOSThread()
	c := exec.CommandContext(context.Background(), args[0], args[1:]...)
	c.Env = append(os.Environ(), weft.TraceVariable+"="+dir)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := c.Start(); err != nil {
		status := 126
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			status = 127
		}
		return 0, exitError{status, err}
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case s := <-signals:
				if keys := s == syscall.SIGINT || s == syscall.SIGQUIT; keys && terminal.Foreground() {
					continue // the program has had it from the terminal
				}
				_ = c.Process.Signal(s)
			case <-ended:
				return
			}
		}
	}()
	err = c.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			return 128 + int(w.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}
