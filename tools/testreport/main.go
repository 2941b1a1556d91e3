// Command testreport reads the events of "go test -json" from standard input and prints what a reader of a long
// test run needs: one line a package as it ends, the whole output of what failed, and at the end the tests that were
// skipped, by name and with their reasons. It exits with 1 if anything failed.
package main

import (
	"fmt"
	"os"
)

func main() {
	r := newReport(os.Stdout)
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	r.finish()
	if r.failed {
		os.Exit(1)
	}
}
