package channel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

// end is a process's end of channels to every other process of a test. Its segment of the window
// holds, for each peer, the counter that the peer raises, the packets that it sends, and the data
// that it puts (in) and gets (out); before the latter, a counter that all may raise.
type end struct {
	comm    *weft.Comm
	sum     *channel.Counter // in rank 0's part
	memory  []*channel.Memory
	packets []*channel.Packets
	local   []byte
}

const (
	mostPeers   = 8
	mostMessage = 256
	sumAt       = mostPeers * channel.Stride
	packetsAt   = sumAt + channel.Stride
	dataAt      = packetsAt + mostPeers*4*mostMessage // PacketBytes is no constant
	dataSize    = 2 << 10
	windowSize  = dataAt + 2*mostPeers*dataSize
)

func in(peer int) int  { return 2 * peer * dataSize }
func out(peer int) int { return in(peer) + dataSize }

type endArgs struct {
	ID       string
	Deadline time.Duration
	Policy   *channel.Policy
	Peer     int
	Times    int
}

func (e *end) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a endArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	switch c.Do {
	case "join":
		return nil, e.join(ctx, r, a)
	case "talk":
		return nil, e.talk(ctx, a.Times)
	case "add":
		for range a.Times {
			e.sum.Add(1)
		}
		return nil, e.comm.Operations().Waiter().Wait(ctx, e.sum, uint64(a.Times*r.Size), "sum", 0)
	case "wakes":
		return nil, e.wakes(ctx, r.Rank, a)
	case "signal":
		e.memory[a.Peer].Signal()
		return nil, nil
	case "wait":
		return nil, e.memory[a.Peer].Wait(ctx)
	case "exchange":
		return nil, e.packets[a.Peer].Exchange(ctx, nil, nil)
	case "await": // until the peer waits for somebody
		for e.comm.Operations().Waiter().Peers[a.Peer].Record().Peer < 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		return nil, nil
	case "mask":
		return nil, e.comm.SetMask(ctx, a.Peer)
	case "abort":
		e.comm.Abort()
		return nil, nil
	case "close":
		return nil, e.comm.Close()
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

func (e *end) join(ctx context.Context, r *processes.Rank, a endArgs) error {
	options := []weft.Option{weft.WithDeadline(a.Deadline)}
	if a.Policy != nil {
		options = append(options, weft.WithWaitPolicy(*a.Policy))
	}
	var err error
	if e.comm, err = r.Join(a.ID, options...); err != nil {
		return err
	}
	w, err := e.comm.Alloc(ctx, windowSize)
	if err != nil {
		return err
	}
	own := w.Bytes()
	e.sum = channel.CounterAt(w.Peer(0), sumAt)
	e.memory, e.packets = make([]*channel.Memory, r.Size), make([]*channel.Packets, r.Size)
	e.local = own[dataAt:]
	size := channel.PacketBytes(mostMessage)
	for p := range r.Size {
		if p == r.Rank {
			continue
		}
		peer := w.Peer(p)
		s := channel.NewSemaphore(e.comm.Operations().Waiter(), p, channel.CounterAt(own, p*channel.Stride),
			channel.CounterAt(peer, r.Rank*channel.Stride))
		e.memory[p] = channel.NewMemory(s, own[dataAt:], peer[dataAt:])
		e.packets[p], err = channel.NewPackets(e.comm.Operations().Waiter(), p, own[packetsAt+p*size:][:size],
			peer[packetsAt+r.Rank*size:][:size])
		if err != nil {
			return err
		}
	}
	return nil
}

// say is what a rank tells another in a round.
func say(n, from, to, round int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i/4*29 + from*67 + to*31 + round*13)
	}
	return b
}

