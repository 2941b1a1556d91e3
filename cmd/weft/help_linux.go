package main

import (
	"embed"
	"strings"

	"github.com/spf13/cobra"
)

//go:embed help
var helpFiles embed.FS

// describe gives the command its long text, and behind it its examples, from a file of this name.
func describe(cmd *cobra.Command, name string) {
	text, err := helpFiles.ReadFile("help/" + name + ".txt")
	if err != nil {
		panic(err)
	}
	cmd.Long, cmd.Example, _ = strings.Cut(string(text), "\n\nExamples:\n")
	cmd.Example = strings.TrimRight(cmd.Example, "\n")
}
