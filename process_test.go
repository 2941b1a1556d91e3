//go:build unix

package weft_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

// playPart makes this process a rank of a test, if a test has started it as one.
func playPart() bool {
	return processes.Main(map[string]func() processes.Part{
		"member": func() processes.Part { return &member{} },
		"legion": func() processes.Part { return &legion{} },
	})
}

// member is the part of a rank that is a process of its own.
type member struct {
	comm    *weft.Comm
	machine *cudatest.Machine // nil on the host
	context *cuda.Context
}

type memberArgs struct {
	ID       string
	Deadline time.Duration
	Size     int
	Masked   []int
	Peer     int
	Times    int
	Accuse   bool
	GPUs     int // of the machine; 0 = on the host
	Real     bool
	Isolated bool // each rank sees one GPU only
	Plain    bool
	NoPeers  bool
	Kind     string
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
		if a.Deadline == 0 {
			a.Deadline = 30 * time.Second
		}
		options := []weft.Option{weft.WithDeadline(a.Deadline)}
		if a.GPUs > 0 {
			bind, err := m.bind(r, a)
			if err != nil {
				return nil, err
			}
			options = append(options, bind)
		}
		var err error
		m.comm, err = r.Join(a.ID, options...)
		return nil, err
	case "limit files":
		return nil, limitFiles(a.Times)
	case "agree":
		for i := range max(1, a.Times) {
			if err := m.comm.Operations().VerifySame(ctx, "agree", fmt.Sprint(i), nil); err != nil {
				return nil, err
			}
		}
		return nil, nil
	case "alloc":
		if m.machine != nil {
			return nil, m.allocDevice(ctx, a)
		}
		return nil, m.alloc(ctx, a)
	case "register":
		return nil, m.register(ctx, a)
	case "leave":
		return nil, m.leave()
	case "plain memory":
		_, err := m.comm.RegisterMemory(ctx, make([]byte, 8))
		return nil, err
	case "mask":
		return nil, m.comm.SetMask(ctx, a.Masked...)
	case "error":
		return nil, m.comm.Err()
	case "await error":
		for {
			if a.Accuse { // the masked one: whatever happens during the nap finds the abort word taken
				f := channel.Fault{Cause: channel.CauseDied, Rank: a.Peer, Reporter: m.comm.Rank()}
				f.Generation = m.comm.Operations().Generation()
				m.comm.Operations().Waiter().Own.Abort(f)
			}
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Millisecond):
			}
			if err := m.comm.Err(); err != nil {
				return nil, err
			}
		}
	case "await": // until the peer waits for somebody
		for m.comm.Operations().Waiter().Peers[a.Peer].Record().Peer < 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		return nil, nil
	case "abort":
		m.comm.Abort()
		return nil, nil
	case "close":
		return nil, m.comm.Close()
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

func (m *member) alloc(ctx context.Context, a memberArgs) error {
	w, err := m.comm.Alloc(ctx, a.Size)
	if err != nil {
		return err
	}
	w.Bytes()[a.Size-1] = byte(m.comm.Rank() + 1)
	if err := m.comm.Operations().VerifySame(ctx, "alloc", "written", nil); err != nil {
		return err
	}
	for r := range m.comm.Size() {
		if p := w.Peer(r); !m.comm.Masked(r) && p[a.Size-1] != byte(r+1) {
			return fmt.Errorf("rank %d's part shows %d", r, p[a.Size-1])
		}
	}
	return errors.Join(m.comm.Operations().VerifySame(ctx, "alloc", "read", nil), w.Close())
}

// limitFiles lets this process open so many more files, and no others.
func limitFiles(more int) error {
	next, err := syscall.Dup(0)
	if err != nil {
		return err
	}
	limit := uint64(next + more)
	return errors.Join(syscall.Close(next),
		syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: limit}))
}

func startMembers(t *testing.T, n int, deadline time.Duration) (*processes.Crew, []int) {
	t.Helper()
	crew := processes.Start(t, "member", n)
	var all []int
	for r := range n {
		all = append(all, r)
	}
	crew.Must(all, "join", memberArgs{ID: crew.ID(), Deadline: deadline})
	return crew, all
}

