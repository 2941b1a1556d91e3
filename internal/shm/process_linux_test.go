package shm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// roleVariable makes the test binary play a part of a process test instead of running tests.
const roleVariable = "WEFT_SHM_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		goleak.VerifyTestMain(m)
	case "rank":
		serveRank(os.Stdin, os.Stdout)
	case "holder":
		// Holds what it inherited until the test, which has the other end of standard input, ends
		// it.
		holdUntilHangup(0)
	case "limited":
		limitedSender()
	default:
		fmt.Fprintln(os.Stderr, "unknown role")
		os.Exit(2)
	}
}

func holdUntilHangup(fd int32) {
	fmt.Println("holding")
	for {
		p := []unix.PollFd{{Fd: fd}}
		if _, err := unix.Poll(p, -1); err == nil && p[0].Revents != 0 {
			return
		}
	}
}

// request is what a test asks of a process; each is answered, in any order.
type request struct {
	ID      int
	Op      string
	Rank    int // among the ranks of the process
	Self    int
	Addrs   [][]byte
	Timeout time.Duration
	XID     uint64
	Size    int
	Skip    []int
	Peer    int
	Data    string
}

type response struct {
	ID    int
	Err   string
	Peer  int    // that Err blames, or of the event; -1 for none
	Cause string // which error Err wraps
	Kind  EventKind
	Data  string
	Took  time.Duration
	When  int64 // monotonic clock of the host, ns
	Addr  []byte
	FDs   int
}

func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// stamped is an event and the time at which it was delivered.
type stamped struct {
	Event
	when int64
}

// server is the ranks of one process.
type server struct {
	mu    sync.Mutex
	out   *json.Encoder
	ranks map[int]*served
}

type served struct {
	listener *Listener
	mesh     *Mesh
	events   chan stamped
	regions  [][]*Region
}

func serveRank(in io.Reader, out io.Writer) {
	s := &server{out: json.NewEncoder(out), ranks: make(map[int]*served)}
	requests := json.NewDecoder(in)
	for {
		var q request
		if err := requests.Decode(&q); err != nil {
			return // the test is over, or has died
		}
		s.mu.Lock()
		r := s.ranks[q.Rank]
		if r == nil {
			r = &served{events: make(chan stamped, 4096)}
			s.ranks[q.Rank] = r
		}
		s.mu.Unlock()
		go func() {
			a := response{ID: q.ID, Peer: -1}
			if err := r.serve(q, &a); err != nil {
				a.Err, a.Cause = err.Error(), "other"
				if p, ok := errors.AsType[*PeerError](err); ok {
					a.Peer = p.Peer
				}
				for _, c := range []error{ErrDied, ErrLeft, ErrOtherUser, context.DeadlineExceeded} {
					if errors.Is(err, c) {
						a.Cause = c.Error()
					}
				}
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if err := s.out.Encode(a); err != nil {
				os.Exit(1)
			}
		}()
	}
}

func (r *served) serve(q request, a *response) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), q.Timeout)
	defer cancel()
	start := time.Now()
	defer func() { a.Took = time.Since(start) }()
	switch q.Op {
	case "listen":
		if r.listener, err = Listen(); err != nil {
			return err
		}
		a.Addr, err = r.listener.Address().MarshalBinary()
		return err
	case "connect":
		addrs := make([]Address, len(q.Addrs))
		for i, b := range q.Addrs {
			if err := addrs[i].UnmarshalBinary(b); err != nil {
				return err
			}
		}
		r.mesh, err = r.listener.Connect(ctx, q.Self, addrs, func(e Event) { r.events <- stamped{e, now()} })
		return err
	case "exchange":
		return r.exchange(ctx, q)
	case "send":
		return r.mesh.Send(q.Peer, []byte(q.Data))
	case "event":
		select {
		case e := <-r.events:
			a.Peer, a.Kind, a.Data, a.When = e.Peer, e.Kind, string(e.Data), e.when
			if e.Err != nil {
				a.Err = e.Err.Error()
			}
			return nil
		case <-ctx.Done():
			return errors.New("no event")
		}
	case "fork":
		return forkHolder()
	case "touch":
		own, err := Create("touched", q.Size, Options{Populate: true})
		r.regions = append(r.regions, []*Region{own})
		return err
	case "fds":
		entries, err := os.ReadDir("/proc/self/fd")
		a.FDs = len(entries)
		return err
	case "close":
		for _, rs := range r.regions {
			for _, region := range rs {
				if region != nil {
					err = errors.Join(err, region.Release())
				}
			}
		}
		r.regions = nil
		return errors.Join(err, r.mesh.Close())
	}
	return fmt.Errorf("unknown op %q", q.Op)
}

