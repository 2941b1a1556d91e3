//go:build unix

package processes

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Crew is the ranks of a test, one process each.
type Crew struct {
	t    testing.TB
	hand []*hand
}

type hand struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan Answer
	stderr  lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Start starts size processes that play a part. They are gone when the test is.
func Start(t testing.TB, part string, size int) *Crew {
	t.Helper()
	return StartWith(t, part, size, func(int) []string { return nil })
}

// StartWith is Start with variables of each process's environment.
func StartWith(t testing.TB, part string, size int, env func(rank int) []string) *Crew {
	t.Helper()
	return StartIn(t, part, size, env, func(_ int, start func() error) error { return start() })
}

// StartIn is StartWith in places, network namespaces say, in which within runs what starts a process.
func StartIn(t testing.TB, part string, size int, env func(rank int) []string,
	within func(rank int, start func() error) error,
) *Crew {
	t.Helper()
	c := &Crew{t: t, hand: make([]*hand, size)}
	t.Cleanup(c.end)
	for r := range c.hand {
		h := &hand{cmd: exec.Command(os.Args[0]), answers: make(chan Answer, 16)}
		h.cmd.Env = append(append(os.Environ(), env(r)...), fmt.Sprintf("%s=%s %d %d", partVariable, part, r, size))
		h.cmd.Stderr = &h.stderr
		in, err := h.cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := h.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := within(r, h.cmd.Start); err != nil {
			t.Fatal(err)
		}
		h.in, c.hand[r] = in, h
		go h.read(out)
	}
	return c
}

func (h *hand) read(out io.Reader) {
	defer close(h.answers)
	d := json.NewDecoder(out)
	for {
		var a Answer
		if d.Decode(&a) != nil {
			return
		}
		h.answers <- a
	}
}

// end kills what is left, and shows what the processes complained of if the test has failed.
func (c *Crew) end() {
	for r, h := range c.hand {
		if h == nil {
			continue
		}
		_ = h.in.Close()
		_ = h.cmd.Process.Kill()
		for range h.answers {
		}
		err := h.cmd.Wait()
		var exit *exec.ExitError
		if status, ok := h.cmd.ProcessState.Sys().(syscall.WaitStatus); errors.As(err, &exit) && (!ok || !status.Signaled()) {
			c.t.Errorf("rank %d: %v", r, err)
		}
		if text := h.stderr.String(); text != "" && c.t.Failed() {
			c.t.Logf("rank %d:\n%s", r, text)
		}
	}
}

// Size is the number of ranks that were started.
func (c *Crew) Size() int { return len(c.hand) }

// ID asks rank 0 for the ID at which the ranks meet.
func (c *Crew) ID() string {
	c.t.Helper()
	var id string
	a := c.Ask(0, "id", nil)
	if err := json.Unmarshal(a.Value, &id); err != nil {
		c.t.Fatalf("id: %v: %s", err, a.Err)
	}
	return id
}

// Tell gives a rank a command. It does not wait for the answer.
func (c *Crew) Tell(rank int, do string, args any) {
	c.t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		c.t.Fatal(err)
	}
	line, err := json.Marshal(Command{Do: do, Args: raw})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.hand[rank].in.Write(append(line, '\n')); err != nil {
		c.t.Fatalf("tell rank %d to %s: %v\n%s", rank, do, err, c.hand[rank].stderr.String())
	}
}

// answerTimeout bounds the wait for an answer; none comes near it unless something hangs.
const answerTimeout = 5 * time.Minute

// Answer returns the answer to the oldest command of a rank that was not answered yet.
func (c *Crew) Answer(rank int) Answer {
	c.t.Helper()
	timer := time.NewTimer(answerTimeout)
	defer timer.Stop()
	select {
	case a, ok := <-c.hand[rank].answers:
		if !ok {
			c.t.Fatalf("rank %d ended before it answered\n%s", rank, c.hand[rank].stderr.String())
		}
		return a
	case <-timer.C:
		c.t.Fatalf("rank %d does not answer", rank)
		panic("unreachable")
	}
}

// Ask is Tell and Answer.
func (c *Crew) Ask(rank int, do string, args any) Answer {
	c.t.Helper()
	c.Tell(rank, do, args)
	return c.Answer(rank)
}

