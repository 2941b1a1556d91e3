package collective

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest/processes"
	"github.com/weftgo/weft/internal/ranktest/wire"
)

// needLibfabric skips a test, or fails it, where there is none.
func needLibfabric(t *testing.T) {
	t.Helper()
	if err := fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1}).Close(); err != nil {
		t.Error(err)
	}
}

// wired is ranks on two hosts with a wire between them: rank 2 alone on one.
type wired struct {
	*wire.Wire
	*processes.Crew
	all, near []int
	older     int // connections that are not the fabric's
}

const farRank = 2

func startWired(t *testing.T, bytes int, heartbeat string) *wired {
	t.Helper()
	return startWiredFor(t, bytes, heartbeat, time.Minute)
}

// startWiredFor has waits of the ranks end at a deadline of their own.
func startWiredFor(t *testing.T, bytes int, heartbeat string, deadline time.Duration) *wired {
	t.Helper()
	needLibfabric(t)
	w := &wired{Wire: wire.New(t), all: ranksUpTo(farRank + 1), near: ranksUpTo(farRank)}
	host := func(rank int) int { return rank / farRank }
	w.Crew = processes.StartIn(t, "member", len(w.all), func(rank int) []string {
		return []string{
			"WEFT_HEARTBEAT=" + heartbeat, "WEFT_HOSTID=" + []string{"a", "b"}[host(rank)], "WEFT_INTERFACE=" + wire.Interface,
			processes.InterfaceVariable + "=" + wire.Interface,
		}
	}, func(rank int, start func() error) error { return w.In(host(rank), start) })
	id := w.ID()
	w.Must(w.all, "meet", memberArgs{ID: id, Deadline: deadline})
	w.older = w.Connections()
	w.Must(w.all, "group", memberArgs{Algorithm: "all-reduce/hierarchical", Bytes: bytes})
	w.Must(w.all, "repeat", memberArgs{Times: 3})
	if w.Connections() == w.older {
		t.Fatal("the fabric has made no connection over the wire")
	}
	return w
}

// goOn has the ranks of the near host go on without the far one, once all have been told why. That one does not go on
// alone.
func (w *wired) goOn(t *testing.T, begun time.Time, says string) {
	t.Helper()
	for r, a := range w.Answers(w.near) {
		if a.Peer != farRank || a.Cause != "died" || !strings.Contains(a.Err, says) {
			t.Errorf("rank %d: %.300s", r, a.Err)
		}
	}
	t.Log("told after", time.Since(begun))
	if a := w.Answer(farRank); a.Err == "" || a.Peer == farRank {
		t.Errorf("the rank that is cut off: %.300s", a.Err)
	}
	w.Must(w.near, "mask", memberArgs{Masked: []int{farRank}})
	w.Must(w.near, "repeat", memberArgs{Times: 3})
}

// TestWireSlow loses a packet in twenty and delays all; then nothing passes for a second. Operations go on.
func TestWireSlow(t *testing.T) {
	w := startWired(t, 64<<10, "3s")
	w.SetBoth(wire.Way{Delay: time.Millisecond, Loss: 0.05})
	w.Must(w.all, "repeat", memberArgs{Times: 5})
	w.SetBoth(wire.Way{})
	for _, r := range w.all {
		w.Tell(r, "repeat", memberArgs{Times: 100})
	}
	w.SetBoth(wire.Way{Cut: true})
	time.Sleep(time.Second)
	w.SetBoth(wire.Way{})
	for r, a := range w.Answers(w.all) {
		if a.Err != "" {
			t.Errorf("rank %d after a second without a packet: %s", r, a.Err)
		}
	}
}

// TestWireCut lets nothing pass in the midst of operations, in either direction and in one alone, which leaves
// connections half open. Silence is told within the heartbeat, and when the wire is whole again nothing changes.
func TestWireCut(t *testing.T) {
	for name, cut := range map[string][]int{"both ways": {0, 1}, "half open": {1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWired(t, 1<<20, "3s")
			for _, r := range w.all {
				w.Tell(r, "repeat", memberArgs{Times: 1_000_000})
			}
			time.Sleep(50 * time.Millisecond)
			begun := time.Now()
			for _, from := range cut {
				w.Set(from, wire.Way{Cut: true})
			}
			w.goOn(t, begun, "WEFT_HEARTBEAT")
			w.SetBoth(wire.Way{})
			w.Must(w.near, "repeat", memberArgs{Times: 20})
			if a := w.Ask(farRank, "mask", memberArgs{Masked: w.near}); a.Cause != "masked" && a.Cause != "died" {
				t.Errorf("the rank that was cut off goes on alone: %.300s (%s)", a.Err, a.Cause)
			}
			w.Must(w.near, "repeat", memberArgs{Times: 20})
		})
	}
}

