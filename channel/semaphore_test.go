package channel

import (
	"context"
	"errors"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// joint is what two ranks need for channels between them.
type joint struct {
	waiter    [2]*Waiter
	semaphore [2]*Semaphore
	memory    [2]*Memory
	mem       [2][]byte // the data parts, as their owners see them
}

const jointData = 4096

// newJoint makes two ranks. With apart they see the memory at different addresses, as processes do.
func newJoint(t testing.TB, p Policy, apart bool) *joint {
	t.Helper()
	const head = Stride + ControlSize
	var views [2][]byte
	views[0], views[1] = twice(t, 2*(head+jointData))
	if !apart {
		views[1] = views[0]
	}
	part := func(view, rank int) []byte { return views[view][rank*(head+jointData):][:head+jointData] }
	j := &joint{}
	for r := range 2 {
		own, peer := part(r, r), part(r, 1-r)
		j.waiter[r] = &Waiter{Policy: p, Rank: r, Own: ControlAt(own, Stride), Timeout: patience}
		j.waiter[r].Peers = make([]*Status, 2)
		j.waiter[r].Peers[r], j.waiter[r].Peers[1-r] = &j.waiter[r].Own.Status, &ControlAt(peer, Stride).Status
		j.semaphore[r] = NewSemaphore(j.waiter[r], 1-r, CounterAt(own, 0), CounterAt(peer, 0))
		j.mem[r] = own[head:]
		j.memory[r] = NewMemory(j.semaphore[r], own[head:], peer[head:])
	}
	return j
}

// TestSemaphoreCounts signals, waits and polls in any order: as many waits succeed as there were
// signals, whichever way they are interleaved.
func TestSemaphoreCounts(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	rapid.Check(t, func(rt *rapid.T) {
		j := newJoint(t, Policy{}, true)
		open := [2]int{} // signals for each rank that it has not consumed
		rt.Repeat(map[string]func(*rapid.T){
			"signal": func(t *rapid.T) {
				r := rapid.IntRange(0, 1).Draw(t, "rank")
				for range rapid.IntRange(1, 5).Draw(t, "times") {
					j.semaphore[r].Signal()
					open[1-r]++
				}
			},
			"poll": func(t *rapid.T) {
				r := rapid.IntRange(0, 1).Draw(t, "rank")
				if got := j.semaphore[r].Poll(); got != (open[r] > 0) {
					t.Fatalf("poll says %t with %d signals open", got, open[r])
				} else if got {
					open[r]--
				}
			},
			"wait": func(t *rapid.T) {
				r := rapid.IntRange(0, 1).Draw(t, "rank")
				err := j.semaphore[r].Wait(ended)
				if open[r] > 0 {
					open[r]--
				} else if errors.Is(err, context.Canceled) {
					err = nil // it has to fail, and consumes nothing
				} else {
					t.Fatalf("waited for a signal that was not sent: %v", err)
				}
				if err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

// TestSemaphoreOrders passes plain memory back and forth: whoever has waited sees what was stored
// before the signal.
func TestSemaphoreOrders(t *testing.T) {
	for _, p := range phases {
		t.Run(p.name, func(t *testing.T) {
			j := newJoint(t, p.Policy, false)
			ctx := testContext(t)
			var data [16]int
			rounds := p.rounds(600)
			var other sync.WaitGroup
			other.Go(func() {
				for round := range rounds {
					if err := j.semaphore[1].Wait(ctx); err != nil {
						t.Error(err)
						return
					}
					for i := range data {
						if data[i] != round {
							t.Errorf("round %d: word %d is %d", round, i, data[i])
						}
						data[i] = -round
					}
					j.semaphore[1].Signal()
				}
			})
			for round := range rounds {
				for i := range data {
					data[i] = round
				}
				j.semaphore[0].Signal()
				if round%2 == 0 {
					for !j.semaphore[0].Poll() {
						if ctx.Err() != nil {
							t.Fatal("no answer")
						}
						j.waiter[0].yield()
					}
				} else if err := j.semaphore[0].Wait(ctx); err != nil {
					t.Fatal(err)
				}
				for i := range data {
					if data[i] != -round {
						t.Fatalf("round %d: word %d was not read", round, i)
					}
				}
			}
			other.Wait()
		})
	}
}

// TestSemaphoreOutstanding lets one rank signal far ahead of the other's waits.
func TestSemaphoreOutstanding(t *testing.T) {
	j := newJoint(t, PolicyFor(2, 2, 2), true)
	ctx := testContext(t)
	n := long(20000)
	var other sync.WaitGroup
	other.Go(func() {
		for range n {
			j.semaphore[1].Signal()
		}
	})
	for i := range n {
		if err := j.semaphore[0].Wait(ctx); err != nil {
			t.Fatalf("signal %d: %v", i, err)
		}
	}
	other.Wait()
	if j.semaphore[0].Poll() || j.semaphore[1].Poll() {
		t.Error("there is a signal that nobody sent")
	}
}

func TestSemaphoreBlames(t *testing.T) {
	j := newJoint(t, Policy{}, true)
	w := j.waiter[0]
	w.Timeout = 1
	mustBlame(t, j.semaphore[0].Wait(testContext(t)), "semaphore wait", 1, ErrTimeout)
	w.Timeout = patience
	w.Own.Abort(Fault{Cause: CauseDied, Rank: 5, Reporter: 3})
	mustBlame(t, j.semaphore[0].Wait(testContext(t)), "semaphore wait", 5, ErrDied)
	j.semaphore[1].Signal()
	if err := j.semaphore[0].Wait(testContext(t)); err != nil {
		t.Errorf("failed waits have consumed a signal that came later: %v", err)
	}
}
