package collective

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/ranktest"
)

func TestMain(m *testing.M) {
	if err := os.Setenv("WEFT_TUNING", "none"); err != nil { // not what was measured on this machine
		panic(err)
	}
	if playPart() { // as a rank that a test has started
		return
	}
	if err := os.Setenv("WEFT_HEARTBEAT", "60s"); err != nil { // on a slow machine no host is lost for its silence
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// testTimeout bounds every test's waits; none comes near it unless something hangs.
const testTimeout = 3 * time.Minute

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// job is a communicator whose ranks are goroutines of the test.
type job struct{ comms []*weft.Comm }

func newJob(t testing.TB, ranks int, options ...weft.Option) *job {
	t.Helper()
	return &job{ranktest.New(t, ranks, options...)}
}

// group makes a group on every rank.
func (j *job) group(t testing.TB, o Options) []*Group {
	t.Helper()
	groups := make([]*Group, len(j.comms))
	j.must(t, func(ctx context.Context, r int) (err error) {
		groups[r], err = New(ctx, j.comms[r], o)
		return err
	})
	return groups
}

// each runs f as every rank at once.
func (j *job) each(t testing.TB, f func(ctx context.Context, rank int) error) []error {
	t.Helper()
	ctx := testContext(t)
	errs := make([]error, len(j.comms))
	var group sync.WaitGroup
	for r := range errs {
		group.Go(func() { errs[r] = f(ctx, r) })
	}
	group.Wait()
	return errs
}

// must is each for what has to work.
func (j *job) must(t testing.TB, f func(ctx context.Context, rank int) error) {
	t.Helper()
	if err := errors.Join(j.each(t, f)...); err != nil {
		t.Fatal(err)
	}
}

// all are the numbers of the job's ranks.
func (j *job) all() (ranks []int) {
	for r := range j.comms {
		ranks = append(ranks, r)
	}
	return ranks
}