// exchange makes a window, checks what is in those of the peers, and signs each.
func (r *served) exchange(ctx context.Context, q request) error {
	skip := func(p int) bool {
		for _, s := range q.Skip {
			if p == s {
				return true
			}
		}
		return false
	}
	own, err := Create("window", q.Size, Options{})
	if err != nil {
		return err
	}
	self := r.mesh.Self()
	own.Bytes()[0], own.Bytes()[q.Size-1] = byte(self+1), byte(self+1)
	got, err := r.mesh.Exchange(ctx, q.XID, own, skip)
	if err != nil {
		return errors.Join(err, own.Release())
	}
	r.regions = append(r.regions, got)
	for p, region := range got {
		if skip(p) {
			if region != nil {
				return fmt.Errorf("got a region of skipped peer %d", p)
			}
			continue
		}
		if b := region.Bytes(); b[0] != byte(p+1) || b[q.Size-1] != byte(p+1) {
			return fmt.Errorf("region of %d shows %d and %d", p, b[0], b[q.Size-1])
		}
		region.Bytes()[64*(self+1)] = byte(self + 1)
	}
	return nil
}

// forkHolder starts a child that inherits all of this process's sockets, and standard input to know
// when to end.
func forkHolder() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=holder")
	cmd.Stdin = os.Stdin
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || !strings.HasPrefix(name, "socket:") {
			continue
		}
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err != nil {
			return err
		}
		if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "holding\n" {
		return fmt.Errorf("holder said %q: %v", line, err)
	}
	return nil
}

// process is a child that serves ranks.
type process struct {
	t       testing.TB
	cmd     *exec.Cmd
	in      *json.Encoder
	stdin   io.Closer
	mu      sync.Mutex
	next    int
	waiting map[int]chan response
	reading sync.WaitGroup
	stopped bool
}

func startProcess(t testing.TB, adjust ...func(*exec.Cmd)) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=rank")
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = patience
	for _, f := range adjust {
		f(cmd)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, in: json.NewEncoder(stdin), stdin: stdin, waiting: make(map[int]chan response)}
	p.reading.Go(func() {
		answers := json.NewDecoder(stdout)
		for {
			var a response
			if err := answers.Decode(&a); err != nil {
				return
			}
			p.mu.Lock()
			c := p.waiting[a.ID]
			delete(p.waiting, a.ID)
			p.mu.Unlock()
			c <- a
		}
	})
	t.Cleanup(p.stop)
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// stop ends the process, whatever state it is in, and reaps it.
func (p *process) stop() {
	p.mu.Lock()
	stopped := p.stopped
	p.stopped = true
	p.mu.Unlock()
	if stopped {
		return
	}
	_ = p.stdin.Close()
	_ = p.cmd.Process.Kill()
	p.reading.Wait()
	_ = p.cmd.Wait()
}

// ask sends a request; the answer comes through the channel.
func (p *process) ask(q request) <-chan response {
	p.t.Helper()
	if q.Timeout == 0 {
		q.Timeout = patience
	}
	c := make(chan response, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	q.ID = p.next
	p.waiting[q.ID] = c
	if err := p.in.Encode(q); err != nil {
		p.t.Errorf("%s: %v", q.Op, err)
	}
	return c
}

func (p *process) do(q request) response {
	p.t.Helper()
	return p.await(q.Op, p.ask(q))
}

func (p *process) await(op string, c <-chan response) response {
	p.t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(2 * patience):
		p.signal(syscall.SIGQUIT) // it prints its goroutines
		p.reading.Wait()
		p.t.Fatalf("%s: process %d does not answer", op, p.cmd.Process.Pid)
		panic("unreachable")
	}
}

