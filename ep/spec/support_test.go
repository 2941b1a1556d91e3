package spec_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/spec"
)

// TestSupportPageIsCurrent compares docs/guides/ep-support.md with what the rules say now.
func TestSupportPageIsCurrent(t *testing.T) {
	if _, err := os.Stat("support_test.go"); err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	var want bytes.Buffer
	if err := spec.WriteSupportPage(&want); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/guides/ep-support.md")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want.String(), string(got)); d != "" {
		t.Errorf("docs/guides/ep-support.md is not what the rules say; run make generate (-want +got):\n%s", d)
	}
}

// TestSupportTable reads the table back: a cell is called tested exactly if handles of every engine
// can be made for it, and refused, with the sentence that its number stands for, if none can.
func TestSupportTable(t *testing.T) {
	var page strings.Builder
	if err := spec.WriteSupport(&page); err != nil {
		t.Fatal(err)
	}
	entry := map[string]string{}
	notes := map[string]string{}
	var header []string
	for line := range strings.Lines(strings.ReplaceAll(page.String(), ";\n   ", "; ")) {
		line = strings.TrimSpace(line)
		if number, note, ok := strings.Cut(line, ". "); ok && len(number) < 3 {
			notes[number] = note
			continue
		}
		if !strings.HasPrefix(line, "|") {
			continue
		}
		fields := strings.Split(strings.Trim(line, "|"), "|")
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		if header == nil {
			header = fields
			continue
		}
		for i := 3; i < len(fields); i++ {
			entry[strings.Join(fields[:3], "/")+"/"+header[i]] = fields[i]
		}
	}
	tested := [2]int{}
	for _, c := range spec.Cells() {
		name := strings.Join([]string{
			c.Layout.String(), c.Reduction.String(), c.Weighting.String(),
			c.Payload.String(),
		}, "/")
		says, ok := entry[name]
		if !ok {
			t.Fatalf("%s is not in the table", name)
		}
		for _, ranks := range []int{1, 4, 64} {
			err := c.Spec(ranks).Validate(ranks)
			gpu := c.Spec(ranks).ValidateOn(spec.GPUEngine, ranks)
			if err == nil {
				tested[spec.HostEngine]++
			}
			if gpu == nil {
				tested[spec.GPUEngine]++
				if says != "tested" || err != nil {
					t.Errorf("%s is allowed on GPUs and called %q; on the host: %v", name, says, err)
				}
				continue
			}
			if err == nil { // GPUs alone refuse it
				if !errors.Is(gpu, weft.ErrUnsupported) || says != "tested on the host" {
					t.Errorf("%s is refused on GPUs with %v and called %q", name, gpu, says)
				}
				continue
			}
			if !errors.Is(gpu, weft.ErrUnsupported) || err.Error() != gpu.Error() {
				t.Errorf("%s: %v; on GPUs: %v", name, err, gpu)
			}
			number := strings.TrimSuffix(strings.TrimPrefix(says, "refused ("), ")")
			if want := weft.ErrUnsupported.Error() + ": " + notes[number]; gpu.Error() != want {
				t.Errorf("%s is refused with %q and called %q", name, gpu, says)
			}
		}
	}
	if want := [2]int{3 * 168, 3 * 96}; tested != want {
		t.Errorf("%d cells are allowed at three sizes, on the host and on GPUs, want %d: what the suite "+
			"runs has changed; is that meant?", tested, want)
	}
}
