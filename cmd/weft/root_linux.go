package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/terminal"
)

// exitError ends the program with a status, and without an error with nothing more to say.
type exitError struct {
	status int
	error
}

func (e exitError) Error() string {
	if e.error == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.error.Error()
}

func (e exitError) Unwrap() error { return e.error }

// execute runs the command line and returns the exit status: 2 for a command line
// that makes no sense. What it prints of an error names the command, so errors do not.
func execute(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	status := 1
	if exit, ok := errors.AsType[exitError](err); ok {
		if status = exit.status; exit.error == nil {
			return status
		}
	}
	prefix := "weft: "
	if terminal.Color(os.Stderr) {
		prefix = "\x1b[31mweft: \x1b[0m"
	}
	if cmd.HasParent() {
		prefix += strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ") + ": "
	}
	text := err.Error()
	if _, ok := errors.AsType[usageError](err); ok {
		text, status = text+"; see "+cmd.CommandPath()+" --help", 2
	}
	fmt.Fprintln(os.Stderr, prefix+text)
	return status
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "weft",
		Short:         "Communication for machine learning: start ranks, examine machines, measure",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	describe(root, "root")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages ", "FlagUsagesWrapped 100 "))
	root.SetFlagErrorFunc(mistake)
	root.AddCommand(newRun(), newDoctor(), newBench(), newTune(), newCompile(), newPlan(), newTrace(), newCompletion())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = topic
	}
	strict(root)
	return root
}
