package timing

import (
	"context"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
)

func TestIterationsAgree(t *testing.T) {
	got := make([]int, 2)
	err := ranktest.Run(2, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) (err error) {
		// Rank 1 is ten times slower and decides.
		d := time.Duration(1+9*c.Rank()) * 10 * time.Microsecond
		got[c.Rank()], err = (&Host{Context: ctx, Comm: c}).iterations(Effort{Time: 10 * time.Millisecond}, 1, d)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got[0] != 100 || got[1] != 100 {
		t.Errorf("%v, want 100 twice", got)
	}
}
