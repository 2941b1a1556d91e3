//go:build linux

package faults

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/weftgo/weft/internal/ranktest/processes"
)

var (
	runs = flag.Int("faults.runs", 10, "jobs of TestFaults")
	seed = flag.Uint64("faults.seed", 1, "seed of TestFaults")
	only = flag.Int("faults.only", -1, "the one job of TestFaults to run")
)

// fault is what happens to a rank.
type fault struct {
	rank  int
	after time.Duration // that the workers were told to begin, or, if it waits for all to have joined, that they have
	early bool
	stop  time.Duration // 0: it is killed

	at, woken time.Time
}

// String says it as a log has it.
func (f *fault) String() string {
	what, when := "killed", "after all had joined"
	if f.stop > 0 {
		what = fmt.Sprintf("stopped for %v", f.stop)
	}
	if f.early {
		when = "after the start"
	}
	return fmt.Sprintf("rank %d %s %v %s", f.rank, what, f.after, when)
}

// slack is by how much an error may be later than the death of a rank, or than the deadline.
const slack = 30 * time.Second

// job is a run of workers with its faults.
type job struct {
	t        *testing.T
	crew     *processes.Crew
	size     int
	folder   string
	stubborn bool
	faults   []*fault
	begun    time.Time
}

// TestFaults runs jobs of 2, 4 and 8 ranks, one or two of which are killed, or stopped and woken,
// while they join and work, at moments that the seed gives. No error names a rank that nothing has
// happened to, or comes later than it should; and the ranks that go on are all others, in one job.
func TestFaults(t *testing.T) {
	n := *runs
	if testing.Short() {
		n = min(n, 4)
	}
	for i := range n {
		if *only >= 0 && i != *only {
			continue
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			newJob(t, rand.New(rand.NewPCG(*seed, uint64(i)))).run()
		})
	}
}

func newJob(t *testing.T, random *rand.Rand) *job {
	between := func(low, high time.Duration) time.Duration {
		return (low + time.Duration(random.Int64N(int64(high-low)))).Round(time.Millisecond)
	}
	j := &job{t: t, size: []int{2, 4, 8}[random.IntN(3)], folder: t.TempDir(), stubborn: random.IntN(4) == 0}
	victims := 1
	if j.size > 2 && random.IntN(3) == 0 {
		victims = 2
	}
	ranks := random.Perm(j.size)
	for i := range victims {
		f := &fault{rank: ranks[i], early: random.IntN(4) == 0, after: between(0, 400*time.Millisecond)}
		if i > 0 {
			f.early, f.after = j.faults[0].early, f.after+between(0, 1500*time.Millisecond)
		}
		switch random.IntN(5) {
		case 0:
			f.stop = between(20*time.Millisecond, deadline/2)
		case 1, 2:
			f.stop = between(deadline*3/4, deadline*5/4)
		case 3:
			f.stop = between(deadline, 2*deadline)
		}
		j.faults = append(j.faults, f)
	}
	return j
}

