package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cmd/weft/internal/launch"
	"github.com/weftgo/weft/cmd/weft/internal/terminal"
)

// mostRanks is how many ranks start without being asked for twice: Join takes no more, and a slip of the
// keyboard is no reason to fork until the machine refuses.
const mostRanks = weft.MaxRanks

func newRun() *cobra.Command {
	var (
		job      = launch.Job{Bind: launch.BindAuto}
		asJSON   bool
		noPrefix bool
		yes      bool
	)
	cmd := &cobra.Command{
		Use:   "run -n N [flags] [--] PROGRAM [ARGS...]",
		Short: "Start ranks of a program on this host",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no program given")
			}
			if job.Size == 0 {
				return errors.New("no number of ranks: give one with -n N, 1 or more")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			job.Program, job.Args = args[0], args[1:]
			if cmd.Flags().Changed("hosts-by-namespace") && job.Hosts == 0 {
				return usageError{errors.New("--hosts-by-namespace 0: want 1 or more; " +
					"without the flag ranks run on this host as it is")}
			}
			if err := job.Validate(); err != nil {
				return usageError{err}
			}
			if job.Size > bootstrap.MaxSize {
				return usageError{fmt.Errorf("%d ranks: a job has at most %d", job.Size, bootstrap.MaxSize)}
			}
			if job.Size > mostRanks && !yes {
				return usageError{fmt.Errorf("%d ranks: Join takes %d at most; for a program that does not join, add --yes",
					job.Size, mostRanks)}
			}
			gone, supervisor := launch.Lifeline()
			if !supervisor && job.Hosts > 0 {
				return ended(launch.GuardHosts())
			}
			if !supervisor {
				return ended(launch.Guard())
			}
			if asJSON {
				job.Sink = launch.JSON(os.Stdout)
			} else {
				job.Sink = launch.Text(os.Stdout, os.Stderr, launch.TextOptions{
					Size: job.Size, NoPrefix: noPrefix, Color: terminal.Color(os.Stdout),
				})
			}
			if !terminal.Is(os.Stdin) {
				job.Stdin = os.Stdin
			}
			res, err := job.Run(gone)
			return ended(res.Code, err)
		},
	}
	describe(cmd, "run")
	f := cmd.Flags()
	f.SetInterspersed(false) // arguments after the program are the program's
	f.IntVarP(&job.Size, "ranks", "n", 0, "how many ranks")
	f.IntVar(&job.Hosts, "hosts-by-namespace", 0, "divide the ranks among so many network namespaces, as if among hosts")
	f.StringArrayVar(&job.Env, "env", nil, "set `KEY=VALUE` for all ranks (repeatable)")
	oneOf(cmd, &job.Bind, "bind", launch.Binds(), "whether to pin ranks to CPUs; auto pins if there are enough")
	f.DurationVar(&job.Grace, "grace", 5*time.Second, "time for the others to end when a rank has failed")
	f.DurationVar(&job.Timeout, "timeout", 0, "end the job after this time (0: never)")
	f.BoolVar(&noPrefix, "no-prefix", false, "print lines without their rank")
	f.BoolVar(&yes, "yes", false, fmt.Sprintf("start more than %d ranks, of a program that does not join", mostRanks))
	f.BoolVar(&asJSON, "json", false, "print events as JSON lines")
	return cmd
}

// ended turns a job's exit status into this program's.
func ended(code int, err error) error {
	if err != nil {
		return exitError{max(code, 1), err}
	}
	if code != 0 {
		return exitError{status: code}
	}
	return nil
}
