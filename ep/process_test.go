//go:build unix

package ep_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

// playPart makes this process a rank of a test, if a test has started it as one.
func playPart() bool {
	return processes.Main(map[string]func() processes.Part{
		"exchange":     func() processes.Part { return &exchange{} },
		"construction": func() processes.Part { return &construction{} },
		"conformance":  func() processes.Part { return &conformance{} },
		"gpu":          func() processes.Part { return &gpuConformance{} },
		"gpu-exchange": func() processes.Part { return &gpuExchange{} },
	})
}

// exchange is the part of a rank that does what it is told, one operation at a time.
type exchange struct {
	comm   *weft.Comm
	engine *eptest.Host
	handle *ep.Handle
	steps  *eptest.Steps
}

type exchangeArgs struct {
	ID       string
	Deadline time.Duration
	Op       string
	Seed     uint64
	Masked   []int
	Peer     int
	Pause    bool
	Rounds   int
	Every    int
	GPUs     processes.GPUs
}

func exchangeSpec(ranks int) ep.Spec {
	s := small(ranks)
	s.Layout, s.Reduction = ep.ExpertPacked, ep.Partial
	s.Alignment = 4
	return s
}

func (e *exchange) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a exchangeArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch c.Do {
	case "join":
		var err error
		if e.comm, err = r.Join(a.ID, weft.WithDeadline(a.Deadline)); err != nil {
			return nil, err
		}
		e.engine = eptest.NewHostRank(e.comm)
		e.handle, err = ep.NewHandle(ctx, e.comm, exchangeSpec(r.Size))
		return nil, err
	case "begin": // a batch, up to where the other operations can be made
		return nil, e.begin(ctx, a)
	case "op":
		if a.Pause {
			e.steps.Between = r.Pause
		}
		return nil, e.op(ctx, a.Op)
	case "fail": // what was published before the failure may still do; then the next operation fails
		start := time.Now()
		err := e.op(ctx, a.Op)
		for range 4 {
			if err != nil {
				break
			}
			start = time.Now()
			err = e.steps.Prepare(ctx)
		}
		return time.Since(start), err
	case "await": // until the peer waits inside the operation
		return nil, e.await(ctx, a.Peer, a.Op)
	case "mask":
		return nil, e.comm.SetMask(ctx, a.Masked...)
	case "rounds":
		for i := range max(1, a.Rounds) {
			a.Seed++
			if err := e.round(ctx, a); err != nil {
				return nil, fmt.Errorf("round %d: %w", i, err)
			}
		}
		return nil, nil
	case "close":
		return nil, errors.Join(e.handle.Close(), e.comm.Close())
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

func (e *exchange) begin(ctx context.Context, a exchangeArgs) error {
	if e.steps != nil {
		if err := e.steps.Free(); err != nil {
			return err
		}
	}
	batch := eptest.Fixed(exchangeSpec(e.comm.Size()), e.comm.Size(), a.Seed)
	batch.Split = true
	var err error
	if e.steps, err = batch.Batch(a.Masked...).Steps(e.engine, e.comm, e.handle); err != nil {
		return err
	}
	return e.steps.Prepare(ctx)
}

func (e *exchange) op(ctx context.Context, op string) error {
	switch op {
	case "prepare":
		return e.steps.Prepare(ctx)
	case "dispatch":
		return e.steps.Dispatch(ctx, 0)
	case "combine":
		return e.steps.Combine(ctx)
	case "dispatch backward":
		return e.steps.DispatchBackward(ctx)
	default:
		return e.steps.CombineBackward(ctx)
	}
}

func (e *exchange) round(ctx context.Context, a exchangeArgs) error {
	if err := e.begin(ctx, a); err != nil {
		return err
	}
	for _, op := range operations[1:] {
		if err := e.op(ctx, op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return nil
}

func (e *exchange) await(ctx context.Context, peer int, op string) error {
	for {
		if r := e.comm.Operations().Waiter().Peers[peer].Record(); r.Peer >= 0 && r.Op == op {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("rank %d never waits in %s: %w", peer, op, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// without lists the ranks below n that are not in out.
func without(n int, out ...int) []int {
	var rest []int
	for r := range n {
		if !slices.Contains(out, r) {
			rest = append(rest, r)
		}
	}
	return rest
}

const crewSize = 4

func startExchange(t *testing.T, deadline time.Duration, hosts string) *processes.Crew {
	t.Helper()
	crew := processes.StartWith(t, "exchange", crewSize, onHost(hosts))
	crew.Must(without(crewSize), "join", exchangeArgs{ID: crew.ID(), Deadline: deadline})
	return crew
}

// onHost is the environment of ranks on hosts of the given names, a letter for each rank; none: all are on this one.
func onHost(hosts string) func(rank int) []string {
	return func(rank int) []string {
		if hosts == "" {
			return nil
		}
		return []string{"WEFT_HOSTID=" + hosts[rank:][:1], "WEFT_HEARTBEAT=12s"}
	}
}

// The phases at which a rank is lost.
const (
	before  = "before"  // it never enters the operation
	between = "between" // it has sent and not received
	inside  = "inside"  // it waits for a peer in the middle of the operation
)

func phases(op string) []string {
	if op == "dispatch" || op == "combine" {
		return []string{before, between, inside}
	}
	return []string{before, inside}
}

// lose takes the victim to the phase of the operation and calls end on it, while the others are in
// the operation or enter it. It returns how the others fared.
func lose(crew *processes.Crew, alive []int, victim int, op, phase string, end func(int)) map[int]processes.Answer {
	survivors := slices.DeleteFunc(slices.Clone(alive), func(r int) bool { return r == victim })
	args := exchangeArgs{Op: op}
	switch phase {
	case before:
		end(victim)
	case between:
		args := args
		args.Pause = true
		crew.Ask(victim, "op", args)
		end(victim)
	case inside:
		// One rank is held back, so that the victim waits for it.
		held := survivors[0]
		crew.Tell(victim, "op", args)
		for _, r := range survivors[1:] {
			crew.Tell(r, "fail", args)
		}
		crew.Must([]int{held}, "await", exchangeArgs{Peer: victim, Op: op})
		end(victim)
		crew.Tell(held, "fail", args)
		return crew.Answers(survivors)
	}
	return crew.All(survivors, "fail", args)
}

// TestKill kills every rank at every phase of every operation. The survivors say which one within
// two seconds, leave it out, and go on with right results.
func TestKill(t *testing.T) {
	for i, op := range operations {
		for j, phase := range phases(op) {
			for k, victims := range [][]int{{0, 3}, {2, 1}} {
				if testing.Short() && (i+j+k)%6 != 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%v", op, phase, victims), func(t *testing.T) {
					killOneByOne(t, op, phase, victims, "")
				})
			}
		}
	}
}

func killOneByOne(t *testing.T, op, phase string, victims []int, hosts string) {
	crew := startExchange(t, 30*time.Second, hosts)
	for i, victim := range victims {
		gone := victims[:i]
		alive := without(crewSize, gone...)
		crew.Must(alive, "begin", exchangeArgs{Seed: uint64(i), Masked: gone})
		for r, a := range lose(crew, alive, victim, op, phase, crew.Kill) {
			if a.Peer != victim || a.Cause != "died" {
				t.Errorf("rank %d after the death of %d: %q (%s, rank %d)", r, victim, a.Err, a.Cause, a.Peer)
			}
		}
		gone = victims[:i+1]
		alive = without(crewSize, gone...)
		crew.Must(alive, "mask", exchangeArgs{Masked: gone})
		crew.Must(alive, "rounds", exchangeArgs{Seed: 100, Masked: gone, Rounds: 3})
	}
	crew.Must(without(crewSize, victims...), "close", exchangeArgs{})
}

// TestStop stops a rank in every operation. The others say at the deadline which one, leave it out
// and go on; when it wakes up it disturbs nobody.
func TestStop(t *testing.T) {
	for i, op := range operations {
		if testing.Short() && op != "dispatch" {
			continue
		}
		for _, phase := range phases(op) {
			if testing.Short() && phase != inside {
				continue
			}
			victim := (i + 3) % crewSize
			t.Run(op+"/"+phase, func(t *testing.T) {
				t.Parallel()
				stopOne(t, op, phase, victim, "")
			})
		}
	}
}

const (
	stopDeadline = 1500 * time.Millisecond
	// Between hosts a neighbour in the tree of processes is left after a third of the heartbeat.
	stopDeadlineOfHosts = 8 * time.Second
)

func stopOne(t *testing.T, op, phase string, victim int, hosts string) {
	deadline := stopDeadline
	if hosts != "" {
		deadline = stopDeadlineOfHosts
	}
	crew := startExchange(t, deadline, hosts)
	all := without(crewSize)
	crew.Must(all, "begin", exchangeArgs{Seed: 1})
	longest := time.Duration(0)
	for r, a := range lose(crew, all, victim, op, phase, crew.Stop) {
		if a.Peer != victim || a.Cause != "timeout" {
			t.Errorf("rank %d while %d is stopped: %q (%s, rank %d)", r, victim, a.Err, a.Cause, a.Peer)
		}
		var took time.Duration
		if err := json.Unmarshal(a.Value, &took); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, took)
	}
	if longest < deadline || longest > deadline+30*time.Second { // a busy machine takes its time
		t.Errorf("the deadline of %v came after %v", deadline, longest)
	}
	alive := without(crewSize, victim)
	crew.Must(alive, "mask", exchangeArgs{Masked: []int{victim}})
	crew.Must(alive, "rounds", exchangeArgs{Seed: 100, Masked: []int{victim}, Rounds: 3})

	for _, r := range alive {
		crew.Tell(r, "rounds", exchangeArgs{Seed: 200, Masked: []int{victim}, Rounds: 50})
	}
	crew.Continue(victim)
	switch phase {
	case inside:
		if a := crew.Answer(victim); a.Err == "" {
			t.Errorf("the stopped rank finished %s without the others", op)
		}
	case between:
		crew.Tell(victim, "go on", exchangeArgs{})
		if a := crew.Answer(victim); a.Err == "" {
			t.Errorf("the stopped rank received %s after it was left out", op)
		}
	}
	if a := crew.Ask(victim, "op", exchangeArgs{Op: "prepare"}); a.Err == "" {
		t.Error("the stopped rank goes on alone")
	}
	if a := crew.Ask(victim, "close", exchangeArgs{}); a.Err != "" {
		t.Errorf("the stopped rank leaves: %s", a.Err)
	}
	for r, a := range crew.Answers(alive) {
		if a.Err != "" {
			t.Errorf("rank %d, while the stopped one woke up: %s", r, a.Err)
		}
	}
	crew.Must(alive, "rounds", exchangeArgs{Seed: 300, Masked: []int{victim}})
	crew.Must(alive, "close", exchangeArgs{})
}

// construction is the part of a rank that makes handles and sets masks.
type construction struct{ comm *weft.Comm }

type constructionArgs struct {
	ID     string
	Op     string
	Masked []int
	Dies   int // so often it looks whether it should go on waiting, then it dies; 0 for never
}

// countedContext calls back when it was asked for its end so many times: whoever asks is waiting.
type countedContext struct {
	context.Context
	left atomic.Int64
	then func()
}

func (c *countedContext) Err() error {
	if c.left.Add(-1) == 0 {
		c.then()
	}
	return c.Context.Err()
}

func (p *construction) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a constructionArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch c.Do {
	case "join":
		var err error
		p.comm, err = r.Join(a.ID, weft.WithDeadline(30*time.Second))
		return nil, err
	case "do":
		return nil, p.one(ctx, a)
	case "fail": // what was published before the failure may still do; then the next fails
		for range 4 {
			if err := p.one(ctx, a); err != nil {
				return nil, err
			}
		}
		return nil, nil
	case "wait": // and say so, in the middle of the operation
		inside := &countedContext{Context: ctx, then: r.Pause}
		inside.left.Store(1)
		return nil, p.one(inside, a)
	case "churn": // until it fails
		die := &countedContext{Context: ctx, then: func() {
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
			select {}
		}}
		die.left.Store(int64(a.Dies))
		for {
			for _, a.Op = range []string{"new handle", "set mask"} {
				if err := p.one(die, a); err != nil {
					return nil, fmt.Errorf("%s: %w", a.Op, err)
				}
			}
		}
	case "exchange":
		s := exchangeSpec(r.Size)
		return nil, eptest.Fixed(s, r.Size, 5).Do(eptest.NewHostRank(p.comm), p.comm, a.Masked...)
	case "close":
		return nil, p.comm.Close()
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

func (p *construction) one(ctx context.Context, a constructionArgs) error {
	if a.Op == "set mask" {
		return p.comm.SetMask(ctx, a.Masked...)
	}
	h, err := ep.NewHandle(ctx, p.comm, exchangeSpec(p.comm.Size()))
	if err != nil {
		return err
	}
	return h.Close()
}

// TestKillInConstruction kills ranks before and inside NewHandle and SetMask, and somewhere in a
// series of both. The survivors say which one died, leave it out, and make handles that work.
func TestKillInConstruction(t *testing.T) {
	type death struct {
		name string
		lose func(crew *processes.Crew, survivors []int, victim int, gone []int) map[int]processes.Answer
	}
	var deaths []death
	for _, op := range []string{"new handle", "set mask"} {
		deaths = append(deaths, death{
			op + "/" + before,
			func(crew *processes.Crew, survivors []int, victim int, gone []int) map[int]processes.Answer {
				crew.Kill(victim)
				return crew.All(survivors, "fail", constructionArgs{Op: op, Masked: gone})
			},
		}, death{op + "/" +
			inside, func(crew *processes.Crew, survivors []int, victim int, gone []int) map[int]processes.Answer {
			// One rank is held back, so that the victim waits for it, and answers.
			args := constructionArgs{Op: op, Masked: gone}
			crew.Tell(victim, "wait", args)
			for _, r := range survivors[1:] {
				crew.Tell(r, "fail", args)
			}
			crew.Answer(victim)
			crew.Kill(victim)
			crew.Tell(survivors[0], "fail", args)
			return crew.Answers(survivors)
		}})
	}
	for _, looks := range []int{1, 10, 50, 200} {
		deaths = append(deaths, death{
			fmt.Sprintf("series/%d", looks),
			func(crew *processes.Crew, survivors []int, victim int, gone []int) map[int]processes.Answer {
				crew.Tell(victim, "churn", constructionArgs{Masked: gone, Dies: looks})
				return crew.All(survivors, "churn", constructionArgs{Masked: gone})
			},
		})
	}
	for i, d := range deaths {
		if testing.Short() && i%3 != 0 {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			crew := processes.Start(t, "construction", crewSize)
			crew.Must(without(crewSize), "join", constructionArgs{ID: crew.ID()})
			victims := [][]int{{0, 3}, {2, 1}}[i%2]
			for j, victim := range victims {
				survivors := without(crewSize, victims[:j+1]...)
				for r, a := range d.lose(crew, survivors, victim, victims[:j]) {
					if a.Peer != victim || a.Cause != "died" {
						t.Errorf("rank %d after the death of %d: %q (%s, rank %d)", r, victim, a.Err, a.Cause, a.Peer)
					}
				}
				gone := constructionArgs{Op: "set mask", Masked: victims[:j+1]}
				crew.Must(survivors, "do", gone)
				crew.Must(survivors, "exchange", gone)
			}
			crew.Must(without(crewSize, victims...), "close", constructionArgs{})
		})
	}
}

// conformance is the part of a rank that runs the suite.
type conformance struct{}

func (*conformance) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a exchangeArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	comm, err := r.Join(a.ID)
	if err != nil {
		return nil, err
	}
	n, err := eptest.Sample(eptest.NewHostRank(comm), a.Every)
	return n, errors.Join(err, comm.Close())
}

// TestProcesses runs a sample of the suite, one case of every cell, on ranks that are processes. A
// short run takes every fifth cell.
func TestProcesses(t *testing.T) {
	every := 1
	if testing.Short() {
		every = 5
	}
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			conform(t, processes.Start(t, "conformance", n), exchangeArgs{Every: every})
		})
	}
}

