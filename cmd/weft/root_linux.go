package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft/cmd/weft/internal/terminal"
)

// exitError ends the program with a status and nothing more to say.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// execute runs the command line and returns the exit status: 2 for a command line
// that makes no sense.
func execute(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.Execute()
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	}
	prefix := "weft: "
	if terminal.Color(os.Stderr) {
		prefix = "\x1b[31mweft: \x1b[0m"
	}
	fmt.Fprintln(os.Stderr, prefix+err.Error())
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

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
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w\nsee %s --help", err, cmd.CommandPath())}
	})
	root.AddCommand(newRun(), newDoctor(), newBench(), newTune(), newCompile(), newCompletion())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = topic
	}
	strict(root)
	return root
}
