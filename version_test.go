package weft_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weftgo/weft"
)

// The number is three numbers, which Go, Python and C spell alike, and the changelog begins with what is in it.
func TestVersion(t *testing.T) {
	v := weft.Version()
	if !regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`).MatchString(v) {
		t.Errorf("the version is %q", v)
	}
	text, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	_, newest, _ := strings.Cut(string(text), "\n## ")
	if heading, _, _ := strings.Cut(newest, "\n"); !strings.HasPrefix(heading+" ", v+" ") {
		t.Errorf("the changelog begins with %q, and the version is %s", heading, v)
	}
}