// All tells every one of the ranks to do the same, and returns their answers by rank.
func (c *Crew) All(ranks []int, do string, args any) map[int]Answer {
	c.t.Helper()
	for _, r := range ranks {
		c.Tell(r, do, args)
	}
	return c.Answers(ranks)
}

// Answers collects one answer of each of the ranks.
func (c *Crew) Answers(ranks []int) map[int]Answer {
	c.t.Helper()
	all := map[int]Answer{}
	for _, r := range ranks {
		all[r] = c.Answer(r)
	}
	return all
}

// First returns the first answer of any of the ranks, and whose it is.
func (c *Crew) First(ranks []int) (rank int, a Answer) {
	c.t.Helper()
	timer := time.NewTimer(answerTimeout)
	defer timer.Stop()
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(timer.C)}}
	for _, r := range ranks {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c.hand[r].answers)})
	}
	chosen, value, ok := reflect.Select(cases)
	if chosen == 0 {
		c.t.Fatalf("none of ranks %v answers", ranks)
	}
	rank = ranks[chosen-1]
	if !ok {
		c.t.Fatalf("rank %d ended before it answered\n%s", rank, c.hand[rank].stderr.String())
	}
	return rank, value.Interface().(Answer)
}

// Must tells the ranks to do the same and fails the test unless all succeed.
func (c *Crew) Must(ranks []int, do string, args any) {
	c.t.Helper()
	for r, a := range c.All(ranks, do, args) {
		if a.Err != "" {
			c.t.Errorf("rank %d: %s: %s", r, do, a.Err)
		}
	}
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// Kill ends a rank with SIGKILL.
func (c *Crew) Kill(rank int) {
	c.t.Helper()
	c.signal(rank, syscall.SIGKILL)
}

// Stop halts a rank with SIGSTOP, and returns when it has halted.
func (c *Crew) Stop(rank int) {
	c.t.Helper()
	c.signal(rank, syscall.SIGSTOP)
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.hand[rank].cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || !status.Stopped() {
			c.t.Fatalf("rank %d did not stop: %v", rank, err)
		}
		return
	}
}

// Continue lets a halted rank go on.
func (c *Crew) Continue(rank int) {
	c.t.Helper()
	c.signal(rank, syscall.SIGCONT)
}

func (c *Crew) signal(rank int, s syscall.Signal) {
	c.t.Helper()
	if err := c.hand[rank].cmd.Process.Signal(s); err != nil {
		c.t.Fatalf("signal rank %d: %v", rank, err)
	}
}

// PID is a rank's process.
func (c *Crew) PID(rank int) int { return c.hand[rank].cmd.Process.Pid }

// Listening are the TCP addresses on which a rank listens, as this host reaches them.
func (c *Crew) Listening(rank int) (doors []netip.AddrPort) {
	c.t.Helper()
	pid := c.PID(rank)
	inodes := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, fd := range fds {
		target, _ := os.Readlink(fd)
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			const listen = "0A"
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != listen || !inodes[f[9]] {
				continue
			}
			door, err := doorOf(f[1])
			if err != nil {
				c.t.Fatalf("%s: %v", line, err)
			}
			doors = append(doors, door)
		}
	}
	return doors
}

// Busy is how much time of processors a rank's process has had, in hundredths of a second; 0 if it has no /proc.
func (c *Crew) Busy(rank int) time.Duration {
	c.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.PID(rank)))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(stat), ") ") // the name of a program may have blanks
	const user, system = 11, 12
	f := strings.Fields(after)
	if len(f) <= system {
		c.t.Fatalf("/proc/%d/stat: %s", c.PID(rank), stat)
	}
	var sum time.Duration
	for _, text := range f[user : system+1] {
		n, err := strconv.Atoi(text)
		if err != nil {
			c.t.Fatal(err)
		}
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum
}

// doorOf reads an address as the kernel writes it, words of four bytes each the other way round. That of all
// interfaces is reached by the loopback one.
func doorOf(text string) (netip.AddrPort, error) {
	host, service, _ := strings.Cut(text, ":")
	port, err := strconv.ParseUint(service, 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for word := range slices.Chunk(b, 4) {
		slices.Reverse(word)
	}
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("an address of %d bytes", len(b))
	}
	if a = a.Unmap(); a.IsUnspecified() {
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(a, uint16(port)), nil
}