func (j *job) run() {
	t := j.t
	t.Logf("%d ranks, stubborn %v", j.size, j.stubborn)
	for _, f := range j.faults {
		t.Log(f)
	}
	j.crew = processes.Start(t, "worker", j.size)
	args := workerArgs{ID: j.crew.ID(), Folder: j.folder, Stubborn: j.stubborn}
	for r := range j.size {
		j.crew.Tell(r, "work", args)
	}
	j.begun = time.Now()
	// A job that hangs is told apart from one that ends late.
	limit := time.Now().Add(time.Minute)
	settled := func() bool { return j.all(func(_ int, e event) bool { return e.last() || !e.At.IsZero() }) }
	j.wait(limit, "all to have joined, or none", func() bool { return j.faults[0].early || settled() })
	j.apply()
	last := j.faults[0].at
	for _, f := range j.faults {
		if last.Before(f.at) {
			last = f.at
		}
		if last.Before(f.woken) {
			last = f.woken
		}
	}
	j.wait(limit, "rounds after the last fault, or the end, on all ranks", func() bool {
		return j.all(func(_ int, e event) bool { return e.last() || e.What == round && e.Start.After(last) })
	})
	if err := os.WriteFile(endOf(j.folder), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for r := range j.size {
		if !j.killed(r) {
			j.crew.Answer(r)
		}
	}
	j.judge()
	if t.Failed() {
		j.show()
	}
}

// apply makes the faults happen, in their order.
func (j *job) apply() {
	start := time.Now()
	type act struct {
		at time.Duration
		do func()
	}
	var acts []act
	for _, f := range j.faults {
		acts = append(acts, act{f.after, func() {
			f.at = time.Now()
			if f.stop == 0 {
				j.crew.Kill(f.rank)
				return
			}
			j.crew.Stop(f.rank)
		}})
		if f.stop > 0 {
			acts = append(acts, act{f.after + f.stop, func() {
				f.woken = time.Now()
				j.crew.Continue(f.rank)
			}})
		}
	}
	for len(acts) > 0 {
		next := 0
		for i := range acts {
			if acts[i].at < acts[next].at {
				next = i
			}
		}
		time.Sleep(time.Until(start.Add(acts[next].at)))
		acts[next].do()
		acts = append(acts[:next], acts[next+1:]...)
	}
}

// wait looks for a condition until the limit.
func (j *job) wait(limit time.Time, what string, met func() bool) {
	for !met() {
		if time.Now().After(limit) {
			j.show()
			j.t.Fatalf("waits in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (j *job) show() {
	for r := range j.size {
		events := j.events(r)
		for _, e := range events[max(0, len(events)-12):] {
			j.t.Logf("rank %d: %v..%v %s %s peer %d %s %#x of %d: %s", r, e.Start.Sub(j.begun),
				e.At.Sub(j.begun), e.What, e.Op, e.Peer, e.Cause, e.Mask, e.Generation, e.Err)
		}
	}
	for _, f := range j.faults {
		j.t.Logf("%v: at %v, woken at %v", f, f.at.Sub(j.begun), f.woken.Sub(j.begun))
	}
}

// events reads a rank's log.
func (j *job) events(rank int) (all []event) {
	raw, err := os.ReadFile(logOf(j.folder, rank))
	if err != nil {
		return nil // it has not begun
	}
	for line := range bytes.Lines(raw) {
		var e event
		if json.Unmarshal(line, &e) == nil { // else it is being written, or was when its writer died
			all = append(all, e)
		}
	}
	return all
}

func (j *job) fault(rank int) *fault {
	for _, f := range j.faults {
		if f.rank == rank {
			return f
		}
	}
	return nil
}

func (j *job) killed(rank int) bool {
	f := j.fault(rank)
	return f != nil && f.stop == 0 && !f.at.IsZero()
}

// all reports whether something is true of the last events of all ranks that live.
func (j *job) all(is func(rank int, e event) bool) bool {
	for r := range j.size {
		if j.killed(r) {
			continue
		}
		var last event
		if events := j.events(r); len(events) > 0 {
			last = events[len(events)-1]
		}
		if !is(r, last) {
			return false
		}
	}
	return true
}

// judge checks what the ranks have met.
func (j *job) judge() {
	t := j.t
	end := make([]event, j.size)
	gone := make([]time.Time, j.size) // when a rank ended before its time
	anyLost := false
	for r := range j.size {
		events := j.events(r)
		if len(events) == 0 || j.killed(r) {
			continue
		}
		end[r] = events[len(events)-1]
		if end[r].What == lost || end[r].What == out {
			gone[r] = end[r].At
		}
		anyLost = anyLost || end[r].What == lost
	}
	members, generation := uint64(0), uint64(0)
	for r := range j.size {
		for _, e := range j.events(r) {
			if e.Err != "" {
				j.judgeError(r, e, gone)
			}
		}
		switch {
		case j.killed(r):
		case end[r].What == done:
			if members != 0 && (end[r].Mask != ^members&(1<<uint(j.size)-1) || end[r].Generation != generation) {
				t.Errorf("rank %d ends in generation %d without %#x, others in %d of %#x: two jobs", r,
					end[r].Generation, end[r].Mask, generation, members)
			}
			members, generation = ^end[r].Mask&(1<<uint(j.size)-1), end[r].Generation
		case j.fault(r) == nil && !anyLost && !j.stubborn:
			t.Errorf("rank %d, to which nothing has happened, ends as %s: %s", r, end[r].What, end[r].Err)
		}
	}
	for r := range j.size {
		if members>>uint(r)&1 != 0 && end[r].What != done {
			t.Errorf("rank %d is a member of the job that went on, and is %s", r, end[r].What)
		}
	}
	if members == 0 && !anyLost {
		t.Error("nobody goes on")
	}
	if len(j.faults) == 1 && j.faults[0].stop > 0 && j.faults[0].stop < deadline/2 && bits.OnesCount64(members) < j.size {
		t.Errorf("after a stop of %v the members are %#x", j.faults[0].stop, members)
	}
}

// judgeError checks whom an error names and when it came.
func (j *job) judgeError(rank int, e event, gone []time.Time) {
	t := j.t
	if e.Cause == "mismatch" && e.Op == "set mask" { // the sets of two ranks, nobody's fault
		return
	}
	own := j.fault(rank)
	start := e.Start
	if own != nil && start.Before(own.woken) {
		start = own.woken
	}
	limit := deadline
	if e.Op == "join" {
		limit += patience
	}
	if e.Peer >= 0 {
		f := j.fault(e.Peer)
		switch {
		case e.Peer == rank && e.Cause == "masked" && j.stubborn:
		// it had given up before
		case f == nil && !gone[e.Peer].IsZero() && gone[e.Peer].Before(e.At.Add(slack)):
		case f == nil:
			t.Errorf("rank %d names rank %d, to which nothing has happened: %s: %s", rank, e.Peer, e.Op, e.Err)
		case f.at.After(e.At):
			t.Errorf("rank %d names rank %d before anything has happened to it: %s: %s", rank, e.Peer, e.Op, e.Err)
		case f.stop == 0:
			if start.Before(f.at) {
				start = f.at
			}
			if e.Op != "join" && e.Cause == "died" {
				limit = 0
			}
		case start.Before(f.at):
			start = f.at
		}
	} else if e.Op != "join" {
		t.Errorf("rank %d names nobody: %s: %s", rank, e.Op, e.Err)
	}
	if took := e.At.Sub(start); took > limit+slack {
		t.Errorf("rank %d's error came after %v: %s: %s", rank, took, e.Op, e.Err)
	}
}
