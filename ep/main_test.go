package ep_test

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/ranktest"
)

func TestMain(m *testing.M) {
	if playPart() {
		return
	}
	os.Setenv("WEFT_TUNING", "none") // not what this machine's user has
	goleak.VerifyTestMain(m)
}

// testContext bounds every wait of a test; none comes near it unless something hangs.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// join makes n goroutine ranks that leave when the test ends.
func join(t testing.TB, n int, options ...weft.Option) []*weft.Comm {
	t.Helper()
	return ranktest.New(t, n, options...)
}

// each runs body on every rank, and fails the test if one of them fails.
func each(t testing.TB, group []*weft.Comm, body func(c *weft.Comm) error) {
	t.Helper()
	if err := ranktest.Each(group, body); err != nil {
		t.Fatal(err)
	}
}

// handles makes a handle of the same Spec on every rank, closed when the test ends.
func handles(t testing.TB, group []*weft.Comm, s ep.Spec) []*ep.Handle {
	t.Helper()
	ctx := testContext(t)
	made := make([]*ep.Handle, len(group))
	each(t, group, func(c *weft.Comm) (err error) {
		made[c.Rank()], err = ep.NewHandle(ctx, c, s)
		return err
	})
	t.Cleanup(func() {
		for _, h := range made {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return made
}

// small is a Spec that tests vary.
func small(ranks int) ep.Spec {
	return ep.Spec{Experts: 2 * ranks, TopK: 2, Hidden: 24, MaxTokens: 4}
}