// TestWireReset resets connections in the midst of operations: all of them, and those of the fabric alone, which
// libfabric makes anew without a word. A rank that has something on its way to the other host is told within a second,
// and without the heartbeat. So the ranks run operations, or rank 2 waits for the others with nothing on its way: it
// hears of the end from them, once connections between hosts can be made again.
func TestWireReset(t *testing.T) {
	for name, in := range map[string]struct{ all, waits bool }{
		"all": {all: true}, "the fabric's": {}, "all, rank 2 waits": {all: true, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWired(t, 8, "60s")
			for _, r := range w.all {
				w.Tell(r, "repeat", memberArgs{Times: 1_000_000})
			}
			time.Sleep(50 * time.Millisecond)
			if in.waits {
				w.Stop(1)
				time.Sleep(500 * time.Millisecond) // until the notice behind rank 2's last signal has landed
			}
			begun, from := time.Now(), w.older
			if in.all {
				from = 0
			}
			w.Reset(from)
			if in.waits {
				w.Continue(1)
			}
			first, answer := w.First(w.all)
			told := time.Since(begun)
			t.Logf("rank %d is told after %v: %v", first, told, answer.Err)
			if w.Repair() == 0 {
				t.Error("nothing was reset")
			}
			answers := w.Answers(slices.DeleteFunc(ranksUpTo(len(w.all)), func(r int) bool { return r == first }))
			answers[first] = answer
			t.Logf("all are told after %v", time.Since(begun))
			if time.Since(begun) > 45*time.Second { // seconds, and as much as the machine's other work takes
				t.Errorf("rank %d is told after %v, all after %v", first, told, time.Since(begun))
			}
			for r, a := range answers { // whoever sees it first names the rank at the other end
				if a.Cause != "died" || a.Peer < 0 {
					t.Errorf("rank %d: %.300s", r, a.Err)
				}
			}
			w.Must(w.near, "mask", memberArgs{Masked: []int{farRank}})
			w.Must(w.near, "repeat", memberArgs{Times: 20})
		})
	}
}

// ones is how many bytes of the far rank the near ones find in the window, which they clear.
func (w *wired) ones(t *testing.T) (landed int) {
	t.Helper()
	for _, a := range w.All(w.near, "ones", memberArgs{}) {
		n := 0
		if err := json.Unmarshal(a.Value, &n); err != nil {
			t.Fatal(err)
		}
		landed += n
	}
	return landed
}

// flood has the far rank write into the windows of the others, so many bytes at a time, over a slow wire. It returns
// when something has landed.
func (w *wired) flood(t *testing.T, part int) {
	t.Helper()
	w.SetBoth(wire.Way{Delay: 5 * time.Millisecond}) // so that it takes a while
	w.Tell(farRank, "flood", memberArgs{Bytes: part})
	for w.ones(t) == 0 {
	}
}

// backOrLost takes the far rank back, or all are told that it is lost.
func (w *wired) backOrLost(t *testing.T, says string) (back bool) {
	t.Helper()
	answers := w.All(w.all, "mask", memberArgs{})
	for _, a := range answers {
		back = back || a.Err == ""
	}
	for r, a := range answers {
		t.Logf("rank %d takes it back: %s", r, a.Err)
		if back != (a.Err == "") || !back && (a.Peer != farRank || !strings.Contains(a.Err, says)) ||
			a.Took > 30*time.Second {
			t.Errorf("rank %d takes a rank back, after %v: %.300s (%s)", r, a.Took, a.Err, a.Cause)
		}
		if !back {
			if a := w.Ask(r, "barrier", memberArgs{}); a.Peer != farRank {
				t.Errorf("the failure of rank %d does not last: %.300s", r, a.Err)
			}
		}
	}
	return back
}

