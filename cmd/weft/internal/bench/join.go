package bench

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
)

// Join measures how long joining takes, again and again among the same processes.
type Join struct{ timing.Effort }

// measure times joining, from the call to its return. The first join, during which
// processes still start, has brought the ranks together; the others are timed.
func (j Join) measure(ctx context.Context, first *weft.Comm, progress func(done, total int) error) ([]timing.Series,
	error,
) {
	meet := func() error {
		_, err := first.Operations().GatherNotes(ctx, "line up", nil)
		return err
	}
	var joined *weft.Comm
	leave := func() error {
		if joined == nil {
			return nil
		}
		if err := meet(); err != nil { // no rank leaves before all have come
			return err
		}
		return joined.Close()
	}
	h := &timing.Host{Context: ctx, Comm: first, Meet: meet, Progress: progress}
	series, err := h.Time(j.Effort, timing.Rounds{
		Warmup: j.Warmup, Rehearsal: 2,
		Operations: []timing.Operation{{
			Name:  "join",
			Renew: func(bool) error { return leave() },
			Run: func(bool) (err error) {
				joined, err = weft.Join(ctx)
				return err
			},
		}},
		Checked: func(int, int) bool { return false },
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(leave(), meet()); err != nil {
		return nil, err
	}
	series[0].Memory = resident()
	return series, nil
}

// resident is this process's resident memory without shared memory, in bytes, or 0 where the system
// does not say.
func resident() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	var sum int64
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) >= 2 && (f[0] == "RssAnon:" || f[0] == "RssFile:") {
			kb, _ := strconv.ParseInt(f[1], 10, 64)
			sum += kb << 10
		}
	}
	return sum
}
