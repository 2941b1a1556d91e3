package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/doctor"
	"github.com/weftgo/weft/cmd/weft/internal/report"
)

// tempReport makes the file that becomes the report: a reader never sees half of one.
func tempReport(file string) (*os.File, error) {
	return os.CreateTemp(filepath.Dir(file), ".weft-report-*")
}

// checkReport says why a report cannot be written, if so. It is asked before anything
// is measured.
func checkReport(file string) error {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("--report %s: this exists and is no ordinary file", file)
	}
	tmp, err := tempReport(file)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err // the temporary file's name means nothing to the user
		}
		return fmt.Errorf("--report %s: nothing can be written there: %w", file, err)
	}
	return errors.Join(tmp.Close(), os.Remove(tmp.Name()))
}

// writeReport writes the results below a description of the machine.
func writeReport(file, host string, found report.Report) error {
	m := doctor.Collect(doctor.System(version()))
	facts := []report.Fact{{Name: "host", Value: host}}
	for _, f := range doctor.Findings(m) {
		switch f.Name {
		case "weft", "system", "CPUs", "NUMA", "memory", "pages", "SIMD", "GPUs":
			facts = append(facts, report.Fact{Name: f.Name, Value: f.Value + " (" + f.Meaning + ")"})
		}
	}
	facts = append(facts, report.Fact{Name: "Go", Value: runtime.Version()})
	found.Title, found.When = "weft bench on "+host, time.Now()
	found.Command, found.Facts = commandLine(os.Args), append(facts, found.Facts...)
	tmp, err := tempReport(file)
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if err := errors.Join(report.Write(tmp, found), tmp.Chmod(0o644), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(os.Stderr, "report:", file)
	return nil
}

// commandLine quotes arguments for a shell.
func commandLine(args []string) string {
	words := []string{"weft"}
	for _, a := range args[1:] {
		if a == "" || strings.ContainsAny(a, " \t\n'\"\\$`*?[](){}<>|&;~#!") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}