// gpuConformance is the part of a rank on a GPU that runs the suite.
type gpuConformance struct{}

func (*gpuConformance) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a exchangeArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	comm, err := r.JoinOnGPU(a.ID, a.GPUs, weft.WithDeadline(gpuDeadline))
	if err != nil {
		return nil, err
	}
	engine := eptest.NewDeviceRank(comm)
	n, err := eptest.Sample(engine, a.Every)
	return n, errors.Join(err, engine.Close(), comm.Close())
}

// TestProcessesOnGPUs runs a sample of the suite on ranks that are processes, spread over the GPUs
// that are there.
func TestProcessesOnGPUs(t *testing.T) {
	gpus := len(ranktest.Real(t).Contexts)
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d ranks on %d GPUs", n, min(n, gpus)), func(t *testing.T) {
			conform(t, processes.Start(t, "gpu", n), exchangeArgs{Every: 5})
		})
	}
}

// conform has a crew's ranks run a sample of the suite.
func conform(t *testing.T, crew *processes.Crew, args exchangeArgs) {
	t.Helper()
	args.ID = crew.ID()
	for r, a := range crew.All(without(crew.Size()), "run", args) {
		if a.Err != "" {
			t.Errorf("rank %d: %s", r, a.Err)
		}
		if string(a.Value) == "0" {
			t.Errorf("rank %d ran no case", r)
		}
	}
}