// job is processes with per ranks each; rank i is rank i%per of process i/per.
type job struct {
	t         testing.TB
	per       int
	processes []*process
	addrs     [][]byte
}

func startJob(t testing.TB, processes, per int) *job {
	t.Helper()
	j := &job{t: t, per: per}
	for range processes {
		j.processes = append(j.processes, startProcess(t))
	}
	for i := range processes * per {
		a := j.processes[i/per].do(request{Op: "listen", Rank: i % per})
		if a.Err != "" {
			t.Fatal(a.Err)
		}
		j.addrs = append(j.addrs, a.Addr)
	}
	return j
}

func (j *job) of(i int) *process { return j.processes[i/j.per] }

// all asks the same of the ranks and returns their answers.
func (j *job) all(ranks []int, q request) map[int]response {
	j.t.Helper()
	asked := make(map[int]<-chan response)
	for _, i := range ranks {
		q := q
		q.Rank, q.Self = i%j.per, i
		asked[i] = j.of(i).ask(q)
	}
	answers := make(map[int]response)
	for _, i := range ranks {
		answers[i] = j.of(i).await(q.Op, asked[i])
	}
	return answers
}

// must is all, and no answer may be an error. It returns the longest time taken.
func (j *job) must(ranks []int, q request) (slowest time.Duration) {
	j.t.Helper()
	for i, a := range j.all(ranks, q) {
		if a.Err != "" {
			j.t.Fatalf("rank %d: %s: %s", i, q.Op, a.Err)
		}
		slowest = max(slowest, a.Took)
	}
	return slowest
}

func (j *job) ranks(except ...int) []int {
	var rs []int
	for i := range j.addrs {
		out := false
		for _, e := range except {
			out = out || e == i
		}
		if !out {
			rs = append(rs, i)
		}
	}
	return rs
}

func (j *job) connect() time.Duration {
	j.t.Helper()
	return j.must(j.ranks(), request{Op: "connect", Addrs: j.addrs})
}

func TestProcesses(t *testing.T) {
	for _, c := range []struct{ processes, per int }{{2, 1}, {4, 1}, {3, 2}} {
		t.Run(fmt.Sprintf("%dx%d", c.processes, c.per), func(t *testing.T) {
			j := startJob(t, c.processes, c.per)
			before := j.all(j.ranks(), request{Op: "fds"})
			j.connect()
			for id := range uint64(3) {
				j.must(j.ranks(), request{Op: "exchange", XID: id, Size: 4096 << id})
			}
			n := len(j.addrs)
			for i := range n {
				if a := j.of(i).do(request{
					Op: "send", Rank: i % c.per, Peer: (i + 1) % n,
					Data: fmt.Sprint("from ", i),
				}); a.Err != "" {
					t.Error(a.Err)
				}
			}
			for i, a := range j.all(j.ranks(), request{Op: "event"}) {
				if from := (i + n - 1) % n; a.Kind != Message || a.Peer != from || a.Data != fmt.Sprint("from ", from) {
					t.Errorf("rank %d: %+v", i, a)
				}
			}
			j.must(j.ranks(n-1), request{Op: "close"})
			for range n - 1 {
				a := j.of(n - 1).do(request{Op: "event", Rank: (n - 1) % c.per})
				if a.Kind != Left {
					t.Errorf("%+v", a)
				}
			}
			j.must([]int{n - 1}, request{Op: "close"})
			for i, a := range j.all(j.ranks(), request{Op: "fds"}) {
				// The listening sockets are gone as well; the runtime's poller was there for them.
				if a.FDs > before[i].FDs {
					t.Errorf("rank %d: %d descriptors before, %d after", i, before[i].FDs, a.FDs)
				}
			}
		})
	}
}

