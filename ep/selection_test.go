package ep_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weftgo/weft"
)

// TestWrongSelection: the rank whose selections are wrong is told the operation and the token, and so are its peers,
// with its rank.
func TestWrongSelection(t *testing.T) {
	const ranks = 2
	group := join(t, ranks)
	ctx := testContext(t)
	made := handles(t, group, small(ranks))
	for _, test := range []struct {
		expert int32
		want   string
	}{
		{100, "token 0 selects expert 100 of %d; -1 stands for none"},
		{1, "token 0 selects expert 1 twice; use -1 for the second and add its weight to the first"},
	} {
		each(t, group, func(c *weft.Comm) error {
			selected := []int32{1, 0}
			if c.Rank() == 1 {
				selected[1] = test.expert
			}
			h := made[c.Rank()]
			_, err := h.Prepare(ctx, nil, weft.TensorOf(selected, 1, 2), weft.TensorOf(make([]float32, 2), 1, 2))
			why := test.want
			if test.expert == 100 {
				why = fmt.Sprintf(why, small(ranks).Experts)
			}
			want := "invalid argument: prepare: " + why
			if c.Rank() != 1 {
				want = "prepare: rank 1: refused there: " + why
			}
			if !errors.Is(err, weft.ErrInvalid) || err.Error() != want {
				return fmt.Errorf("%v, want %s", err, want)
			}
			return nil
		})
	}
}
