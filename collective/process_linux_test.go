package collective

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/internal/host"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

// playPart makes this process a rank, if a test has started it as one.
func playPart() bool {
	return processes.Main(map[string]func() processes.Part{
		"member":     func() processes.Part { return &member{} },
		"gpu-member": func() processes.Part { return &gpuMember{} },
	})
}

// member is a rank that repeats one operation and checks each result.
type member struct {
	window *weft.Window
	soak   *gpuRank
	comm   *weft.Comm
	group  *Group
	rounds *enginehost.Rounds
	kind   Collective
	bytes  int
	mem    []byte
	times  int // operations so far
	steps  int // of the operation in progress
}

type memberArgs struct {
	ID        string
	Deadline  time.Duration
	Algorithm string
	Bytes     int
	Window    bool
	Step      int
	Times     int
	Masked    []int
	Seed      uint64
}

func (m *member) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a memberArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	switch c.Do {
	case "join":
		if err := m.meet(r, a); err != nil {
			return nil, err
		}
		return nil, m.join(ctx, r, a)
	case "meet":
		return nil, m.meet(r, a)
	case "group": // once all have met
		return nil, m.join(ctx, r, a)
	case "count": // the steps of an operation
		err := m.verified(ctx)
		return m.steps, err
	case "halt": // at a step, when the others can do no more without this rank
		var stuck error
		at := func() {
			if stuck = m.othersWait(ctx); stuck == nil {
				r.Pause()
			}
		}
		if a.Step == 0 {
			at()
		}
		m.rounds.Step = func() {
			if m.steps++; m.steps == a.Step {
				at()
			}
		}
		return nil, errors.Join(stuck, m.verified(ctx))
	case "repeat":
		for range a.Times {
			if err := m.verified(ctx); err != nil {
				return nil, err
			}
		}
		return nil, nil
	case "barrier":
		return nil, m.group.Barrier(ctx, nil)
	case "soak": // so many mixed operations, by a seed
		if m.soak == nil {
			var err error
			if m.soak, err = soakRank(ctx, m.comm, dtypes, true); err != nil {
				return nil, err
			}
		}
		return nil, mixed(plan{seed: a.Seed, ops: a.Times, messages: 1, types: dtypes})(ctx, m.soak)
	case "window":
		w, err := m.comm.Alloc(ctx, a.Bytes)
		m.window = w
		return nil, err
	case "close window":
		return nil, m.window.Close()
	case "flood": // the windows of other hosts with ones, by writes of so many bytes
		for i := range m.window.Bytes() {
			m.window.Bytes()[i] = 1
		}
		for peer := range m.comm.Size() {
			p, to := m.comm.Operations().FabricPeer(peer), m.window.Remote(peer)
			if p == nil {
				continue
			}
			for at := 0; at < to.Bytes(); at += a.Bytes {
				if err := p.Write(ctx, to, at, m.window.Region(), at, min(a.Bytes, to.Bytes()-at)); err != nil {
					return nil, err
				}
			}
		}
		return nil, nil
	case "settle": // what this rank has written to others
		for peer := range m.comm.Size() {
			if p := m.comm.Operations().FabricPeer(peer); p != nil {
				if err := p.Settle(ctx); err != nil {
					return nil, err
				}
			}
		}
		return nil, nil
	case "ones": // in this rank's part of the window, which is cleared
		n := bytes.Count(m.window.Bytes(), []byte{1})
		clear(m.window.Bytes())
		return n, nil
	case "mask":
		// What was repeated when the operation failed is not the same on all: the next is.
		m.times = 1000
		return nil, m.comm.SetMask(ctx, a.Masked...)
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

func (m *member) meet(r *processes.Rank, a memberArgs) (err error) {
	m.comm, err = r.Join(a.ID, weft.WithDeadline(a.Deadline))
	return err
}

// join makes the group.
func (m *member) join(ctx context.Context, r *processes.Rank, a memberArgs) (err error) {
	// An eighth of this is one round's: what is not eager takes many.
	options := Options{Scratch: 64 << 10}
	if a.Algorithm != "" {
		options.Force = []string{a.Algorithm}
	}
	if m.group, err = New(ctx, m.comm, options); err != nil {
		return err
	}
	m.rounds = m.group.engine.(*host.Engine).Rounds()
	m.rounds.Step = func() { m.steps++ }
	m.kind, m.bytes, m.mem = PointToPoint, a.Bytes, make([]byte, a.Bytes*2*r.Size)
	if a.Algorithm != "" {
		m.kind = algorithmNamed(a.Algorithm).Collective
	}
	if a.Window {
		w, err := m.comm.Alloc(ctx, len(m.mem))
		if err != nil {
			return err
		}
		m.mem = w.Bytes()
	}
	return nil
}

func algorithmNamed(name string) *Algorithm {
	for _, a := range Algorithms() {
		if a.Name == name {
			return &a
		}
	}
	return nil
}

// othersWait returns when every other rank waits for what this one has not published yet: of messages, also
// one that has come further, and waits for a rank that waits for this one. It fails when the others have
// waited for too long.
func (m *member) othersWait(ctx context.Context) error {
	peers := m.comm.Operations().Waiter().Peers
	for _, r := range m.rounds.Live {
		if r == m.comm.Rank() {
			continue
		}
		for {
			w := peers[r].Record()
			if m.kind == PointToPoint && w.Peer >= 0 && w.Peer != m.comm.Rank() {
				w = peers[w.Peer].Record()
			}
			if w.Peer == m.comm.Rank() && (w.Expected > m.rounds.Last() || m.kind == PointToPoint) {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("rank %d: %v: %w", r, w, ctx.Err())
			case <-time.After(time.Millisecond):
			}
			if err := m.comm.Err(); err != nil {
				return fmt.Errorf("rank %d: %v: %w", r, w, err)
			}
		}
	}
	return nil
}

// verified runs the operation once, on parts of m.bytes, and checks its result. Element k of what a rank
// sends a peer is the product of the rank, the peer, where the collective tells peers apart, and k.
func (m *member) verified(ctx context.Context) error {
	m.steps = 0
	i := m.times
	m.times++
	n, rank, size := m.bytes/4, m.comm.Rank(), m.comm.Size()
	root := i % size
	for m.comm.Masked(root) {
		root = (root + 1) % size
	}
	mem := weft.SliceOf[int32](weft.TensorAt(m.mem, weft.Int32, len(m.mem)/4))
	in, out := mem[:n*size], mem[n*size:]
	distinct, gathers := true, false
	c := Call{Collective: m.kind, Op: weft.Sum, Root: root}
	counts := slices.Repeat([]int{n}, size)
	switch m.kind {
	case ReduceScatter, Scatter:
	case ReduceScatterV:
		c.Counts.Send = counts
	case AllToAll:
		gathers = true
	case AllToAllV:
		c.Counts.Send, c.Counts.Recv = counts, counts
		gathers = true
	case AllGatherV:
		c.Counts.Recv = counts
		distinct, gathers = false, true
	case AllGather, Gather, PointToPoint:
		distinct, gathers = false, true
	default:
		distinct = false
	}
	value := func(from, to, k int) int32 {
		if !distinct {
			to = 0
		}
		return int32((from + 1) * (to + 1) * (k + i))
	}
	if !distinct {
		in = in[:n]
	}
	if !gathers {
		out = out[:n]
	}
	for k := range in {
		in[k] = value(rank, k/n, k%n)
	}
	c.In, c.Out = weft.TensorOf(in), weft.TensorOf(out)
	run := m.group.Do
	if m.kind == PointToPoint {
		run = m.exchange
	}
	if err := run(ctx, nil, c); err != nil || !m.kind.HasOutput(rank, root) {
		return err
	}
	for k, got := range out {
		from := k / n
		if !gathers {
			from = root
		}
		want := value(from, rank, k%n)
		if m.kind.Reduces() {
			want = 0
			for _, r := range m.rounds.Live {
				want += value(r, rank, k%n)
			}
		}
		if got != want && !m.comm.Masked(from) {
			return fmt.Errorf("operation %d: element %d is %d, want %d", i, k, got, want)
		}
	}
	return nil
}

// exchange is an all-gather by messages: a short one and a long one to every rank.
func (m *member) exchange(ctx context.Context, s *weft.Stream, c Call) error {
	n := c.In.Elems()
	mine, all := weft.SliceOf[int32](c.In), weft.SliceOf[int32](c.Out)
	return m.group.Batch(ctx, s, func(b *Batch) error {
		for r := range m.comm.Size() {
			if m.comm.Masked(r) {
				continue
			}
			theirs := all[r*n:][:n]
			b.Send(weft.TensorOf(mine[:4]), r)
			b.Send(weft.TensorOf(mine[4:]), r)
			b.Recv(weft.TensorOf(theirs[:4]), r)
			b.Recv(weft.TensorOf(theirs[4:]), r)
		}
		return nil
	})
}

// crewSize is enough for a rank to be gone and the others to go on together.
const crewSize = 3

// startCrew starts ranks that run one algorithm, and counts the steps that an operation takes each
// of them.
func startCrew(t *testing.T, a *Algorithm, deadline time.Duration) (crew *processes.Crew, steps int) {
	t.Helper()
	crew = processes.Start(t, "member", crewSize)
	args := memberArgs{
		ID: crew.ID(), Deadline: deadline, Algorithm: a.Name, Bytes: 256 << 10,
		Window: !a.Fits(Request{Collective: a.Collective}),
	}
	if a.Eager {
		args.Bytes = 1 << 10
	}
	if a.Collective == Barrier {
		args.Bytes = 0
	}
	crew.Must([]int{0, 1, 2}, "join", args)
	for r, answer := range crew.All([]int{0, 1, 2}, "count", memberArgs{}) {
		var n int
		if err := json.Unmarshal(answer.Value, &n); answer.Err != "" || err != nil || steps != 0 && n != steps {
			t.Fatalf("rank %d takes %d steps, others %d: %s", r, n, steps, answer.Err)
		}
		steps = n
	}
	return crew, steps
}

// phase is a point of an operation: after so many steps. A rank takes two a round: it has
// published, and it has seen what all ranks published.
type phase struct {
	name string
	at   func(steps int) int
}

// phases are the points at which ranks are killed and stopped. In operations of one round some of
// them are the same.
var phases = []phase{
	{"before the operation", func(int) int { return 0 }},
	{"between publish and await of the opening round", func(int) int { return 1 }},
	{"after the opening round", func(int) int { return 2 }},
	{"half-way", func(steps int) int { return steps / 2 }},
	{"a step after half-way", func(steps int) int { return steps/2 + 1 }},
	{"while the others have left", func(steps int) int { return steps }},
}

// distinct tells whether no phase before the i-th is the same point of operations of so many steps.
func distinct(i, steps int) bool {
	return !slices.ContainsFunc(phases[:i], func(p phase) bool { return p.at(steps) == phases[i].at(steps) })
}

// halt brings one rank to a point of an operation in which the others wait for it, and returns
// them.
func halt(t *testing.T, crew *processes.Crew, victim, step int) (others []int) {
	t.Helper()
	for r := range crew.Size() {
		if r != victim {
			others = append(others, r)
			crew.Tell(r, "repeat", memberArgs{Times: 3})
		}
	}
	if a := crew.Ask(victim, "halt", memberArgs{Step: step}); a.Err != "" {
		t.Fatalf("rank %d does not get to step %d: %s", victim, step, a.Err)
	}
	return others
}

// goOn checks that the failure lasts until the others leave the victim out, and that they go on
// without it.
func goOn(t *testing.T, crew *processes.Crew, others []int, victim int) {
	t.Helper()
	for r, a := range crew.All(others, "barrier", memberArgs{}) {
		if a.Peer != victim {
			t.Errorf("rank %d: the failure does not last: %+v", r, a)
		}
	}
	crew.Must(others, "mask", memberArgs{Masked: []int{victim}})
	crew.Must(others, "repeat", memberArgs{Times: 10})
}

// TestKilledRank kills a rank in every algorithm, before it and at half of the other phases: the others return an
// error that names it within two seconds, and go on without it. With WEFT_TEST_ALL=1 every rank is killed at every
// phase. Short tests have a phase of each.
func TestKilledRank(t *testing.T) {
	for k, a := range Algorithms() {
		if betweenHosts(a) {
			continue
		}
		var steps int
		for i, p := range phases {
			if testing.Short() && i != k%len(phases) || !testing.Short() && i > 0 && !distinct(i, steps) {
				continue
			}
			if !testing.Short() && !emulate.Everything() && i > 0 && (i+k)%2 > 0 {
				continue
			}
			for victim := range crewSize {
				if !emulate.Everything() && victim != (k+i)%crewSize {
					continue
				}
				t.Run(fmt.Sprintf("%s %s rank %d", a.Name, p.name, victim), func(t *testing.T) {
					var crew *processes.Crew
					crew, steps = startCrew(t, &a, 30*time.Second)
					others := halt(t, crew, victim, p.at(steps))
					crew.Kill(victim)
					for r, f := range crew.Answers(others) {
						if f.Peer != victim || f.Cause != "died" {
							t.Errorf("rank %d fails: %+v", r, f)
						}
					}
					goOn(t, crew, others, victim)
				})
			}
		}
	}
}

// TestStoppedRank stops a rank in every algorithm: the others return an error that names it at
// their deadline, and go on without it. When it wakes up in the midst of what they left behind, it
// returns an error too.
func TestStoppedRank(t *testing.T) {
	const deadline = 2 * time.Second // in which a rank gets to its point, on a busy machine too
	for k, a := range Algorithms() {
		p, victim := phases[k%len(phases)], (k+k/len(phases))%crewSize
		if betweenHosts(a) {
			continue
		}
		if !emulate.Everything() && k%3 > 0 {
			continue
		}
		t.Run(fmt.Sprintf("%s %s rank %d", a.Name, p.name, victim), func(t *testing.T) {
			t.Parallel() // they wait
			crew, steps := startCrew(t, &a, deadline)
			others := halt(t, crew, victim, p.at(steps))
			stopped := time.Now()
			crew.Stop(victim)
			for r, f := range crew.Answers(others) {
				if d := time.Since(stopped); d > deadline+30*time.Second || f.Took < deadline*9/10 ||
					f.Peer != victim || f.Cause != "timeout" {
					t.Errorf("rank %d fails after %v: %+v", r, d, f)
				}
			}
			goOn(t, crew, others, victim)
			crew.Continue(victim)
			if f := crew.Ask(victim, "go on", nil); f.Peer < 0 {
				t.Errorf("the stopped rank wakes up to %+v", f)
			}
		})
	}
}

// exchangers starts ranks that exchange messages, from windows or not.
func exchangers(t *testing.T, deadline time.Duration, window bool) *processes.Crew {
	t.Helper()
	crew := processes.Start(t, "member", crewSize)
	crew.Must([]int{0, 1, 2}, "join", memberArgs{ID: crew.ID(), Deadline: deadline, Bytes: 64 << 10, Window: window})
	crew.Must([]int{0, 1, 2}, "repeat", memberArgs{Times: 3})
	return crew
}

// messageSteps are points of a batch of the members: parts and receipts that a rank has published. From
// windows it publishes few.
var messageSteps = map[bool][]int{false: {0, 1, 4, 40}, true: {0, 1, 3, 6}}

// TestKilledAmongMessages kills a rank that exchanges messages: see TestKilledRank.
func TestKilledAmongMessages(t *testing.T) {
	for window, steps := range messageSteps {
		for i, step := range steps {
			t.Run(fmt.Sprintf("window %t step %d", window, step), func(t *testing.T) {
				victim := i % crewSize
				crew := exchangers(t, 30*time.Second, window)
				others := halt(t, crew, victim, step)
				crew.Kill(victim)
				for r, f := range crew.Answers(others) {
					if f.Peer != victim || f.Cause != "died" {
						t.Errorf("rank %d fails: %+v", r, f)
					}
				}
				goOn(t, crew, others, victim)
			})
		}
	}
}

// TestStoppedAmongMessages stops a rank that exchanges messages: see TestStoppedRank.
func TestStoppedAmongMessages(t *testing.T) {
	const deadline, victim = 2 * time.Second, 1
	for window, steps := range messageSteps {
		step := steps[len(steps)-1]
		t.Run(fmt.Sprintf("window %t step %d", window, step), func(t *testing.T) {
			crew := exchangers(t, deadline, window)
			others := halt(t, crew, victim, step)
			crew.Stop(victim)
			for r, f := range crew.Answers(others) {
				if f.Peer != victim || f.Cause != "timeout" {
					t.Errorf("rank %d: %+v", r, f)
				}
			}
			goOn(t, crew, others, victim)
			crew.Continue(victim)
			if f := crew.Ask(victim, "go on", nil); f.Peer < 0 {
				t.Errorf("the stopped rank wakes up to %+v", f)
			}
		})
	}
}
