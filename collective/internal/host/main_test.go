package host

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	profiles "github.com/weftgo/weft/collective/tuning"
	"github.com/weftgo/weft/internal/ranktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scratchBytes is what a group takes that says nothing.
const scratchBytes = 4 << 20

// model is that of groups which are told no other.
var model = profiles.Builtin(profiles.SharedMemory).Model()

// job is a communicator whose ranks are goroutines of the test, with an engine each.
type job struct {
	comms   []*weft.Comm
	engines []*Engine
}

func newJob(t testing.TB, ranks, scratch int, force ...string) *job {
	t.Helper()
	j := &job{ranktest.New(t, ranks), make([]*Engine, ranks)}
	j.must(t, func(ctx context.Context, r int) (err error) {
		j.engines[r], err = New(ctx, j.comms[r], Options{Scratch: scratch, Force: force, Model: model})
		return err
	})
	return j
}

// must runs f as every rank at once.
func (j *job) must(t testing.TB, f func(ctx context.Context, rank int) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	errs := make([]error, len(j.comms))
	var group sync.WaitGroup
	for r := range errs {
		group.Go(func() { errs[r] = f(ctx, r) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