func TestConnectTime(t *testing.T) {
	for _, c := range []struct {
		n     int
		limit time.Duration // many times what is usual: the machine may be busy
	}{{8, time.Second}, {64, 10 * time.Second}} {
		t.Run(fmt.Sprint(c.n), func(t *testing.T) {
			if testing.Short() && c.n > 8 {
				t.Skip("short")
			}
			j := startJob(t, c.n, 1)
			took := j.connect()
			exchanged := j.must(j.ranks(), request{Op: "exchange", XID: 1, Size: 1 << 13})
			t.Logf("%d processes: connect %v, exchange %v, slowest rank", c.n, took, exchanged)
			if took > c.limit {
				t.Errorf("connect took %v", took)
			}
		})
	}
}

// names lists where something could be left behind.
func names(t *testing.T) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	for _, dir := range []string{"/dev/shm", os.TempDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.Contains(e.Name(), "weft") || strings.Contains(e.Name(), "window") {
				all[dir+"/"+e.Name()] = true
			}
		}
	}
	return all
}

// abstractSocket reports whether the kernel knows a socket of that name.
func abstractSocket(t *testing.T, name string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(b), "@"+name)
}

func TestKill(t *testing.T) {
	before := names(t)
	const n, victim = 4, 2
	j := startJob(t, n, 1)
	var a Address
	if err := a.UnmarshalBinary(j.addrs[victim]); err != nil {
		t.Fatal(err)
	}
	if !abstractSocket(t, a.Socket) {
		t.Errorf("%s is not listed while it listens: this test would see nothing", a.Socket)
	}
	j.connect()
	j.must(j.ranks(), request{Op: "exchange", XID: 1, Size: 1 << 16})

	// The survivors are in an exchange that the victim never joins.
	asked := make(map[int]<-chan response)
	for _, i := range j.ranks(victim) {
		asked[i] = j.of(i).ask(request{Op: "exchange", XID: 2, Size: 4096})
	}
	killed := now()
	j.of(victim).signal(syscall.SIGKILL)
	for i, a := range j.all(j.ranks(victim), request{Op: "event"}) {
		if a.Kind != Died || a.Peer != victim {
			t.Errorf("rank %d: %+v", i, a)
		}
		t.Logf("rank %d: %s, %v after the kill", i, a.Err, time.Duration(a.When-killed))
		if late := time.Duration(a.When - killed); late > 30*time.Second {
			t.Errorf("rank %d learned it %v after the kill", i, late)
		}
	}
	for i, c := range asked {
		if a := j.of(i).await("exchange", c); a.Cause != ErrDied.Error() || a.Peer != victim {
			t.Errorf("rank %d: %+v", i, a)
		}
	}
	j.must(j.ranks(victim), request{Op: "exchange", XID: 3, Size: 4096, Skip: []int{victim}})
	for _, p := range j.processes {
		p.stop()
	}
	for name := range names(t) {
		if !before[name] {
			t.Errorf("left behind: %s", name)
		}
	}
	for _, b := range j.addrs {
		if err := a.UnmarshalBinary(b); err != nil {
			t.Fatal(err)
		}
		if abstractSocket(t, a.Socket) {
			t.Errorf("left behind: @%s", a.Socket)
		}
	}
}

// A child of the dead process holds its sockets open, so that they never end.
func TestKillWithInheritedSockets(t *testing.T) {
	j := startJob(t, 3, 1)
	j.connect()
	j.must([]int{1}, request{Op: "fork"})
	killed := now()
	j.of(1).signal(syscall.SIGKILL)
	for i, a := range j.all(j.ranks(1), request{Op: "event"}) {
		if a.Kind != Died || a.Peer != 1 || !strings.Contains(a.Err, "ended") {
			t.Errorf("rank %d: %+v", i, a)
		}
		t.Logf("rank %d: %s, %v after the kill", i, a.Err, time.Duration(a.When-killed))
	}
}

