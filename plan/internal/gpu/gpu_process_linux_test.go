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

// everyone is the ranks of a crew.
var everyone = []int{0, 1, 2}

// repeating starts processes that run a plan again and again, after they have ended some launches.
func repeating(t *testing.T, args memberArgs, times int) (*processes.Crew, memberArgs) {
	t.Helper()
	crew := processes.Start(t, "member", len(everyone))
	args.ID, args.Times = crew.ID(), times
	crew.Must(everyone, "join", args)
	crew.Must(everyone, "repeat", args)
	args.Times = 1 << 30
	for _, r := range everyone {
		crew.Tell(r, "repeat", args)
	}
	time.Sleep(50 * time.Millisecond)
	return crew, args
}

// but is everyone but one.
func but(victim int) []int {
	return slices.DeleteFunc(slices.Clone(everyone), func(r int) bool { return r == victim })
}

// killed kills a rank while all run a plan again and again: the others say which one at once, and refuse plans while
// it is masked.
func killed(t *testing.T, args memberArgs, victim int) {
	args.Deadline = patience
	crew, args := repeating(t, args, 20)
	crew.Kill(victim)
	survivors := but(victim)
	for r, a := range crew.Answers(survivors) {
		if a.Peer != victim || a.Cause != "died" {
			t.Errorf("rank %d after the death of %d: %q (%s, rank %d)", r, victim, a.Err, a.Cause, a.Peer)
		}
	}
	args.Masked = []int{victim}
	crew.Must(survivors, "mask", args)
	crew.Must(survivors, "refused", args)
	crew.Must(survivors, "close", args)
}

// stopped stops a rank: the others' waits end at the deadline, and all go on when it is back.
func stopped(t *testing.T, args memberArgs, victim int) {
	crew, args := repeating(t, args, 20)
	crew.Stop(victim)
	for r, a := range crew.Answers(but(victim)) {
		if a.Err == "" {
			t.Errorf("rank %d went on without rank %d", r, victim)
		}
		t.Logf("rank %d: %s", r, a.Err)
	}
	crew.Continue(victim)
	if a := crew.Answer(victim); a.Err == "" {
		t.Errorf("rank %d, which was stopped, went on without the others", victim)
	}
	args.Times = 20
	crew.Must(everyone, "mask", args)
	crew.Must(everyone, "repeat", args)
	crew.Must(everyone, "close", args)
}

// someOf are the plans that are interrupted: on emulated GPUs one, unless everything is asked for.
func someOf(emulated bool) []plantest.Program {
	if emulated && !emulate.Everything() {
		return interrupted[:1]
	}
	return interrupted
}

func testKilled(t *testing.T, emulated bool) {
	gpus := processes.GPUs{Emulated: emulated, Dir: t.TempDir()}
	for i, p := range someOf(emulated) {
		t.Run(p.Name, func(t *testing.T) { killed(t, memberArgs{GPUs: gpus, Plan: i}, 1) })
	}
}

func testStopped(t *testing.T, emulated bool) {
	args := memberArgs{GPUs: processes.GPUs{Emulated: emulated, Dir: t.TempDir()}, Deadline: 2 * time.Second}
	if !emulated {
		args.Deadline = 8 * time.Second // processes that join make their contexts on the same GPU
	}
	for i, p := range someOf(emulated) {
		args.Plan = i
		t.Run(p.Name, func(t *testing.T) { stopped(t, args, 1) })
	}
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

// acrossCrews calls for plans of processes on two hosts, which exchange by libfabric: one of them, unless everything is
// asked for.
func acrossCrews(t *testing.T, each func(t *testing.T, args memberArgs, number int)) {
	emulate.Need(t)
	if err := fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1}).Close(); err != nil {
		t.Fatal(err)
	}
	const hosts = "aab"
	args := memberArgs{GPUs: processes.GPUs{Emulated: true, Dir: t.TempDir()}, Hosts: hosts}
	for i, p := range plantest.Across(hosts) {
		if args.Plan = i; i == 2 || emulate.Everything() {
			t.Run(p.Name, func(t *testing.T) { each(t, args, i) })
		}
	}
}

// TestKilledRankAcrossOnEmulatedGPUs kills a rank of another host.
func TestKilledRankAcrossOnEmulatedGPUs(t *testing.T) {
	acrossCrews(t, func(t *testing.T, args memberArgs, _ int) { killed(t, args, 2) })
}

// TestStoppedRankAcrossOnEmulatedGPUs stops the rank that is alone on its host, or the one beside rank 0.
func TestStoppedRankAcrossOnEmulatedGPUs(t *testing.T) {
	t.Setenv("WEFT_HEARTBEAT", "60s") // no host is given up
	acrossCrews(t, func(t *testing.T, args memberArgs, number int) {
		args.Deadline = 6 * time.Second // to join takes longer
		stopped(t, args, 2-number%2)
	})
}
