package bench

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/weftgo/weft"
)

// measureJoin times joining, from the call to its return. The first join, during which
// processes still start, brings the ranks together; the others are timed.
func (r *rank) measureJoin(j Join) ([]Series, error) {
	first, err := weft.Join(r.ctx)
	if err != nil {
		return nil, err
	}
	defer first.Close()
	r.comm = first
	times := newTimings(j.Rounds)
	for i := range j.Rounds {
		if _, err := first.Agree(r.ctx, "line up", nil); err != nil {
			return nil, err
		}
		began := time.Now()
		c, err := weft.Join(r.ctx)
		if err != nil {
			return nil, err
		}
		times.add(time.Since(began))
		if err := r.progress(i, j.Rounds); err != nil {
			return nil, err
		}
		// Nobody leaves before everyone has come.
		if _, err := first.Agree(r.ctx, "line up", nil); err != nil {
			return nil, err
		}
		if err := c.Close(); err != nil {
			return nil, err
		}
	}
	if _, err := first.Agree(r.ctx, "line up", nil); err != nil {
		return nil, err
	}
	return []Series{{Op: "join", Times: times.pack(), Memory: resident()}}, nil
}

// resident is this process's resident memory without shared memory, in bytes, or 0
// where the system does not tell.
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
