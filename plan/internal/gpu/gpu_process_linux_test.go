package gpu_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/ranktest/processes"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// playPart makes this process a rank, if a test has started it as one.
func playPart() bool {
	return processes.Main(map[string]func() processes.Part{"member": func() processes.Part { return &member{} }})
}

// member is a rank on a GPU, in a process of its own, that runs a plan again and again.
type member struct {
	rank
	plan  *executor.Plan
	times uint64
}

type memberArgs struct {
	ID       string
	GPUs     processes.GPUs
	Plan     int    // of interrupted
	Hosts    string // names of the ranks' hosts; "": all are of one
	Deadline time.Duration
	Times    int
	Masked   []int
}

// interrupted are plans whose ranks are killed and stopped.
var interrupted = []plantest.Program{
	{Name: "packets", Build: func() *plan.Plan { return plantest.TwoPhasePackets(3) }},
	{Name: "signals", Build: func() *plan.Plan { return plantest.TwoShot(3) }},
	{Name: "ports", Build: func() *plan.Plan { return plantest.Sends(3, 1) }},
	{Name: "pipelines", Build: func() *plan.Plan { return plantest.Pipelined(3) }},
}

func (m *member) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a memberArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch c.Do {
	case "join":
		return nil, m.join(ctx, r, a)
	case "repeat":
		for range a.Times {
			if err := m.again(ctx); err != nil {
				return nil, err
			}
		}
		return nil, nil
	case "refused":
		if err := m.again(ctx); !errors.Is(err, weft.ErrMasked) {
			return nil, fmt.Errorf("with a masked rank: %w", err)
		}
		return nil, nil
	case "mask":
		m.times = 0 // a rank that was interrupted may have made one call more than another
		return nil, m.comm.SetMask(ctx, a.Masked...)
	case "close":
		return nil, errors.Join(m.Close(), m.memory.Close(), m.comm.Close())
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

func (m *member) join(ctx context.Context, r *processes.Rank, a memberArgs) (err error) {
	if a.Hosts != "" {
		if err := os.Setenv("WEFT_HOSTID", "host "+a.Hosts[r.Rank:][:1]); err != nil {
			return err
		}
	}
	if m.comm, err = r.JoinOnGPU(a.ID, a.GPUs, weft.WithDeadline(a.Deadline)); err != nil {
		return err
	}
	if m.memory, err = m.comm.Device().Context().Alloc(64 << 10); err != nil {
		return err
	}
	if m.Executor, err = executor.New(ctx, m.comm, executor.Options{}); err != nil {
		return err
	}
	plans := interrupted
	if a.Hosts != "" {
		plans = plantest.Across(a.Hosts)
	}
	f, err := plans[a.Plan].Build().Build()
	if err != nil {
		return err
	}
	m.plan, err = m.Load(ctx, f)
	return err
}

// again runs the plan once more, and looks at what it leaves now and then.
func (m *member) again(ctx context.Context) error {
	l := launchOf{dtype: weft.Int32, chunk: 512}
	if m.times++; m.times%8 == 1 {
		return m.launch(ctx, m.plan, l, m.times)
	}
	f, me := m.plan.File(), m.comm.Rank()
	inAt, outAt, _ := f.Place(me, l.chunk)
	at := func(offset, chunks int) weft.Tensor {
		return weft.DeviceTensor(cuda.Pointer(m.memory.Pointer()).Add(offset), l.dtype, chunks*l.chunk/l.dtype.Size())
	}
	return m.plan.Execute(ctx, nil, at(outAt, f.Ranks[me].Output), at(inAt, f.Ranks[me].Input))
}

// testKilled kills a rank while all run a plan again and again: the others say which one at once, and refuse plans
// while it is masked.
func testKilled(t *testing.T, emulated bool) {
	const size, victim = 3, 1
	gpus := processes.GPUs{Emulated: emulated, Dir: t.TempDir()}
	for i, p := range someOf(emulated) {
		t.Run(p.Name, func(t *testing.T) {
			crew := processes.Start(t, "member", size)
			args := memberArgs{ID: crew.ID(), GPUs: gpus, Plan: i, Deadline: patience, Times: 20}
			crew.Must([]int{0, 1, 2}, "join", args)
			crew.Must([]int{0, 1, 2}, "repeat", args)
			args.Times = 1 << 30
			for r := range size {
				crew.Tell(r, "repeat", args)
			}
			time.Sleep(50 * time.Millisecond)
			crew.Kill(victim)
			survivors := slices.DeleteFunc([]int{0, 1, 2}, func(r int) bool { return r == victim })
			for r, a := range crew.Answers(survivors) {
				if a.Peer != victim || a.Cause != "died" {
					t.Errorf("rank %d after the death of %d: %q (%s, rank %d)", r, victim, a.Err, a.Cause, a.Peer)
				}
			}
			args.Masked = []int{victim}
			crew.Must(survivors, "mask", args)
			crew.Must(survivors, "refused", args)
			crew.Must(survivors, "close", args)
		})
	}
}

// testStopped stops a rank: the others' waits end at the deadline, and all go on when it is back.
func testStopped(t *testing.T, emulated bool) {
	const size, victim = 3, 1
	gpus, deadline := processes.GPUs{Emulated: emulated, Dir: t.TempDir()}, 2*time.Second
	if !emulated {
		deadline = 8 * time.Second // processes that join make their contexts on the same GPU
	}
	for i, p := range someOf(emulated) {
		t.Run(p.Name, func(t *testing.T) {
			crew := processes.Start(t, "member", size)
			args := memberArgs{ID: crew.ID(), GPUs: gpus, Plan: i, Deadline: deadline, Times: 20}
			crew.Must([]int{0, 1, 2}, "join", args)
			crew.Must([]int{0, 1, 2}, "repeat", args)
			args.Times = 1 << 30
			for r := range size {
				crew.Tell(r, "repeat", args)
			}
			time.Sleep(50 * time.Millisecond)
			crew.Stop(victim)
			for r, a := range crew.Answers([]int{0, 2}) {
				if a.Err == "" {
					t.Errorf("rank %d went on without rank %d", r, victim)
				}
			}
			crew.Continue(victim)
			if a := crew.Answer(victim); a.Err == "" {
				t.Errorf("rank %d, which was stopped, went on without the others", victim)
			}
			args.Times = 20
			crew.Must([]int{0, 1, 2}, "mask", args)
			crew.Must([]int{0, 1, 2}, "repeat", args)
			crew.Must([]int{0, 1, 2}, "close", args)
		})
	}
}

// someOf are the plans that are interrupted: on emulated GPUs one, unless everything is asked for.
func someOf(emulated bool) []plantest.Program {
	if emulated && !emulate.Everything() {
		return interrupted[:1]
	}
	return interrupted
}

func TestKilledRankOnEmulatedGPUs(t *testing.T) {
	emulate.Need(t)
	testKilled(t, true)
}

// TestKilledRankOnGPUs is the same on real ones.
func TestKilledRankOnGPUs(t *testing.T) {
	ranktest.Real(t)
	testKilled(t, false)
}

func TestStoppedRankOnEmulatedGPUs(t *testing.T) {
	emulate.Need(t)
	testStopped(t, true)
}

// TestStoppedRankOnGPUs is the same on real ones.
func TestStoppedRankOnGPUs(t *testing.T) {
	ranktest.Real(t)
	testStopped(t, false)
}

// TestKilledRankAcrossOnEmulatedGPUs kills a rank of processes on two hosts, which exchange by libfabric: the others
// say which one, and refuse plans while it is masked.
func TestKilledRankAcrossOnEmulatedGPUs(t *testing.T) {
	emulate.Need(t)
	if err := fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1}).Close(); err != nil {
		t.Fatal(err)
	}
	const victim, hosts = 2, "aab"
	all := []int{0, 1, 2}
	gpus := processes.GPUs{Emulated: true, Dir: t.TempDir()}
	for i, p := range plantest.Across(hosts) {
		if i != 2 && !emulate.Everything() {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			crew := processes.Start(t, "member", len(hosts))
			args := memberArgs{ID: crew.ID(), GPUs: gpus, Plan: i, Deadline: patience, Times: 5, Hosts: hosts}
			crew.Must(all, "join", args)
			crew.Must(all, "repeat", args)
			args.Times = 1 << 30
			for r := range hosts {
				crew.Tell(r, "repeat", args)
			}
			time.Sleep(50 * time.Millisecond)
			crew.Kill(victim)
			for r, a := range crew.Answers(all[:2]) {
				if a.Peer != victim || a.Cause != "died" {
					t.Errorf("rank %d after the death of %d: %q (%s, rank %d)", r, victim, a.Err, a.Cause, a.Peer)
				}
			}
			args.Masked = []int{victim}
			crew.Must(all[:2], "mask", args)
			crew.Must(all[:2], "refused", args)
			crew.Must(all[:2], "close", args)
		})
	}
}
