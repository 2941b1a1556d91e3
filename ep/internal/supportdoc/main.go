// Command supportdoc writes the table of what package ep supports, from the rules that refuse the
// rest.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"

	"github.com/weftgo/weft/ep/spec"
)

func main() {
	out := flag.String("o", "../../docs/guides/ep-support.md", "the file to write")
	flag.Parse()
	var b bytes.Buffer
	err := spec.WriteSupportPage(&b)
	if err == nil {
		err = os.WriteFile(*out, b.Bytes(), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "supportdoc:", err)
		os.Exit(1)
	}
}
