package bootstrap

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// process is the test binary running as one rank.
type process struct {
	cmd *exec.Cmd
	out *bufio.Scanner
	in  io.Closer
}

// startProcesses starts size ranks that meet at a fresh address, each doing what runChild does for
// role. They are gone when the test ends.
func startProcesses(t *testing.T, size int, role string, env ...string) []*process {
	t.Helper()
	addr := freeAddress(t)
	ps := make([]*process, size)
	for r := range ps {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"="+role,
			"WEFT_RANK="+strconv.Itoa(r), "WEFT_SIZE="+strconv.Itoa(size), "WEFT_ADDRESS="+addr, "WEFT_SECRET=process test")
		cmd.Env = append(cmd.Env, env...)
		cmd.Stderr = os.Stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := &process{cmd: cmd, out: bufio.NewScanner(stdout), in: stdin}
		t.Cleanup(func() {
			p.cmd.Process.Kill()
			p.cmd.Wait()
		})
		ps[r] = p
	}
	return ps
}

// line returns the next line that the process prints. A process always gets to printing: its own
// waits have deadlines.
func (p *process) line() string {
	if p.out.Scan() {
		return p.out.Text()
	}
	return fmt.Sprint("end of output, ", p.out.Err())
}

func describeError(err error) string {
	pe, ok := errors.AsType[*PeerError](err)
	if !ok {
		return err.Error()
	}
	for _, r := range []error{ErrTimeout, ErrDied, ErrLeft} {
		if errors.Is(err, r) {
			return fmt.Sprintf("%s: rank %d: %v", pe.Op, pe.Rank, r)
		}
	}
	return err.Error()
}

// childRoles are those that not every system can play.
var childRoles = map[string]func(ctx context.Context, e Environment) error{}

// runChild is a rank's process. It ends as a crashing program would, without Close, when something
// fails.
func runChild(role string) error {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	e, err := Detect(os.Getenv)
	if err != nil {
		return err
	}
	switch role {
	case "gather":
		return childGathers(ctx, e)
	case "strangers":
		return childStrangers(e.Address)
	}
	if play := childRoles[role]; play != nil {
		return play(ctx, e)
	}
	b, err := e.Dial(ctx)
	if err != nil {
		return err
	}
	switch role {
	case "collective", "receive", "unlinked", "stopped":
		return childBlocks(ctx, b, role)
	default:
		return fmt.Errorf("unknown role %q", role)
	}
}

// childGathers prints what messages it took to join, gather and pass a barrier.
func childGathers(ctx context.Context, e Environment) error {
	var log messageLog
	b, err := DialTCP(ctx, TCPConfig{Rank: e.Rank, Size: e.Size, Address: e.Address, Secret: e.Secret, trace: log.add})
	if err != nil {
		return err
	}
	all, err := b.AllGather(ctx, fmt.Append(nil, "rank ", b.Rank()))
	if err != nil {
		return err
	}
	for r, got := range all {
		if string(got) != fmt.Sprint("rank ", r) {
			return fmt.Errorf("part of rank %d is %q", r, got)
		}
	}
	if err := b.Barrier(ctx); err != nil {
		return err
	}
	if err := b.Close(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(log.passed)
}

// childBlocks waits for what does not come, after its parent has seen it ready.
func childBlocks(ctx context.Context, b Bootstrap, role string) error {
	next, previous := (b.Rank()+1)%b.Size(), (b.Rank()+b.Size()-1)%b.Size()
	if role != "unlinked" {
		if err := b.Send(ctx, previous, nil); err != nil {
			return err
		}
		if _, err := b.Recv(ctx, next); err != nil {
			return err
		}
	}
	if err := b.Barrier(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	if b.Rank() == victimOf(os.Getenv) {
		io.Copy(io.Discard, os.Stdin) // the parent decides how this ends
		return nil
	}
	var err error
	switch {
	case role == "receive", role == "unlinked":
		_, err = b.Recv(ctx, next)
	case role == "stopped":
		io.Copy(io.Discard, os.Stdin) // until the victim has been stopped
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		err = b.Barrier(short)
	case b.Rank()%2 == 0:
		err = b.Barrier(ctx)
	default:
		_, err = b.AllGather(ctx, nil)
	}
	return err
}

const victimVariable = "WEFT_BOOTSTRAP_TEST_VICTIM"

func victimOf(getenv func(string) string) int {
	v, err := strconv.Atoi(getenv(victimVariable))
	if err != nil {
		return -1
	}
	return v
}

func waitReady(t *testing.T, ps []*process) {
	t.Helper()
	for r, p := range ps {
		if l := p.line(); l != "ready" {
			t.Fatalf("rank %d: %s", r, l)
		}
	}
}

func TestManyProcesses(t *testing.T) {
	size := 64
	if testing.Short() {
		size = 16
	}
	start := time.Now()
	ps := startProcesses(t, size, "gather")
	logs := make([][]passed, size)
	for r, p := range ps {
		if got := p.line(); json.Unmarshal([]byte(got), &logs[r]) != nil {
			t.Fatalf("rank %d: %s", r, got)
		}
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	checkRounds(t, logs, 3) // join, all-gather, barrier
	t.Logf("%d processes started, joined, gathered and ended in %v", size, time.Since(start))
}

// TestKill kills each rank in turn while the others wait, for it or for a third rank. Survivors end
// at their first error, without a farewell, and yet every one of them must name the rank that was
// killed. Unlinked ranks have no links but those to rank 0.
func TestKill(t *testing.T) {
	const size = 4
	for _, role := range []string{"collective", "receive", "unlinked"} {
		for victim := range size {
			t.Run(fmt.Sprintf("%s without %d", role, victim), func(t *testing.T) {
				ps := startProcesses(t, size, role, victimVariable+"="+strconv.Itoa(victim))
				waitReady(t, ps)
				if err := ps[victim].cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				for r, p := range ps {
					if r == victim {
						continue
					}
					got := p.line()
					if !strings.HasPrefix(got, "error ") || !strings.HasSuffix(got, fmt.Sprintf(": rank %d: %v", victim, ErrDied)) {
						t.Errorf("rank %d: %s", r, got)
					}
				}
			})
		}
	}
}

// childStrangers keeps 2,000 connections to an address up that say nothing, and opens 500 more a
// second.
func childStrangers(addr string) error {
	var up atomic.Int64
	visit := func() {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			time.Sleep(time.Millisecond)
			return
		}
		if up.Add(1) == 2000 {
			fmt.Println("ready")
		}
		io.Copy(io.Discard, conn) // until it is closed there
		conn.Close()
	}
	for range 2000 {
		go func() {
			for {
				visit()
			}
		}()
	}
	for range time.Tick(2 * time.Millisecond) {
		go visit()
	}
	return nil
}

// TestSilentStrangers has ranks meet at an address where thousands of connections come from their
// own host and say nothing.
func TestSilentStrangers(t *testing.T) {
	const size = 8
	id, err := NewID(OnLoopback())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { id.Release() })
	waitReady(t, startProcesses(t, 1, "strangers", "WEFT_ADDRESS="+id.targets()[0]))
	// The first join finds the strangers waiting, later ones while those that were closed come
	// again.
	var worst time.Duration
	joins := 0
	for begun := time.Now(); time.Since(begun) < 2*time.Second; joins++ {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		start := time.Now()
		ranks, errs := dialAll(size, func(rank int) (Bootstrap, error) { return id.Dial(ctx, rank, size) })
		worst = max(worst, time.Since(start))
		cancel()
		defer closeAll(ranks)
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("join %d: %v", joins, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("%d joins took %v at most", joins, worst)
}
