package simd

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// The properties are cheap: unless -rapid.checks says otherwise each is tried 1000 times, 200 with
// -short.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		checks := "1000"
		if testing.Short() {
			checks = "200"
		}
		if err := flag.Set("rapid.checks", checks); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}
