// Command testreport reads the events of "go test -json" from standard input and prints what a
// reader of a long test run needs: one line a package as it ends, the whole output of what failed,
// and at the end how many tests were skipped and why. Its argument begins the names of two files:
// NAME-durations.txt says how long packages and tests took, NAME-skipped.txt which tests were
// skipped. It exits with 1 if anything failed.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("%d arguments, want one: how the names of files begin", len(arguments))
	}
	r, skips := newReport(os.Stdout), arguments[0]+"-skipped.txt"
	if err := r.read(os.Stdin); err != nil {
		return err
	}
	if err := os.WriteFile(skips, []byte(r.skipped()), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(arguments[0]+"-durations.txt", []byte(r.durations()), 0o600); err != nil {
		return err
	}
	r.finish(skips)
	if r.failed {
		os.Exit(1)
	}
	return nil
}
