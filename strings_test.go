package weft_test

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/weftgo/weft"
)

// TestNames: what is printed of the package's objects is short, and says what one wants to know.
func TestNames(t *testing.T) {
	ctx := testContext(t)
	group := join(t, 3)
	is := func(v any, want string) {
		t.Helper()
		if got := fmt.Sprintf("%v", v); !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Errorf("%q, want %s", got, want)
		}
	}
	is(group[2], "rank 2 of 3 on the host")
	must(t, group, func(c *weft.Comm) error {
		w, err := c.Alloc(ctx, 4096)
		if err == nil {
			is(w, `window \d+ of 4096 bytes a rank`)
			err = w.Close()
		}
		return err
	})
	group[0].Abort()
	must(t, group[:2], func(c *weft.Comm) error { return c.SetMask(ctx, 2) })
	is(group[0], `rank 0 of 3 on the host, without \[2\]`)
	if err := group[0].Close(); err != nil {
		t.Fatal(err)
	}
	is(group[0], "rank 0 of 3 on the host, closed")
	var none *weft.Comm
	is(none, "<nil>")
}

// TestDisagreements: what differs is named, and nothing else.
func TestDisagreements(t *testing.T) {
	for _, c := range []struct {
		texts [3]string
		want  string
	}{
		{
			[3]string{"Hidden: 8, TopK: 2, Layout: expert-major", "", "Hidden: 16, TopK: 2, Layout: expert-major"},
			"op: ranks disagree on Hidden: 16 on rank 2, 8 on ranks 0-1",
		},
		{
			[3]string{"Hidden: 8, TopK: 2", "", "Hidden: 16, TopK: 1, Tuning.Dispatch.Threads: 64"},
			"op: ranks disagree on Hidden: 16 on rank 2, 8 on ranks 0-1; TopK: 1 on rank 2, 2 on ranks 0-1; " +
				"Tuning.Dispatch.Threads: 64 on rank 2, unset on ranks 0-1",
		},
		{
			[3]string{"Hidden: 8, TopK: 2", "", "Staging: 64, DTypes: []"},
			"op: ranks disagree: rank 2 makes another call here than ranks 0-1; make the same calls in the same order on " +
				"every rank",
		},
		{
			// A call is known by its name, whatever it has to agree on.
			[3]string{"another|bytes: 4096, ranks: 3", "", "new handle|Hidden: 8, ranks: 3"},
			`op: ranks disagree: rank 2 calls "new handle", ranks 0-1 "another"; make the same calls in the same order on ` +
				"every rank",
		},
		{[3]string{"ready", "", "Hidden: 16"}, `op: ranks disagree: rank 2 says "Hidden: 16", ranks 0-1 "ready"`},
		{
			[3]string{"Hidden: 8, TopK: 2", "Hidden: 16, TopK: 2", "Hidden: 16, TopK: 4"},
			"op: ranks disagree on Hidden: 8 on rank 0, 16 on ranks 1-2; TopK: 4 on rank 2, 2 on ranks 0-1",
		},
		{
			[3]string{"Hidden: 8", "Hidden: 16", "Hidden: 32"},
			"op: ranks disagree on Hidden: 8 on rank 0, 16 on rank 1, 32 on rank 2",
		},
	} {
		c.texts[1] = cmp.Or(c.texts[1], c.texts[0])
		group := join(t, 3)
		for r, err := range each(group, func(comm *weft.Comm) error {
			op, text, named := strings.Cut(c.texts[comm.Rank()], "|")
			if !named {
				op, text = "op", op
			}
			return comm.Operations().VerifySame(testContext(t), op, text, nil)
		}) {
			_, words, _ := strings.Cut(fmt.Sprint(err), ": ")
			if !errors.Is(err, weft.ErrMismatch) || "op: "+words != c.want {
				t.Errorf("rank %d: %v, want %s", r, err, c.want)
			}
		}
	}
}
