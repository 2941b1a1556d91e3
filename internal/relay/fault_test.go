package relay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

// TestProcessDies kills processes at each place of a tree. The others blame it at once, and go on.
func TestProcessDies(t *testing.T) {
	for _, fanout := range []int{1, 2, 32} {
		for victim := range 5 {
			t.Run(fmt.Sprint(fanout, " wide, process ", victim), func(t *testing.T) {
				w := newNetwork(layout{
					perProcess: []int{2, 1, 1, 2, 1}, heartbeat: 20 * time.Second, timeout: 30 * time.Second, fanout: fanout,
					late: time.Millisecond,
				})
				defer w.close()
				w.formed(t)
				gatherAll(t, w.all(), 2)
				w.kill(victim, -1)
				start := time.Now()
				ranks := w.all()
				for i, err := range each(ranks, func(k *rank) error {
					_, err := k.gather(nil)
					return err
				}) {
					peer, ok := errors.AsType[*channel.PeerError](err)
					if !ok || w.procs[0].ProcessOf(peer.Rank) != victim || !errors.Is(err, channel.ErrDied) {
						t.Errorf("rank %d: %v, want the death of process %d", ranks[i].number, err, victim)
					}
				}
				if took := time.Since(start); took > 10*time.Second {
					t.Errorf("a death was told after %v", took)
				}
				out := rankset.Of(w.procs[victim].cfg.Processes[victim].Ranks...)
				w.awaitDeaths(t, out)
				must(t, ranks, func(k *rank) error { return k.mask(out) })
				gatherAll(t, ranks, 3)
				w.check(t)
			})
		}
	}
}

// awaitDeaths returns when all living ranks know of deaths.
func (w *network) awaitDeaths(t testing.TB, dead rankset.Set) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(w.all(), func(k *rank) bool {
			return slices.ContainsFunc(slices.Collect(dead.All()), func(r int) bool { return !k.Died(r) })
		}) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not all know of the deaths of %v", dead)
		}
	}
}

// TestDeathsInTurn kills one process after the other, of which others on the host are witnesses,
// until a single one is left: what is certain needs no majority.
func TestDeathsInTurn(t *testing.T) {
	w := newNetwork(layout{
		perProcess: []int{1, 2, 1, 1}, hosts: []int{0, 0, 0, 0}, fanout: 2,
		heartbeat: 20 * time.Second, timeout: 20 * time.Second,
	})
	defer w.close()
	w.formed(t)
	var dead rankset.Set
	for victim := range 3 {
		w.kill(victim, 3)
		dead = dead.Union(rankset.Of(w.procs[3].cfg.Processes[victim].Ranks...))
		w.awaitDeaths(t, dead)
		must(t, w.all(), func(k *rank) error { return k.mask(dead) })
		gatherAll(t, w.all(), 2)
	}
	w.check(t)
}

// TestMinority: without a witness, half of the ranks without the lowest do not go on, for the others
// may. They are told so at once.
func TestMinority(t *testing.T) {
	w := newNetwork(layout{perProcess: []int{1, 1}, heartbeat: 2 * time.Second, timeout: 20 * time.Second})
	defer w.close()
	w.formed(t)
	w.kill(0, -1)
	w.awaitDeaths(t, rankset.Of(0))
	k := w.procs[1].ranks[0]
	blamed(t, 1, k.mask(rankset.Of(0)), 1, channel.ErrMasked)
}

// TestSilence lets nothing through to one process any more. The others blame it, and go on; it does
// not go on without them, and learns of their decision when the network is whole again.
func TestSilence(t *testing.T) {
	for _, victim := range []int{0, 1, 3} {
		t.Run(fmt.Sprint("process ", victim), func(t *testing.T) {
			w := newNetwork(layout{
				perProcess: []int{1, 1, 1, 1}, heartbeat: time.Second, timeout: 20 * time.Second, fanout: 1,
			})
			defer w.close()
			w.formed(t)
			for i := range w.procs {
				if i != victim {
					w.darken(i, victim, true)
				}
			}
			alone := w.procs[victim].ranks[0]
			var rest []*rank
			for _, k := range w.all() {
				if k != alone {
					rest = append(rest, k)
				}
			}
			var both sync.WaitGroup
			both.Go(func() {
				_, err := alone.gather(nil)
				peer, ok := errors.AsType[*channel.PeerError](err)
				if !ok || peer.Rank == victim || !errors.Is(err, channel.ErrDied) {
					t.Errorf("the one that is alone: %v", err)
				}
				blamed(t, victim, alone.mask(rankset.Below(4).Without(victim)), victim, channel.ErrMasked)
			})
			for i, err := range each(rest, func(k *rank) error {
				_, err := k.gather(nil)
				return err
			}) {
				blamed(t, rest[i].number, err, victim, channel.ErrDied)
			}
			must(t, rest, func(k *rank) error { return k.mask(rankset.Of(victim)) })
			gatherAll(t, rest, 2)
			both.Wait()
			for i := range w.procs {
				w.darken(i, victim, false)
			}
			for end := time.Now().Add(20 * time.Second); !alone.LeftOut(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the one that was alone does not learn of the decision")
				}
			}
			gatherAll(t, rest, 2)
			w.check(t)
		})
	}
}