// TestWireLate cuts the wire in the midst of a long write. The others mask its rank and use the memory anew. When the
// wire is whole again, TCP sends what it holds, and nothing of it lands there.
func TestWireLate(t *testing.T) {
	const size = 32 << 20
	// TCP tries again after up to twice the time that the wire was cut, which is the heartbeat.
	w := startWired(t, 8, "1s")
	w.Must(w.all, "window", memberArgs{Bytes: size})
	begun := w.Received(0)
	w.flood(t, size)
	w.SetBoth(wire.Way{Cut: true})
	for _, r := range w.near {
		w.Tell(r, "barrier", memberArgs{})
	}
	w.Answers(w.near)
	w.Must(w.near, "mask", memberArgs{Masked: []int{farRank}})
	t.Logf("%d bytes have landed since the first", w.ones(t))
	w.SetBoth(wire.Way{})
	first := w.Received(0) - begun
	whole := time.Now()
	pass := func() {
		w.Must(w.near, "barrier", memberArgs{})
		time.Sleep(10 * time.Millisecond)
	}
	for w.Received(0)-begun < size*len(w.near) && time.Since(whole) < 8*time.Second {
		pass()
	}
	late := w.Received(0) - begun - first
	t.Logf("%d bytes were late, by %v", late, time.Since(whole))
	if late < size {
		t.Errorf("%d bytes have come late: too few to say anything", late)
	}
	for range 20 { // the ranks read what has come
		pass()
	}
	if n := w.ones(t); n > 0 {
		t.Errorf("%d bytes of the rank that is gone have landed in memory that is used anew", n)
	}
}

// TestWireMaskedAlive masks a rank in the midst of long writes: one that is well, whose wire is slow, cut for a moment
// or not; and one that is stopped, and wakes when the others use the memory anew, or while they mask it. Nothing of it
// lands there. If a write began after the mask it cannot be taken back: all are told, and the others go on.
func TestWireMaskedAlive(t *testing.T) {
	const size = 32 << 20
	for name, in := range map[string]struct{ stop, cut, wakes, whole, lost bool }{
		"well": {lost: true}, "cut for a moment": {cut: true, lost: true}, "stopped": {stop: true, lost: true},
		"stopped in one write": {stop: true, whole: true}, "wakes": {stop: true, wakes: true},
		"wakes in one write": {stop: true, wakes: true, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := startWired(t, 8, "60s")
			w.Must(w.all, "window", memberArgs{Bytes: size})
			begun, part := w.Received(0), size/128
			if in.whole {
				part = size
			}
			w.flood(t, part)
			if in.stop {
				w.Stop(farRank)
			}
			if in.cut {
				w.SetBoth(wire.Way{Cut: true})
				time.AfterFunc(100*time.Millisecond, func() { w.SetBoth(wire.Way{Delay: 5 * time.Millisecond}) })
			}
			for _, r := range w.near {
				w.Tell(r, "mask", memberArgs{Masked: []int{farRank}})
			}
			if in.wakes {
				w.Continue(farRank)
			}
			for r, a := range w.Answers(w.near) {
				if a.Err != "" {
					t.Fatalf("rank %d: %s", r, a.Err)
				}
			}
			t.Logf("%d bytes have landed since the first", w.ones(t))
			first := w.Received(0) - begun
			if in.stop && !in.wakes {
				w.Must(w.near, "repeat", memberArgs{Times: 3})
				w.Continue(farRank)
			}
			landed := 0
			for masked := time.Now(); time.Since(masked) < 500*time.Millisecond; {
				w.Must(w.near, "barrier", memberArgs{})
				time.Sleep(10 * time.Millisecond)
				landed += w.ones(t)
			}
			w.SetBoth(wire.Way{})
			t.Logf("%d bytes were late", w.Received(0)-begun-first)
			if landed > 0 {
				t.Errorf("%d bytes of the rank that is left out have landed in memory that is used anew", landed)
			}
			t.Log("its write: ", w.Answer(farRank).Err)
			if w.backOrLost(t, "left out") {
				if in.lost {
					t.Error("it is taken back, though writes that it began later are lost")
				}
				w.Must(w.all, "repeat", memberArgs{Times: 3})
				if n := w.ones(t); n > 0 {
					t.Errorf("%d bytes have landed when it was taken back", n)
				}
				return
			}
			w.Must(w.near, "mask", memberArgs{Masked: []int{farRank}})
			w.Must(w.near, "repeat", memberArgs{Times: 3})
			if n := w.ones(t); n > 0 {
				t.Errorf("%d bytes have landed after all", n)
			}
		})
	}
}

