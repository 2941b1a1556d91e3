package collective

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestNames: what is printed of groups and works is short, and groups' options that differ are named.
func TestNames(t *testing.T) {
	ctx := testContext(t)
	comms := ranktest.New(t, 2)
	err := ranktest.Each(comms, func(c *weft.Comm) error {
		_, err := New(ctx, c, Options{Scratch: 1 << (20 + c.Rank())})
		want := "new group: ranks disagree on Scratch: 1048576 on rank 0, 2097152 on rank 1"
		if err == nil || err.Error() != want {
			return fmt.Errorf("%w, want %s", err, want)
		}
		g, err := New(ctx, c, Options{})
		if err != nil {
			return err
		}
		if got, want := fmt.Sprint(g), fmt.Sprintf("group of rank %d of 2 on the host", c.Rank()); got != want {
			return fmt.Errorf("%q, want %q", got, want)
		}
		x := weft.TensorOf(make([]float32, 4))
		w, err := g.Start(ctx, nil, Call{Collective: AllReduce, Op: weft.Sum, In: x, Out: x})
		if err != nil {
			return err
		}
		if got := fmt.Sprint(w); !strings.HasPrefix(got, "all-reduce, ") {
			return fmt.Errorf("%q", got)
		}
		if err := w.Wait(ctx); err != nil {
			return err
		}
		if got := fmt.Sprint(w); got != "all-reduce, done" {
			return fmt.Errorf("%q", got)
		}
		if err := w.Close(); err != nil {
			return err
		}
		err = g.Close()
		if got := fmt.Sprint(g); got != "group, closed" {
			return fmt.Errorf("%q", got)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
