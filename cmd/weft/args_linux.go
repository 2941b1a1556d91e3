package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// noArgs refuses arguments, and says which command may have been meant.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasAvailableSubCommands() {
		return fmt.Errorf("it takes no arguments, so %q means nothing", args[0])
	}
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return fmt.Errorf("there is no command %q; did you mean %s?", args[0], enumerate(like))
	}
	return fmt.Errorf("there is no command %q", args[0])
}

// topic refuses help about a word that is no command.
func topic(cmd *cobra.Command, args []string) error {
	if _, rest, err := cmd.Root().Find(args); err != nil || len(rest) > 0 {
		return fmt.Errorf("there is no command %q", strings.Join(args, " "))
	}
	return nil
}

// strict makes every complaint of a command about its arguments a mistake on the command line, here
// and in all commands below.
func strict(cmd *cobra.Command) {
	if validate := cmd.Args; validate != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := validate(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		strict(c)
	}
}