// talk exchanges data with every peer at once: by puts, by gets and by packets, of lengths that
// change from round to round.
func (e *end) talk(ctx context.Context, rounds int) error {
	self := e.comm.Rank()
	for round := range rounds {
		n := round * 37 % dataSize
		for p, m := range e.memory {
			if m == nil {
				continue
			}
			copy(e.local[out(p):], say(n, self, p, round))
			if err := m.PutWithSignal(in(self), out(p), n); err != nil {
				return err
			}
		}
		for p, m := range e.memory {
			if m == nil {
				continue
			}
			want := say(n, p, self, round)
			if err := m.Wait(ctx); err != nil {
				return err
			}
			if !bytes.Equal(e.local[in(p):][:n], want) {
				return fmt.Errorf("round %d: rank %d did not put what it meant to", round, p)
			}
			clear(e.local[in(p):][:n])
			if err := m.Get(in(p), out(self), n); err != nil {
				return err
			}
			if !bytes.Equal(e.local[in(p):][:n], want) {
				return fmt.Errorf("round %d: something else was got from rank %d than it has", round, p)
			}
		}
		// Pairs meet in the same order everywhere. When they have, each has read what the other
		// put.
		for p, k := range e.packets {
			if k == nil {
				continue
			}
			n := n % (mostMessage + 1)
			recv := make([]byte, n)
			if err := k.Exchange(ctx, recv, say(n, self, p, round)); err != nil {
				return err
			}
			if !bytes.Equal(recv, say(n, p, self, round)) {
				return fmt.Errorf("round %d: rank %d sent something else in its packets", round, p)
			}
		}
	}
	return nil
}

// wakes signals to and fro.
func (e *end) wakes(ctx context.Context, rank int, a endArgs) error {
	for range a.Times {
		if rank == 0 {
			e.memory[a.Peer].Signal()
		}
		if err := e.memory[a.Peer].Wait(ctx); err != nil {
			return err
		}
		if rank == 1 {
			e.memory[a.Peer].Signal()
		}
	}
	runtime.GC()
	return nil
}

func startEnds(t *testing.T, n int, a endArgs) (crew *processes.Crew, all []int) {
	t.Helper()
	crew = processes.Start(t, "end", n)
	for r := range n {
		all = append(all, r)
	}
	if a.ID = crew.ID(); a.Deadline == 0 {
		a.Deadline = 30 * time.Second
	}
	crew.Must(all, "join", a)
	return crew, all
}

// manners are the ways in which processes wait: in one phase for good, and as their number
// commands.
func manners() map[string]*channel.Policy {
	m := map[string]*channel.Policy{"default": nil, "sleep": {}}
	if !testing.Short() {
		m["yield"], m["spin"] = &channel.Policy{Yield: math.MaxInt}, &channel.Policy{Spin: math.MaxInt}
	}
	return m
}

func TestProcessesTalk(t *testing.T) {
	for name, p := range manners() {
		t.Run(name, func(t *testing.T) {
			ranks, times := 3, 200
			if name == "spin" { // more ranks than processors would spin while others have something to say
				ranks, times = 2, 20
			}
			crew, all := startEnds(t, ranks, endArgs{Policy: p})
			crew.Must(all, "talk", endArgs{Times: times})
			crew.Must(all, "add", endArgs{Times: 20000})
			crew.Must(all, "close", endArgs{})
		})
	}
}

// TestProcessesWakeStill: sleepers that are stopped and woken at any moment, or killed in their
// sleep, end no wait of the others.
func TestProcessesWakeStill(t *testing.T) {
	crew, _ := startEnds(t, 3, endArgs{Policy: &channel.Policy{}})
	rest := []int{0, 1}
	crew.Tell(0, "wakes", endArgs{Peer: 1, Times: 2000})
	crew.Tell(1, "wakes", endArgs{Peer: 0, Times: 2000})
	for i := range 60 {
		crew.Stop(i % 2)
		time.Sleep(time.Duration(i%7) * time.Millisecond)
		crew.Continue(i % 2)
	}
	for r, a := range crew.Answers(rest) {
		if a.Err != "" {
			t.Errorf("rank %d: %s", r, a.Err)
		}
	}
	// One dies asleep on a counter that the others wait for, too, and is counted as a sleeper for
	// good.
	crew.Tell(2, "add", endArgs{Times: 1000})
	crew.Must([]int{0}, "await", endArgs{Peer: 2})
	crew.Kill(2)
	crew.Must(rest, "mask", endArgs{Peer: 2})
	crew.Must(rest, "add", endArgs{Times: 1000})
	crew.Must(rest, "close", endArgs{})
}

