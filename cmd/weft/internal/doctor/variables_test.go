package doctor

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestVariables: the list is the page's.
func TestVariables(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/guides/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, ok := strings.Cut(string(page), "## Environment variables")
	if !ok {
		t.Fatal("the page has no such section")
	}
	var want []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[A-Z][^|]*) \\|").FindAllStringSubmatch(tables, -1) {
		want = append(want, regexp.MustCompile("WEFT_[A-Z0-9_]+").FindAllString(row[1], -1)...)
	}
	slices.Sort(want)
	if d := cmp.Diff(want, variables); d != "" {
		t.Error(d)
	}
}

// TestUnreadVariables: a misspelt variable, which would have no effect, is a finding.
func TestUnreadVariables(t *testing.T) {
	s := machine()
	s.Environ = []string{"WEFT_RANKS=2", "WEFT_LOG=info", "WEFT_LOGG=info", "HOME=/", "OWEFT_X=1"}
	m := Collect(s)
	want := Finding{
		"variables", "WEFT_LOGG, WEFT_RANKS", "Weft reads no such variables; the page on troubleshooting lists all", Note,
	}
	if d := cmp.Diff(want, find(t, m, "variables")); d != "" {
		t.Error(d)
	}
	s.Environ = s.Environ[1:2]
	for _, f := range Findings(Collect(s)) {
		if f.Name == "variables" {
			t.Error(f)
		}
	}
}
