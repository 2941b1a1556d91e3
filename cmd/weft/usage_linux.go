package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError is a mistake on the command line. What is printed behind it names the help.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// mistake says in one sentence what is wrong with a flag, and what it takes.
func mistake(cmd *cobra.Command, err error) error {
	var (
		value   *pflag.InvalidValueError
		unknown *pflag.NotExistError
		lacks   *pflag.ValueRequiredError
	)
	switch {
	case errors.As(err, &value):
		err = badValue(value.GetFlag(), value.GetValue(), errors.Unwrap(value))
	case errors.As(err, &unknown):
		err = noFlag(cmd, unknown)
	case errors.As(err, &lacks):
		err = fmt.Errorf("%s has no value: want %s", spelling(lacks.GetFlag()), kindOf(lacks.GetFlag(), "a value"))
	}
	return usageError{err}
}

// kindOf says what values a flag of one of pflag's own types takes. Other types say it themselves.
func kindOf(f *pflag.Flag, other string) string {
	switch f.Value.Type() {
	case "int":
		return "a whole number"
	case "uint64":
		return "a whole number from 0 on"
	case "duration":
		return "a time with its unit, as 500ms, 2s or 1m"
	case "bool":
		return "true or false"
	}
	return other
}

func spelling(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "-" + f.Shorthand + ", --" + f.Name
	}
	return "--" + f.Name
}

func badValue(f *pflag.Flag, value string, cause error) error {
	if f.Shorthand == "n" && strings.HasPrefix(value, "p") {
		return errors.New("-np is mpirun's spelling: want -n N, or --ranks N")
	}
	if want := kindOf(f, ""); want != "" {
		cause = fmt.Errorf("want %s", want)
	}
	return fmt.Errorf("%s %q: %w", spelling(f), value, cause)
}

// noFlag names the flag that may have been meant: one that is spelt the same but for dashes and capitals, or
// the only one that begins so.
func noFlag(cmd *cobra.Command, e *pflag.NotExistError) error {
	given, name := "--"+e.GetSpecifiedName(), e.GetSpecifiedName()
	if short := e.GetSpecifiedShortnames(); short != "" {
		given, name = "-"+short, short
	}
	name, _, _ = strings.Cut(name, "=")
	plain := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "-", "")) }
	var like []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Hidden:
		case plain(f.Name) == plain(name):
			like = []string{f.Name}
		case len(name) > 1 && strings.HasPrefix(f.Name, name):
			like = append(like, f.Name)
		}
	})
	if len(like) == 1 {
		return fmt.Errorf("there is no flag %s; did you mean --%s?", given, like[0])
	}
	return fmt.Errorf("there is no flag %s", given)
}
