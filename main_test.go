package weft_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
)

func TestMain(m *testing.M) {
	if playPart() {
		return
	}
	goleak.VerifyTestMain(m)
}

// testContext bounds every wait of a test; none comes near it unless something hangs.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// join makes n goroutine ranks that leave when the test ends.
func join(t testing.TB, n int, options ...weft.Option) []*weft.Comm {
	t.Helper()
	return ranktest.New(t, n, options...)
}

// each runs body on every rank at once and returns their errors by rank.
func each(group []*weft.Comm, body func(c *weft.Comm) error) []error {
	errs := make([]error, len(group))
	done := make(chan int)
	for i, c := range group {
		go func() {
			errs[i] = body(c)
			done <- i
		}()
	}
	for range group {
		<-done
	}
	return errs
}

// must is each for bodies that succeed.
func must(t testing.TB, group []*weft.Comm, body func(c *weft.Comm) error) {
	t.Helper()
	for i, err := range each(group, body) {
		if err != nil {
			t.Errorf("rank %d: %v", group[i].Rank(), err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// blames fails the test unless err is a PeerError that names the rank and wraps the cause.
func blames(t testing.TB, who int, err error, rank int, cause error) {
	t.Helper()
	if err := blame(err, rank, cause); err != nil {
		t.Errorf("rank %d: %v", who, err)
	}
}