// TestBusy: a process that comes to nothing for most of the heartbeat is not lost, nor what was on its way to it. In
// the end it is lost, to those, too, that have no link to it.
func TestBusy(t *testing.T) {
	for _, fanout := range []int{1, 32} {
		for _, busy := range []int{0, 2} {
			t.Run(fmt.Sprint(fanout, " wide, process ", busy), func(t *testing.T) {
				t.Parallel()
				const heartbeat = time.Second
				w := newNetwork(layout{
					perProcess: []int{1, 1, 1, 1}, heartbeat: heartbeat, timeout: time.Minute, fanout: fanout,
				})
				defer w.close()
				w.formed(t)
				gatherAll(t, w.all(), 2)
				w.halt(busy)
				w.await(t, heartbeat*2/3, busy)
				w.goOn(busy)
				for _, k := range w.all() {
					if k.Died(busy) {
						t.Fatalf("rank %d has lost one that was busy", k.number)
					}
				}
				gatherAll(t, w.all(), 2)
				w.halt(busy)
				var rest []*rank
				for _, k := range w.all() {
					if k.number != busy {
						rest = append(rest, k)
					}
				}
				for i, err := range each(rest, func(k *rank) error {
					_, err := k.gather(nil)
					return err
				}) {
					blamed(t, rest[i].number, err, busy, channel.ErrDied)
				}
				must(t, rest, func(k *rank) error { return k.mask(rankset.Of(busy)) })
				gatherAll(t, rest, 2)
				w.goOn(busy)
				w.check(t)
			})
		}
	}
}

// await returns when all other processes have heard nothing of one's host for so long, by their own clocks.
func (w *network) await(t testing.TB, quiet time.Duration, process int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(w.procs, func(q *proc) bool {
			if q.number == process {
				return false
			}
			q.mu.Lock()
			defer q.mu.Unlock()
			return q.processes[process].died == nil && q.clock-q.hosts[q.processes[process].Host] < quiet
		}) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d is heard of although it is silent", process)
		}
	}
}

// TestCuts breaks links again and again while ranks gather. Processes connect anew, and nobody notices.
func TestCuts(t *testing.T) {
	w := newNetwork(layout{
		perProcess: []int{2, 1, 2, 1, 1}, heartbeat: 20 * time.Second, timeout: 60 * time.Second, fanout: 2,
		late: time.Millisecond,
	})
	defer w.close()
	w.formed(t)
	stop := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
				for a := range w.procs {
					if a != i%5 {
						w.cut(a, i%5)
					}
				}
			}
		}
	})
	gatherAll(t, w.all(), 60)
	close(stop)
	cutting.Wait()
}

// TestStoppedOnTheWay: a deadline passes while a process stands still through which others are seen.
// They are not blamed.
func TestStoppedOnTheWay(t *testing.T) {
	w := newNetwork(layout{
		perProcess: []int{1, 1, 1, 1}, heartbeat: 3 * time.Second, timeout: 900 * time.Millisecond, fanout: 1,
	})
	defer w.close()
	w.formed(t)
	for _, i := range []int{0, 2, 3} {
		w.darken(i, 1, true)
	}
	rest := []*rank{w.procs[0].ranks[0], w.procs[2].ranks[0], w.procs[3].ranks[0]}
	for i, err := range each(rest, func(k *rank) error {
		_, err := k.gather(nil)
		return err
	}) {
		peer, ok := errors.AsType[*channel.PeerError](err)
		if !ok || peer.Rank != 1 {
			t.Errorf("rank %d: %v", rest[i].number, err)
		}
	}
}

// TestSides lets processes die, go silent and lose links at random while ranks mask each other. Of
// disjoint sides one at most goes on.
func TestSides(t *testing.T) {
	cases := 12
	if testing.Short() {
		cases = 4
	}
	for seed := range cases {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			sides(t, rand.New(rand.NewPCG(uint64(seed), 7)))
		})
	}
}

func sides(t *testing.T, random *rand.Rand) {
	processes := 2 + random.IntN(4)
	l := layout{
		heartbeat: 500 * time.Millisecond, timeout: time.Second, late: 2 * time.Millisecond,
		fanout: 1 + random.IntN(3), seed: random.Uint64(),
	}
	for i := range processes {
		l.perProcess, l.hosts = append(l.perProcess, 1+random.IntN(2)), append(l.hosts, random.IntN(i+1))
	}
	w := newNetwork(l)
	defer w.close()
	w.formed(t)
	stop := make(chan struct{})
	var troubles sync.WaitGroup
	for range random.IntN(4) {
		a, b, after := random.IntN(processes), random.IntN(processes), time.Duration(random.IntN(100))*time.Millisecond
		what := []string{"kill", "see killed", "cut", "part"}[random.IntN(4)]
		troubles.Go(func() {
			select {
			case <-time.After(after):
				w.trouble(what, a, b)
			case <-stop:
			}
		})
	}
	end := time.Now().Add(2 * time.Second)
	_ = each(w.all(), func(k *rank) error {
		for i := 0; i < 20 && k.ctx.Err() == nil && time.Now().Before(end); i++ {
			if _, err := k.gather(nil); err == nil {
				continue
			}
			var out rankset.Set
			for r := range w.size {
				if k.Died(r) {
					out = out.With(r)
				}
			}
			if errors.Is(k.mask(out), channel.ErrMasked) {
				return nil
			}
		}
		return nil
	})
	close(stop)
	troubles.Wait()
	w.check(t)
}

// trouble does something to processes.
func (w *network) trouble(what string, a, b int) {
	switch what {
	case "kill":
		w.kill(a, -1)
	case "see killed":
		if a != b {
			w.kill(a, b)
		}
	case "cut":
		w.cut(a, b)
	case "part": // those up to a from those above it
		for i := range w.procs {
			for j := range w.procs {
				if i <= a && j > a {
					w.darken(i, j, true)
				}
			}
		}
	}
}
