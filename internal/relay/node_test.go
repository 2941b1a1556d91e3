package relay

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

func (w *network) formed(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, q := range w.procs {
		if err := q.Formed(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func gatherAll(t testing.TB, ranks []*rank, times int) {
	t.Helper()
	must(t, ranks, func(k *rank) error {
		for i := range times {
			all, err := k.gather(fmt.Append(nil, "rank ", k.number, " time ", i))
			if err != nil {
				return err
			}
			for r, note := range all {
				if k.Masked(r) != (note == nil) {
					return fmt.Errorf("rank %d's note is %q, masked %v", r, note, k.Mask())
				}
				if want := fmt.Sprint("rank ", r, " time ", i); note != nil && string(note) != want {
					return fmt.Errorf("rank %d says %q, not %q", r, note, want)
				}
			}
		}
		return nil
	})
}

// TestGather has ranks gather over trees of one and more levels.
func TestGather(t *testing.T) {
	for _, fanout := range []int{1, 2, 32} {
		w := newNetwork(layout{
			perProcess: []int{2, 1, 3, 1, 2}, heartbeat: 5 * time.Second, timeout: 30 * time.Second, fanout: fanout,
			late: time.Millisecond,
		})
		w.formed(t)
		gatherAll(t, w.all(), 20)
		w.close()
	}
}

// TestAbort: an abort reaches all, in all processes, and SetMask goes on.
func TestAbort(t *testing.T) {
	w := newNetwork(layout{
		perProcess: []int{2, 2, 2}, heartbeat: 5 * time.Second, timeout: 30 * time.Second, fanout: 1, late: time.Millisecond,
	})
	defer w.close()
	w.formed(t)
	ranks := w.all()
	errs := each(ranks, func(k *rank) error {
		if k.number == 4 {
			time.Sleep(20 * time.Millisecond)
			k.Tell(channel.Fault{Cause: channel.CauseAbort, Rank: 4})
			return k.begin()
		}
		_, err := k.gather(nil)
		return err
	})
	for r, err := range errs {
		blamed(t, r, err, 4, channel.ErrAborted)
	}
	must(t, ranks, func(k *rank) error { return k.mask(rankset.Set{}) })
	gatherAll(t, ranks, 3)
}
