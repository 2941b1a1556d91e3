package plan_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// picture draws a plan and counts the elements of the picture.
func picture(t *testing.T, f *plan.File) (text string, elements map[string]int) {
	t.Helper()
	var b bytes.Buffer
	if err := plan.Draw(&b, f); err != nil {
		t.Fatal(err)
	}
	text, elements = b.String(), make(map[string]int)
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return text, elements
		}
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := token.(xml.StartElement); ok {
			elements[s.Name.Local]++
		}
	}
}

func TestDraw(t *testing.T) {
	for _, p := range plantest.Programs() {
		f := build(t, p.Build())
		text, elements := picture(t, f)
		ops := 0
		for _, r := range f.Ranks {
			for _, b := range r.Blocks {
				for _, op := range b.Ops {
					ops += max(1, len(op.Ops))
				}
			}
		}
		if elements["title"] < ops || strings.Contains(text, "does not come") {
			t.Errorf("%s: %d boxes for %d operations", p.Name, elements["title"], ops)
		}
	}
	circle, _ := picture(t, build(t, ahead(1)))
	if strings.Count(circle, "stroke-dasharray") != 2 || !strings.Contains(circle, ">rlxwait: a signal of rank 1<") {
		t.Error(circle)
	}
	f := build(t, plantest.TwoShot(2))
	f.Name = "<&>"
	f.Ranks[0].Blocks[0].Ops = f.Ranks[0].Blocks[0].Ops[:1]
	text, _ := picture(t, f)
	if !strings.Contains(text, "(wait)\nmemory channel 0, with rank 0\nwaits for what does not come") ||
		!strings.Contains(text, "&lt;&amp;&gt;: allreduce") {
		t.Error(text)
	}
}
