// Package terminal chooses the form of the output: a person at a terminal gets colours and progress
// bars, a file or a pipe gets plain lines.
package terminal

import (
	"os"

	"golang.org/x/term"
)

// Is reports whether f is a terminal.
func Is(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Color reports whether f should get colours: it is a terminal that is not dumb,
// and NO_COLOR (https://no-color.org) is not set.
func Color(f *os.File) bool { return color(Is(f), os.Getenv) }

func color(terminal bool, getenv func(string) string) bool {
	return terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}