func TestProcesses(t *testing.T) {
	crew, all := startMembers(t, 4, 0)
	crew.Must(all, "agree", memberArgs{Times: 200})
	for _, size := range []int{1, 4096, 3 << 20} {
		crew.Must(all, "alloc", memberArgs{Size: size})
	}
	for r, a := range crew.All(all, "plain memory", memberArgs{}) {
		if a.Cause != "unsupported" {
			t.Errorf("rank %d registers plain memory among processes: %q", r, a.Err)
		}
	}
	crew.Must(all, "agree", memberArgs{})
	crew.Must(all, "close", memberArgs{})
}

// TestProcessDies kills a rank for which the others wait, then the next, until one is left.
func TestProcessDies(t *testing.T) {
	crew, alive := startMembers(t, 4, 0)
	var dead []int
	for len(alive) > 1 {
		victim := alive[len(alive)/2]
		var survivors []int
		for _, r := range alive {
			if r != victim {
				survivors = append(survivors, r)
				crew.Tell(r, "agree", memberArgs{})
			}
		}
		crew.Kill(victim)
		for r, a := range crew.Answers(survivors) {
			if a.Peer != victim || a.Cause != "died" || !strings.Contains(a.Err, "exit status not known") {
				t.Errorf("rank %d after the death of %d, which nobody has waited for: %q", r, victim, a.Err)
			}
		}
		for r, a := range crew.All(survivors, "error", memberArgs{}) {
			if a.Peer != victim {
				t.Errorf("rank %d: the failure does not stick: %q", r, a.Err)
			}
		}
		// The dead cannot be kept.
		for r, a := range crew.All(survivors, "mask", memberArgs{Masked: dead}) {
			if a.Peer != victim || a.Cause != "died" {
				t.Errorf("rank %d goes on with dead %d: %q", r, victim, a.Err)
			}
		}
		alive, dead = survivors, append(dead, victim)
		crew.Must(alive, "mask", memberArgs{Masked: dead})
		crew.Must(alive, "alloc", memberArgs{Size: 10000})
	}
	crew.Must(alive, "close", memberArgs{})
}

// TestProcessDiesUnseen kills a rank while the abort word of another holds something that is over.
func TestProcessDiesUnseen(t *testing.T) {
	crew, _ := startMembers(t, 3, 0)
	crew.Kill(2)
	rest := []int{0, 1}
	crew.All(rest, "await error", memberArgs{})
	crew.Must(rest, "mask", memberArgs{Masked: []int{2}})
	crew.Tell(0, "await error", memberArgs{Accuse: true, Peer: 2})
	crew.Kill(1)
	if a := crew.Answer(0); a.Peer != 1 || a.Cause != "died" {
		t.Errorf("after the death of rank 1: %q", a.Err)
	}
	crew.Must([]int{0}, "mask", memberArgs{Masked: []int{1, 2}})
	crew.Must([]int{0}, "close", memberArgs{})
}

// TestProcessLeaves closes a rank for which others wait.
func TestProcessLeaves(t *testing.T) {
	crew, _ := startMembers(t, 3, 0)
	rest := []int{0, 2}
	for _, r := range rest {
		crew.Tell(r, "agree", memberArgs{})
	}
	crew.Must([]int{1}, "close", memberArgs{})
	for r, a := range crew.Answers(rest) {
		if a.Peer != 1 || a.Cause != "left" {
			t.Errorf("rank %d after rank 1 left: %q", r, a.Err)
		}
	}
	crew.Must(rest, "mask", memberArgs{Masked: []int{1}})
	crew.Must(rest, "agree", memberArgs{})
	crew.Must(rest, "close", memberArgs{})
}

// blamesLimit checks that all who have failed blame the rank that has no files left to open, which
// says what to do.
func blamesLimit(t *testing.T, answers map[int]processes.Answer, victim int) {
	t.Helper()
	for r, a := range answers {
		if a.Err != "" && a.Peer != victim || r == victim && a.Err != "" && !strings.Contains(a.Err, "ulimit -n") {
			t.Errorf("rank %d: %s", r, a.Err)
		}
	}
}

// TestProcessFileLimit takes the files from a rank before a window is made: all of them, and all
// but that of its own part, so that it has no room for what its peers send it.
func TestProcessFileLimit(t *testing.T) {
	for spare := range 2 {
		for _, victim := range []int{0, 1} {
			crew, all := startMembers(t, 3, 0)
			crew.Must([]int{victim}, "limit files", memberArgs{Times: spare})
			for _, what := range []string{"alloc", "error"} {
				answers := crew.All(all, what, memberArgs{Size: 4096})
				blamesLimit(t, answers, victim)
				for r, a := range answers {
					if (what == "alloc" || spare > 0) && (a.Err == "" ||
						!strings.Contains(a.Err, "open files")) {
						t.Errorf("rank %d, %d files left to rank %d: %s after %v: %q", r, spare, victim, what, a.Took, a.Err)
					}
				}
			}
		}
	}
}

