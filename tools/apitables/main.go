// Command apitables writes the tables of the interfaces in docs/reference: what Go's packages export, the functions of
// weft.h, and the names of the Python packages, each with the first sentence of its documentation. The output is
// committed; go generate renews it.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const notice = "<!-- Generated from the sources by \"make generate\". -->\n\n"

func main() {
	log.SetFlags(0)
	log.SetPrefix("apitables: ")
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := generate(*root); err != nil {
		log.Fatal(err)
	}
}

func generate(root string) error {
	for name, table := range map[string]func(string) (string, error){
		"go.md": goTables, "c.md": cTables, "python.md": pythonTables,
	} {
		text, err := table(root)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		path := filepath.Join(root, "docs", "reference", name)
		if err := os.WriteFile(path, []byte(notice+text), 0o644); err != nil { //nolint:gosec // a page that all may read
			return err
		}
	}
	return nil
}

// table is a table of names with what they are.
type table struct {
	strings.Builder
	unsaid string // of what has no documentation
}

func (t *table) head(name string) {
	fmt.Fprintf(t, "\n| %s | |\n|---|---|\n", name)
}

func (t *table) row(name, text string) {
	if text == "" {
		text = t.unsaid
	}
	fmt.Fprintf(t, "| `%s` | %s |\n", strings.ReplaceAll(name, "|", `\|`), strings.ReplaceAll(text, "|", `\|`))
}

// prose adds a paragraph, in lines as long as those of other pages.
func (t *table) prose(text string) {
	column := 0
	t.WriteString("\n")
	for _, word := range strings.Fields(text) {
		if column > 0 && column+1+len(word) > 100 {
			t.WriteString("\n")
			column = 0
		} else if column > 0 {
			t.WriteString(" ")
			column++
		}
		t.WriteString(word)
		column += len(word)
	}
	t.WriteString("\n")
}

// end is where a first sentence ends: not at "e.g." or within a number, after which no capital follows.
var end = regexp.MustCompile(`[.:](\s+[A-Z\x60\[]|$)`)

// sentence is the first sentence of a documentation, on one line, without its full stop.
func sentence(text string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n\n")
	first = strings.Join(strings.Fields(first), " ")
	if at := end.FindStringIndex(first); at != nil {
		first = first[:at[0]]
	}
	return first
}
