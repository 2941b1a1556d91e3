// Package abitest is for tests that compare Go's copies of C structs and constants with what a C compiler makes of a
// library's headers. The compiler's word is a file of lines: "size STRUCT n", "offset STRUCT.FIELD n", "value NAME n".
package abitest

import (
	"bufio"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Facts is what a file says: kind, then name, to number.
type Facts map[string]map[string]uint64

// Read reads a file of facts.
func Read(t testing.TB, name string) Facts {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return Parse(t, f)
}

// Parse reads facts. Lines that begin with # are comments.
func Parse(t testing.TB, r io.Reader) Facts {
	t.Helper()
	all := Facts{"size": {}, "offset": {}, "value": {}}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) > 0 && words[0] == "#" {
			continue
		}
		if len(words) != 3 || all[words[0]] == nil {
			t.Fatalf("%q is no fact", lines.Text())
		}
		n, err := strconv.ParseUint(words[2], 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		all[words[0]][words[1]] = n
	}
	return all
}

// Constants reads a Go file: the value of every line "name = 0x1 // NAME" by the name in the comment, which begins with
// one of the prefixes. Without the source tree it skips the test.
func Constants(t testing.TB, name string, prefixes ...string) map[string]uint64 {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	all := map[string]uint64{}
	line := regexp.MustCompile(`(?m)^\s+\w+\s+= (0x\w+)\s+// ((?:` + strings.Join(prefixes, "|") + `)\w+)$`)
	for _, m := range line.FindAllStringSubmatch(string(text), -1) {
		value, err := strconv.ParseUint(m[1], 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		all[m[2]] = value
	}
	return all
}