// TestProcessFileLimitAtJoin lets a rank open few files when it joins, one more each time until
// they are enough.
func TestProcessFileLimitAtJoin(t *testing.T) {
	const victim, size, most = 1, 3, 40
	for spare := range most {
		crew := processes.Start(t, "member", size)
		id := crew.ID()
		crew.Must([]int{victim}, "limit files", memberArgs{Times: spare})
		crew.Tell(0, "join", memberArgs{ID: id})
		crew.Tell(2, "join", memberArgs{ID: id})
		own := crew.Ask(victim, "join", memberArgs{ID: id})
		blamesLimit(t, map[int]processes.Answer{victim: own}, victim)
		if own.Err == "" {
			return
		}
		if spare < 2 { // it has not reached the others
			continue
		}
		answers := crew.Answers([]int{0, 2})
		blamesLimit(t, answers, victim)
		for r, a := range answers {
			if a.Err != "" && !strings.Contains(a.Err, "open files") {
				t.Errorf("rank %d, %d files left to rank %d: after %v: %q", r, spare, victim, a.Took, a.Err)
			}
		}
	}
	t.Errorf("%d files are not enough to join", most)
}

// TestProcessStops stops a rank in the middle of an agreement, and in the middle of the exchange of
// a window.
func TestProcessStops(t *testing.T) {
	const deadline = 700 * time.Millisecond
	for _, what := range []string{"agree", "alloc"} {
		t.Run(what, func(t *testing.T) {
			crew, _ := startMembers(t, 3, deadline)
			rest := []int{0, 2}
			crew.Tell(1, what, memberArgs{Size: 100})
			crew.Must([]int{2}, "await", memberArgs{Peer: 1})
			crew.Stop(1)
			start := time.Now()
			answers := crew.All(rest, what, memberArgs{Size: 100})
			if answers[0].Err == "" && answers[2].Err == "" { // rank 1 had published its share before it was stopped
				answers = crew.All(rest, what, memberArgs{Size: 100})
			}
			for r, a := range answers {
				if a.Err == "" { // it finished before the other found out
					a = crew.Ask(r, what, memberArgs{Size: 100})
				}
				if a.Peer != 1 || a.Cause != "timeout" {
					t.Errorf("rank %d while 1 is stopped: %q (%s)", r, a.Err, a.Cause)
				}
			}
			if took := time.Since(start); took > deadline+30*time.Second {
				t.Errorf("a deadline of %v came after %v", deadline, took)
			}
			crew.Must(rest, "mask", memberArgs{Masked: []int{1}})
			crew.Must(rest, "alloc", memberArgs{Size: 100})
			crew.Continue(1)
			if a := crew.Answer(1); a.Peer != 1 || a.Cause != "masked" {
				t.Errorf("the stopped rank wakes to %q (%s)", a.Err, a.Cause)
			}
			// Whomever it takes for lost, it does not go on without those who go on without it.
			if a := crew.Ask(1, "mask", memberArgs{Masked: rest}); a.Peer != 1 || a.Cause != "masked" {
				t.Errorf("the stopped rank goes on alone: %q (%s)", a.Err, a.Cause)
			}
			crew.Must(rest, "alloc", memberArgs{Size: 100})
			crew.Must([]int{1}, "close", memberArgs{})
			crew.Must(rest, "agree", memberArgs{Times: 20})
			crew.Must(rest, "close", memberArgs{})
		})
	}
}

func TestProcessAborts(t *testing.T) {
	crew, all := startMembers(t, 3, 0)
	crew.Tell(0, "agree", memberArgs{})
	crew.Tell(1, "agree", memberArgs{})
	crew.Must([]int{2}, "await", memberArgs{Peer: 0})
	crew.Must([]int{2}, "abort", memberArgs{})
	for r, a := range crew.Answers([]int{0, 1}) {
		if a.Peer != 2 || a.Cause != "aborted" {
			t.Errorf("rank %d after rank 2 aborted: %q", r, a.Err)
		}
	}
	crew.Must(all, "mask", memberArgs{})
	crew.Must(all, "agree", memberArgs{})
	crew.Must(all, "close", memberArgs{})
}
