package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/rankset"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestBlameBetweenHosts: rank 0 waits in vain for what rank 3 of another host says, which rank 1 passes on here. The
// one of the two is to blame that has not done its part, and all ranks that wait say so. A rank that has said what it
// had to say may do other things for as long as it likes.
func TestBlameBetweenHosts(t *testing.T) {
	for _, c := range []struct {
		name    string
		says    [4]int // rounds
		waits   []int  // the ranks, beside rank 0, that wait until all have said their last one
		culprit int
	}{
		{"the keeper stands still, the others do the next call", [4]int{1, 1, 2, 2}, []int{2, 3}, 1},
		{"the keeper stands still, the others are done", [4]int{1, 1, 1, 1}, nil, 1},
		{"the keeper stands still, and its peer has said nothing", [4]int{1, 1, 1, 0}, []int{2}, 3},
		{"the keeper looks, and its peer has said nothing", [4]int{1, 1, 1, 0}, []int{1, 2}, 3},
		{"the keeper makes no call", [4]int{1, 0, 1, 1}, []int{2, 3}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			comms := spanning(t, "aabb")
			all := make([]*host.Rounds, len(comms))
			if err := ranktest.Each(comms, func(comm *weft.Comm) (err error) {
				all[comm.Rank()], err = host.New(t.Context(), comm, host.Config{
					Kind: "test", Differs: func(rankset.Camps[uint64]) string { return "" },
				})
				return errors.Join(err, all[comm.Rank()].Begin("test"))
			}); err != nil {
				t.Fatal(err)
			}
			all[0].Open(1)
			done := make(chan error, len(comms))
			for r, n := range c.says {
				if r == 0 || n == 0 {
					continue
				}
				do := func() { done <- say(t.Context(), all[r], n, r == 1, slices.Contains(c.waits, r)) }
				if r == 1 && !slices.Contains(c.waits, r) {
					do() // it stands still before the others say anything
					continue
				}
				go do()
			}
			w := comms[0].Operations().Waiter()
			for r, n := range c.says { // until this rank has heard of it
				for ; n > 0 && r > 0; time.Sleep(time.Millisecond) {
					all[0].Pump()
					said, known := w.Peers[r].Said(all[0].Window.ID())
					if known && said >= 2*uint64(n) && (w.Peers[r].Record().Peer >= 0) == slices.Contains(c.waits, r) {
						break
					}
				}
			}
			all[0].Waiter().Timeout = 100 * time.Millisecond
			errs := []error{all[0].Await(t.Context(), "test", 1)}
			for _, n := range c.says[1:] {
				if n > 0 {
					if err := <-done; err != nil {
						errs = append(errs, err)
					}
				}
			}
			if len(errs) != 1+len(c.waits) {
				t.Errorf("%d ranks failed, want %d", len(errs), 1+len(c.waits))
			}
			for _, err := range errs {
				p, ok := errors.AsType[*weft.PeerError](err)
				if !ok || p.Rank != c.culprit || !errors.Is(err, weft.ErrTimeout) {
					t.Errorf("%v: want rank %d to be named", err, c.culprit)
				}
			}
		})
	}
}

// say opens so many rounds. A rank waits for each but the last one, unless it is idle; for that if it is told to.
func say(ctx context.Context, r *host.Rounds, rounds int, idle, waits bool) error {
	for i := range rounds {
		round := r.Open(1)
		if i == rounds-1 && !waits && (idle || rounds > 1) {
			return r.AwaitTold(ctx, "test")
		}
		if err := r.Await(ctx, "test", round); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

// spanning joins ranks on hosts of the given names.
func spanning(t *testing.T, hosts string) []*weft.Comm {
	network := fabrictest.New(fabrictest.TCP(), 1)
	comms, err := ranktest.JoinEach(len(hosts), func(rank int) []weft.Option {
		return []weft.Option{weft.WithHostID(hosts[rank:][:1]), weft.WithFabric(network.Open)}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ranktest.Close(comms), network.Check()); err != nil {
			t.Error(err)
		}
	})
	return comms
}