// TestWireTakenBack masks a rank that has nothing on its way, and stops it meanwhile or not. It is taken back, again
// and again, and all works as before: collectives, and writes into windows of before.
func TestWireTakenBack(t *testing.T) {
	const size = 1 << 20
	for name, stop := range map[string]bool{"well": false, "stopped": true} {
		t.Run(name, func(t *testing.T) {
			w := startWired(t, 64<<10, "60s")
			w.Must(w.all, "window", memberArgs{Bytes: size})
			for range 3 {
				if stop {
					w.Stop(farRank)
				}
				for range 2 {
					w.Must(w.near, "mask", memberArgs{Masked: []int{farRank}})
					w.Must(w.near, "repeat", memberArgs{Times: 3})
				}
				if stop {
					w.Continue(farRank)
				}
				w.Must(w.all, "mask", memberArgs{})
				w.Must(w.all, "repeat", memberArgs{Times: 10})
				w.Must([]int{farRank}, "flood", memberArgs{Bytes: size / 4})
				w.Must([]int{farRank}, "settle", memberArgs{})
				if n := w.ones(t); n != size*len(w.near) {
					t.Errorf("%d bytes have landed, of %d", n, size*len(w.near))
				}
			}
		})
	}
}

// TestWireStoppedReader stops a rank that the others write to: long writes, and what they say behind these in an
// operation, are on their way when it is masked at the deadline. They close the window that they wrote from, or use it
// anew. It wakes and is taken back, or all are told that it is lost; no other rank is to blame.
func TestWireStoppedReader(t *testing.T) {
	const size = 32 << 20
	for name, in := range map[string]struct {
		part   int
		closes bool
	}{
		"one write": {part: size}, "many writes": {part: size / 128}, "an operation": {},
		"one write, closed": {part: size, closes: true}, "many writes, closed": {part: size / 128, closes: true},
	} {
		if os.Getenv("WEFT_TEST_ALL") == "" && in.part == size/128 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWiredFor(t, 4<<20, "60s", 5*time.Second)
			w.Must(w.all, "window", memberArgs{Bytes: size})
			w.Stop(farRank)
			if in.part > 0 {
				w.Must(w.near, "flood", memberArgs{Bytes: in.part})
			}
			for r, a := range w.All(w.near, "repeat", memberArgs{Times: 1}) {
				if a.Peer != farRank || a.Cause != "timeout" {
					t.Errorf("rank %d: %s", r, a.Err)
				}
			}
			w.Must(w.near, "mask", memberArgs{Masked: []int{farRank}})
			w.Must(w.near, "repeat", memberArgs{Times: 3})
			if in.closes {
				w.Must(w.near, "close window", memberArgs{})
			}
			w.Continue(farRank)
			if w.backOrLost(t, "left out") {
				w.Must(w.all, "repeat", memberArgs{Times: 3})
				return
			}
			w.Must(w.near, "mask", memberArgs{Masked: []int{farRank}})
			w.Must(w.near, "repeat", memberArgs{Times: 3})
		})
	}
}

// TestSoakOnWire mixes collectives and messages between two hosts, whose wire loses packets and is cut again and again,
// for less than the heartbeat, which is long: the machine may be busy.
func TestSoakOnWire(t *testing.T) {
	ops := *soakOps / 10 // as many as TestSoak has take ten times as long
	if testing.Short() {
		ops = min(ops, 40)
	}
	w := startWired(t, 8, "60s")
	random := rand.New(rand.NewPCG(*soakSeed, 3))
	const atOnce = 50 // each time with other operands
	for seed := *soakSeed; ops > 0; seed++ {
		for _, r := range w.all {
			w.Tell(r, "soak", memberArgs{Times: min(ops, atOnce), Seed: seed})
		}
		w.SetBoth(wire.Way{Delay: time.Duration(random.IntN(300)) * time.Microsecond, Loss: 0.01 * random.Float64()})
		time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
		w.Set(random.IntN(2), wire.Way{Cut: true})
		time.Sleep(time.Duration(random.IntN(700)) * time.Millisecond)
		w.SetBoth(wire.Way{})
		for r, a := range w.Answers(w.all) {
			if a.Err != "" {
				t.Errorf("seed %d: rank %d: %s", seed, r, a.Err)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
		ops -= atOnce
	}
}
