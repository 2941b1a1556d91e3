package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest/processes"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// playPart makes this process a rank, if a test has started it as one.
func playPart() bool {
	return processes.Main(map[string]func() processes.Part{
		"member": func() processes.Part { return &member{} },
	})
}

// member is a rank that runs a plan again and again, and checks each result.
type member struct {
	comm     *weft.Comm
	executor *executor.Executor
	file     *plan.File
	plan     *executor.Plan
	steps    int // of the launch in progress
}

type memberArgs struct {
	ID       string
	Deadline time.Duration
	Plan     string
	Across   bool // hosts
	Step     int
	Times    int
	Masked   []int
}

// interrupted are plans whose ranks are killed and stopped: through windows, with packets, through ports.
var interrupted = map[string]func() *plan.Plan{
	"two-shot":  func() *plan.Plan { return plantest.TwoShotApart(3) },
	"two-phase": func() *plan.Plan { return plantest.TwoPhasePackets(3) },
	"forward":   func() *plan.Plan { return plantest.Forward(3, true) },
	"sends":     func() *plan.Plan { return plantest.Sends(3, 0) },
}

// interruptedAcross are those of three ranks on two hosts.
var interruptedAcross = map[string]func() *plan.Plan{
	"gather":   func() *plan.Plan { return plantest.GatherAcross("aab") },
	"exchange": func() *plan.Plan { return plantest.ExchangeAcross("aab") },
	"forward":  func() *plan.Plan { return plantest.Forward(3, true) },
	"sends":    func() *plan.Plan { return plantest.Sends(3, 0) },
}