// The same while ranks still join: the socket that a dead process listened on accepts connections
// that nobody answers.
func TestKillWhileJoining(t *testing.T) {
	for _, fork := range []bool{false, true} {
		for victim := range 3 {
			t.Run(fmt.Sprintf("rank %d, sockets inherited %v", victim, fork), func(t *testing.T) {
				j := startJob(t, 3, 1)
				if fork {
					j.must([]int{victim}, request{Op: "fork"})
				}
				asked := make(map[int]<-chan response)
				for _, i := range j.ranks(victim) {
					asked[i] = j.of(i).ask(request{Op: "connect", Self: i, Addrs: j.addrs})
				}
				j.of(victim).signal(syscall.SIGKILL)
				blamed := 0
				for i, c := range asked {
					a := j.of(i).await("connect", c)
					if a.Cause != ErrDied.Error() || a.Took > patience/2 {
						t.Errorf("rank %d: %+v", i, a)
					}
					if a.Peer == victim {
						blamed++
					}
				}
				if blamed == 0 { // a rank may see another give up first
					t.Error("nobody names the rank that died")
				}
			})
		}
	}
}

func TestStop(t *testing.T) {
	const n, victim = 3, 0
	j := startJob(t, n, 1)
	j.connect()
	j.of(victim).signal(syscall.SIGSTOP)
	for i, a := range j.all(j.ranks(victim),
		request{Op: "exchange", XID: 1, Size: 4096, Timeout: 200 * time.Millisecond}) {
		if a.Peer != victim || a.Cause != context.DeadlineExceeded.Error() {
			t.Errorf("rank %d: %+v", i, a)
		}
	}
	j.must(j.ranks(victim), request{Op: "exchange", XID: 2, Size: 4096, Skip: []int{victim}})
	// Leaving does not wait for it either.
	if took := j.must(j.ranks(victim), request{Op: "close"}); took > patience/2 {
		t.Errorf("close took %v", took)
	}
	j.of(victim).signal(syscall.SIGCONT)
	for range n - 1 {
		if a := j.of(victim).do(request{Op: "event"}); a.Kind != Left {
			t.Errorf("%+v", a)
		}
	}
}

// Death shows when the kernel has taken the process down, which takes the longer the more memory it
// had.
func TestDeathLatency(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	for _, size := range []int{4096, 64 << 20} {
		j := startJob(t, 2, 1)
		j.connect()
		j.must([]int{1}, request{Op: "touch", Size: size})
		event := j.of(0).ask(request{Op: "event"})
		killed := now()
		j.of(1).signal(syscall.SIGKILL)
		if _, err := j.of(1).cmd.Process.Wait(); err != nil {
			t.Fatal(err)
		}
		reaped := now()
		a := j.of(0).await("event", event)
		if a.Kind != Died {
			t.Errorf("%+v", a)
		}
		t.Logf("%d bytes touched: event %v after the kill, %v after the process could be reaped", size,
			time.Duration(a.When-killed), time.Duration(a.When-reaped))
	}
}

// runAs makes cmd, which runs this test binary, run as another user, who may be unable to open the
// file by its name.
func runAs(t testing.TB, cmd *exec.Cmd, uid uint32) {
	t.Helper()
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exe.Close() })
	cmd.ExtraFiles = []*os.File{exe}
	cmd.Path = "/proc/self/fd/3"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

// Ranks of root and of another user may share; the rank that is not root accepts root's.
func TestProcessesOfTwoUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	for _, c := range []struct {
		a, b uint32
		ok   bool
	}{{0, 65533, true}, {65533, 0, true}, {65533, 65533, true}, {65533, 65532, false}} {
		j := &job{t: t, per: 1}
		for _, uid := range []uint32{c.a, c.b} {
			j.processes = append(j.processes, startProcess(t, func(cmd *exec.Cmd) { runAs(t, cmd, uid) }))
			j.addrs = append(j.addrs, j.processes[len(j.processes)-1].do(request{Op: "listen"}).Addr)
		}
		for i, a := range j.all(j.ranks(), request{Op: "connect", Addrs: j.addrs}) {
			if (a.Err == "") != c.ok || (!c.ok && (a.Cause != ErrOtherUser.Error() || a.Peer != 1-i)) {
				t.Errorf("users %d and %d: rank %d: %q", c.a, c.b, i, a.Err)
			}
		}
		if c.ok {
			j.must(j.ranks(), request{Op: "exchange", XID: 1, Size: 4096})
		}
	}
}