// TestProcessDies kills a process for which others wait, each in its way. Who sleeps on a counter
// of the dead is not forgotten either.
func TestProcessDies(t *testing.T) {
	for name, p := range manners() {
		t.Run(name, func(t *testing.T) {
			crew, _ := startEnds(t, 3, endArgs{Policy: p})
			crew.Tell(0, "wait", endArgs{Peer: 1})
			crew.Tell(2, "exchange", endArgs{Peer: 1})
			crew.Must([]int{1}, "await", endArgs{Peer: 0})
			crew.Must([]int{1}, "await", endArgs{Peer: 2})
			crew.Kill(1)
			for r, a := range crew.Answers([]int{0, 2}) {
				if a.Peer != 1 || a.Cause != "died" {
					t.Errorf("rank %d after the death of 1: %q", r, a.Err)
				}
			}
			crew.Must([]int{0, 2}, "close", endArgs{})
		})
	}
}

// TestProcessLeaves: what a process has signalled before it left is consumed first; then it is
// named.
func TestProcessLeaves(t *testing.T) {
	for name, p := range manners() {
		t.Run(name, func(t *testing.T) {
			crew, _ := startEnds(t, 2, endArgs{Policy: p})
			crew.Tell(0, "wait", endArgs{Peer: 1})
			crew.Must([]int{1}, "await", endArgs{Peer: 0})
			crew.Tell(1, "signal", endArgs{Peer: 0})
			crew.Tell(1, "signal", endArgs{Peer: 0})
			crew.Tell(1, "close", endArgs{})
			for range 3 {
				if a := crew.Answer(1); a.Err != "" {
					t.Error(a.Err)
				}
			}
			if a := crew.Answer(0); a.Err != "" {
				t.Errorf("the first signal: %s", a.Err)
			}
			if a := crew.Ask(0, "wait", endArgs{Peer: 1}); a.Err != "" {
				t.Errorf("the second signal: %s", a.Err)
			}
			if a := crew.Ask(0, "wait", endArgs{Peer: 1}); a.Peer != 1 || a.Cause != "left" {
				t.Errorf("a third signal: %q", a.Err)
			}
			crew.Must([]int{0}, "close", endArgs{})
		})
	}
}

// TestProcessStops: rank 0 waits for 1, and 1 waits for 2, which does not answer: because it has
// nothing to do with them, or because it was stopped while it was itself waiting for 0. Rank 2 is
// blamed by both.
func TestProcessStops(t *testing.T) {
	const deadline = 400 * time.Millisecond
	for _, stopped := range []bool{false, true} {
		t.Run(map[bool]string{false: "idle", true: "stopped"}[stopped], func(t *testing.T) {
			crew, all := startEnds(t, 3, endArgs{Deadline: deadline})
			if stopped {
				crew.Tell(2, "wait", endArgs{Peer: 0})
				crew.Must([]int{1}, "await", endArgs{Peer: 2})
				crew.Stop(2)
			}
			start := time.Now()
			crew.Tell(1, "exchange", endArgs{Peer: 2})
			crew.Must([]int{0}, "await", endArgs{Peer: 1})
			crew.Tell(0, "wait", endArgs{Peer: 1})
			for r, a := range crew.Answers([]int{0, 1}) {
				if a.Peer != 2 || a.Cause != "timeout" {
					t.Errorf("rank %d: %q (%s)", r, a.Err, a.Cause)
				}
			}
			if took := time.Since(start); took < deadline || took > deadline+30*time.Second {
				t.Errorf("a deadline of %v came after %v", deadline, took)
			}
			if stopped {
				crew.Continue(2)
				if a := crew.Answer(2); a.Peer != 2 || a.Cause != "timeout" {
					t.Errorf("the stopped rank wakes up to %q", a.Err)
				}
			}
			crew.Must(all, "close", endArgs{})
		})
	}
}

// TestProcessAborts: a rank that gives up is named by all who wait for it or for others.
func TestProcessAborts(t *testing.T) {
	for name, p := range manners() {
		t.Run(name, func(t *testing.T) {
			crew, all := startEnds(t, 3, endArgs{Policy: p})
			crew.Tell(0, "wait", endArgs{Peer: 1})
			crew.Tell(1, "exchange", endArgs{Peer: 0})
			crew.Must([]int{2}, "await", endArgs{Peer: 0})
			crew.Must([]int{2}, "await", endArgs{Peer: 1})
			crew.Must([]int{2}, "abort", endArgs{})
			for r, a := range crew.Answers([]int{0, 1}) {
				if a.Peer != 2 || a.Cause != "aborted" {
					t.Errorf("rank %d after rank 2 aborted: %q", r, a.Err)
				}
			}
			crew.Must(all, "close", endArgs{})
		})
	}
}
