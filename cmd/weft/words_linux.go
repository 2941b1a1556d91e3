package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// oneOf adds a flag that holds one of a few words. The same list serves the parser, the
// help and the shell's completion.
func oneOf[S ~string](cmd *cobra.Command, value *S, name string, list []S, usage string) {
	var words []string
	for _, s := range list {
		if !slices.Contains(words, string(s)) {
			words = append(words, string(s))
		}
	}
	cmd.Flags().Var(&word[S]{value, words}, name, usage+": "+enumerate(words))
	// An error would mean that the flag, which was added just now, does not exist, or exists twice.
	if err := cmd.RegisterFlagCompletionFunc(name,
		cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

// hide keeps a second spelling of a flag out of the help. Scripts that have it go on.
func hide(cmd *cobra.Command, name string) {
	if err := cmd.Flags().MarkHidden(name); err != nil {
		panic(err) // there is no such flag
	}
}

// word is the value of such a flag.
type word[S ~string] struct {
	value *S
	words []string
}

func (w *word[S]) String() string { return string(*w.value) }

func (w *word[S]) Set(s string) error {
	if !slices.Contains(w.words, s) {
		return fmt.Errorf("want %s", enumerate(w.words))
	}
	*w.value = S(s)
	return nil
}

func (w *word[S]) Type() string { return "word" }

// enumerate writes "a, b or c".
func enumerate(words []string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
	}
	return strings.Join(words, "")
}