func (m *member) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a memberArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	switch c.Do {
	case "join":
		return nil, m.join(ctx, r, a)
	case "count": // the operations of a launch
		m.steps = 0
		m.plan.OnStep(func() { m.steps++ })
		return nil, m.launch(ctx)
	case "halt": // before an operation, when the others can do no more without this rank
		var stuck error
		at := func() {
			if stuck = m.othersWait(ctx); stuck == nil {
				r.Pause()
			}
		}
		if a.Step > m.steps {
			a.Step = m.steps
		}
		if a.Step == 0 {
			at()
		}
		done := 0
		m.plan.OnStep(func() {
			if done++; done == a.Step {
				at()
			}
		})
		return nil, errors.Join(stuck, m.launch(ctx))
	case "repeat":
		for range a.Times {
			if err := m.launch(ctx); err != nil {
				return nil, err
			}
		}
		return nil, nil
	case "mask":
		return nil, m.comm.SetMask(ctx, a.Masked...)
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

func (m *member) join(ctx context.Context, r *processes.Rank, a memberArgs) (err error) {
	if m.comm, err = r.Join(a.ID, weft.WithDeadline(a.Deadline)); err != nil {
		return err
	}
	if m.executor, err = executor.New(ctx, m.comm, executor.Options{}); err != nil {
		return err
	}
	plans := interrupted
	if a.Across {
		plans = interruptedAcross
	}
	if m.file, err = plans[a.Plan]().Build(); err != nil {
		return err
	}
	m.plan, err = m.executor.Load(ctx, m.file)
	return err
}

func (m *member) launch(ctx context.Context) error {
	return run(ctx, m.comm, m.plan, weft.Float32, inNone, 512)
}

// othersWait returns when every other rank waits for this one, or for a rank that does.
func (m *member) othersWait(ctx context.Context) error {
	peers, self := m.comm.Operations().Waiter().Peers, m.comm.Rank()
	for r := range peers {
		for r != self {
			w := peers[r].Record()
			if w.Peer >= 0 && w.Peer != self {
				w = peers[w.Peer].Record()
			}
			if w.Peer == self {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("rank %d: %v: %w", r, w, ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

// startCrew starts ranks that run a plan, has one halt before an operation, and returns the others.
func startCrew(t *testing.T, name string, across bool, deadline time.Duration, victim, step int) (crew *processes.Crew,
	others []int,
) {
	t.Helper()
	crew = processes.StartWith(t, "member", 3, func(rank int) []string {
		if !across {
			return nil
		}
		return []string{"WEFT_HOSTID=" + "aab"[rank:][:1]}
	})
	crew.Must([]int{0, 1, 2}, "join", memberArgs{ID: crew.ID(), Deadline: deadline, Plan: name, Across: across})
	crew.Must([]int{0, 1, 2}, "count", memberArgs{})
	for r := range 3 {
		if r != victim {
			others = append(others, r)
			crew.Tell(r, "repeat", memberArgs{Times: 3})
		}
	}
	if a := crew.Ask(victim, "halt", memberArgs{Step: step}); a.Err != "" {
		t.Fatalf("rank %d does not get to step %d: %s", victim, step, a.Err)
	}
	return crew, others
}

// points are operations before which ranks are killed and stopped; the last one is behind all.
var points = []int{0, 1, 3, 100}

// interruptions calls for each plan, on one host and on two, and each of the points, or one of these.
func interruptions(t *testing.T, each func(t *testing.T, name string, across bool, step, victim int)) {
	k := 0
	for _, across := range []bool{false, true} {
		plans, words := interrupted, ""
		if across {
			if err := fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1}).Close(); err != nil {
				t.Error(err)
			}
			plans, words = interruptedAcross, " across hosts"
		}
		for _, name := range slices.Sorted(maps.Keys(plans)) {
			k++
			for i, step := range points {
				if os.Getenv("WEFT_TEST_ALL") == "" && i != k%len(points) {
					continue
				}
				victim := (k + i/2) % 3
				t.Run(fmt.Sprintf("%s%s step %d rank %d", name, words, step, victim), func(t *testing.T) {
					each(t, name, across, step, victim)
				})
			}
		}
	}
}

// TestKilledRank kills a rank in plans: the others return an error that names it, and what they ran.
func TestKilledRank(t *testing.T) {
	interruptions(t, func(t *testing.T, name string, across bool, step, victim int) {
		crew, others := startCrew(t, name, across, 30*time.Second, victim, step)
		crew.Kill(victim)
		for r, f := range crew.Answers(others) {
			if f.Peer != victim || f.Cause != "died" || !strings.Contains(f.Err, "plan ") {
				t.Errorf("rank %d fails: %+v", r, f)
			}
		}
		// A plan has work for all ranks: the others refuse it, and can do all else.
		crew.Must(others, "mask", memberArgs{Masked: []int{victim}})
		for r, f := range crew.All(others, "repeat", memberArgs{Times: 1}) {
			if !strings.Contains(f.Err, "is masked") || f.Took > 30*time.Second {
				t.Errorf("rank %d runs a plan without rank %d: %+v", r, victim, f)
			}
		}
	})
}

// TestStoppedRank stops a rank in plans: the others return an error that names it at their deadline.
func TestStoppedRank(t *testing.T) {
	interruptions(t, func(t *testing.T, name string, across bool, step, victim int) {
		t.Parallel() // they wait
		deadline := 2 * time.Second
		if across { // to join takes longer
			deadline = 6 * time.Second
		}
		crew, others := startCrew(t, name, across, deadline, victim, step)
		crew.Stop(victim)
		for r, f := range crew.Answers(others) {
			if f.Took < deadline*9/10 || f.Peer != victim || f.Cause != "timeout" {
				t.Errorf("rank %d fails: %+v", r, f)
			}
		}
		if across && victim == 0 {
			return // what ranks of different hosts say to each other goes by its process, until that is given up
		}
		crew.Must(others, "mask", memberArgs{Masked: []int{victim}})
		crew.Continue(victim)
		f := crew.Ask(victim, "go on", nil)
		if across && f.Err == "" { // all that it needed was there, and the news of the others has yet to come
			f = crew.Ask(victim, "repeat", memberArgs{Times: 1_000})
		}
		if f.Peer < 0 {
			t.Errorf("the stopped rank wakes up to %+v", f)
		}
	})
}
