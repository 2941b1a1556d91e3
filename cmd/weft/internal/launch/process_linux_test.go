package launch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/topology"
)

// The test binary plays three parts: the tests, the launcher (guard and
// supervisor, when jobEnv is set) and the ranks' programs (when its first argument
// is in programs).
const jobEnv = "LAUNCH_TEST_JOB"

// fastExit keeps the race detector from sleeping a second at each process exit.
const fastExit = "GORACE=atexit_sleep_ms=0"

type testJob struct {
	Job
	JSON bool
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if p, ok := programs[os.Args[1]]; ok {
			p()
			os.Exit(0)
		}
	}
	if spec := os.Getenv(jobEnv); spec != "" {
		os.Exit(launcher(spec))
	}
	os.Exit(m.Run())
}

func launcher(spec string) int {
	var j testJob
	if err := json.Unmarshal([]byte(spec), &j); err != nil {
		panic(err)
	}
	gone, ok := Lifeline()
	if !ok {
		guard := Guard
		if j.Hosts > 0 {
			guard = GuardHosts
		}
		code, err := guard()
		if err != nil {
			fmt.Fprintln(os.Stderr, "guard:", err)
		}
		return code
	}
	os.Unsetenv(jobEnv)
	j.Program = "/proc/self/exe"
	if len(j.Args) > 0 && strings.HasPrefix(j.Args[0], "/") {
		j.Program, j.Args = j.Args[0], j.Args[1:]
	}
	j.Sink = Text(os.Stdout, os.Stderr, TextOptions{Size: j.Size})
	if j.JSON {
		j.Sink = JSON(os.Stdout)
	}
	res, err := j.Run(gone)
	if err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
	}
	return res.Code
}

var me = os.Getenv(envRank)

// forever blocks until a signal ends the process.
func forever() {
	fmt.Println("ready", os.Getpid())
	select {} // a signal handler keeps the runtime from calling this a deadlock
}

func keepAlive() { signal.Notify(make(chan os.Signal, 1), syscall.SIGWINCH) }

var programs = map[string]func(){
	"rank:env": func() {
		for _, k := range []string{
			envRank, envSize, envLocalRank, envLocalSize, envAddress, envSecret, "EXTRA",
			lifelineEnv,
		} {
			v, ok := os.LookupEnv(k)
			if ok {
				fmt.Println(k + "=" + v)
			}
		}
	},
	// Every rank reaches rank 0 at the address; nobody else gets the port meanwhile.
	"rank:meet": func() {
		if me != "0" {
			c, err := net.Dial("tcp", os.Getenv(envAddress))
			for errors.Is(err, syscall.ECONNREFUSED) { // rank 0 is not there yet
				time.Sleep(time.Millisecond)
				c, err = net.Dial("tcp", os.Getenv(envAddress))
			}
			if err != nil {
				panic(err)
			}
			fmt.Fprintln(c, me)
			return
		}
		l, err := net.Listen("tcp", os.Getenv(envAddress))
		if err != nil {
			panic(err)
		}
		size, _ := strconv.Atoi(os.Getenv(envSize))
		var met []string
		for range size - 1 {
			c, err := l.Accept()
			if err != nil {
				panic(err)
			}
			b, _ := io.ReadAll(c)
			met = append(met, strings.TrimSpace(string(b)))
		}
		slices.Sort(met)
		fmt.Println("met", met)
	},
	"rank:chatter": func() {
		for i := range 1000 {
			os.Stdout.WriteString("out ")
			os.Stdout.WriteString(me + " ")
			fmt.Fprintf(os.Stdout, "%d\n", i)
			fmt.Fprintf(os.Stderr, "err %s %d\n", me, i)
		}
		os.Stdout.WriteString("last words of " + me) // no line end
	},
	"rank:exit": func() { // at SIGUSR1, 1 exits with 3, the others wait
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGUSR1)
		fmt.Println("ready", os.Getpid())
		<-c
		if me == "1" {
			os.Exit(3)
		}
		select {}
	},
	"rank:crash": func() { // 2 is killed; the others exit 1 as soon as they see that it has ended
		if me == "2" {
			keepAlive()
			if err := os.Symlink(strconv.Itoa(os.Getpid()), os.Args[2]); err != nil {
				panic(err)
			}
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		for {
			if pid, err := os.Readlink(os.Args[2]); err == nil {
				if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err != nil || over(stat) {
					os.Exit(1)
				}
			}
			time.Sleep(time.Millisecond)
		}
	},
	"rank:stubborn": func() { // 0 fails at SIGUSR1, the others ignore SIGTERM
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGUSR1)
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready", os.Getpid())
		<-c
		if me == "0" {
			os.Exit(9)
		}
		select {}
	},
	"rank:signals": func() {
		c := make(chan os.Signal, 8)
		signal.Notify(c, forwarded...)
		fmt.Println("ready", os.Getpid())
		for s := range c {
			fmt.Println("got", signalName(s.(syscall.Signal)))
			if s == syscall.SIGINT {
				os.Exit(0)
			}
		}
	},
	"rank:heedless": func() { // hears SIGINT and goes on
		c := make(chan os.Signal, 8)
		signal.Notify(c, syscall.SIGINT)
		fmt.Println("ready", os.Getpid())
		for s := range c {
			fmt.Println("got", signalName(s.(syscall.Signal)))
		}
	},
	"rank:family": func() { // a child in our group, and one in its own session
		for _, setsid := range []bool{false, true} {
			c := exec.Command("/proc/self/exe", "child")
			c.Stdout = os.Stdout
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: setsid}
			r, w, err := os.Pipe()
			if err != nil {
				panic(err)
			}
			c.ExtraFiles = []*os.File{w}
			if err := c.Start(); err != nil {
				panic(err)
			}
			w.Close()
			_, _ = io.ReadAll(r) // until the child has said that it is ready
		}
		if len(os.Args) > 2 { // leave them behind
			os.Exit(0)
		}
		keepAlive()
		forever()
	},
	"child": func() {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		keepAlive()
		fmt.Println("ready", os.Getpid())
		os.NewFile(3, "ready").Close()
		select {}
	},
	"rank:affinity": func() {
		cpus, err := topology.Allowed()
		fmt.Println("cpus", topology.FormatList(cpus), err)
	},
	"rank:stdin": func() {
		b, _ := io.ReadAll(os.Stdin)
		fmt.Printf("read %q\n", b)
	},
	"rank:yes": func() {
		for {
			if _, err := fmt.Println("y"); err != nil {
				os.Exit(1)
			}
		}
	},
	"rank:host": func() { // says where it is, and waits
		space, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			panic(err)
		}
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			panic(err)
		}
		fmt.Println("place", os.Getenv(envLocalRank), "of", os.Getenv(envLocalSize), "at", addresses)
		fmt.Println("in", space)
		forever()
	},
	"rank:cut":  loseHost,
	"rank:wait": func() { keepAlive(); forever() },
}

// process is a running launcher.
type process struct {
	*exec.Cmd
	t        *testing.T
	out, err bytes.Buffer
	lines    *bufio.Scanner
}

func start(t *testing.T, j testJob) *process {
	t.Helper()
	p := command(t, j)
	p.begin()
	return p
}

// command is a launcher that has yet to begin.
func command(t *testing.T, j testJob) *process {
	t.Helper()
	if j.Bind == "" {
		j.Bind = BindOff
	}
	if j.Grace == 0 {
		j.Grace = 5 * time.Second
	}
	j.Sink, j.Stdin = nil, nil
	spec, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	p := &process{t: t, Cmd: exec.CommandContext(ctx, "/proc/self/exe")}
	p.Env = append(os.Environ(), jobEnv+"="+string(spec), fastExit)
	p.Stderr = &p.err
	return p
}

func (p *process) begin() {
	p.t.Helper()
	r, err := p.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.lines = bufio.NewScanner(io.TeeReader(r, &p.out))
	p.lines.Buffer(nil, 4<<20)
}

// until reads output until n lines matched and returns their first submatches.
func (p *process) until(n int, pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	var got []string
	for len(got) < n && p.lines.Scan() {
		if m := re.FindStringSubmatch(p.lines.Text()); m != nil {
			got = append(got, m[1])
		}
	}
	if len(got) < n {
		_ = p.Wait() // stderr is complete and ours only then
		p.t.Fatalf("output ended after %d of %d lines like %q:\n%s%s", len(got), n, pattern, &p.out, &p.err)
	}
	return got
}

// finish reads the rest of the output and returns the exit status.
func (p *process) finish() int {
	p.t.Helper()
	for p.lines.Scan() {
	}
	err := p.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

func (p *process) want(code int, patterns ...string) {
	p.t.Helper()
	if got := p.finish(); got != code {
		p.t.Errorf("exit status %d, want %d", got, code)
	}
	for _, re := range patterns {
		if !regexp.MustCompile(re).MatchString(p.out.String() + p.err.String()) {
			p.t.Errorf("no %q", re)
		}
	}
	if p.t.Failed() {
		p.t.Logf("stdout:\n%s\nstderr:\n%s", tail(p.out.String()), tail(p.err.String()))
	}
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

func pids(t *testing.T, texts []string) []int {
	var out []int
	for _, s := range texts {
		pid, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, pid)
	}
	return out
}

// over says by a process's stat that it has ended, whether its parent knows or not.
func over(stat []byte) bool {
	state, _, _ := parseStat(stat)
	return state == 'Z' || state == 'X'
}

// gone waits until none of the processes runs any more; a zombie does not run.
func gone(t *testing.T, pids []int) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for _, pid := range pids {
		for {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				break
			}
			if over(stat) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("process %d still runs: %s", pid, stat)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func TestRanksKnowTheirPlace(t *testing.T) {
	p := start(t, testJob{Job: Job{Args: []string{"rank:env"}, Size: 3, Env: []string{"EXTRA=a b"}}})
	p.want(0,
		`(?m)^\[2\] WEFT_RANK=2$`, `(?m)^\[2\] WEFT_SIZE=3$`, `(?m)^\[1\] WEFT_LOCAL_RANK=1$`,
		`(?m)^\[1\] WEFT_LOCAL_SIZE=3$`,
		`(?m)^\[1\] WEFT_ADDRESS=127\.0\.0\.1:\d+$`, `(?m)^\[1\] EXTRA=a b$`)
	secrets := regexp.MustCompile(`WEFT_SECRET=([0-9a-f]{64})\n`).FindAllStringSubmatch(p.out.String(), -1)
	if len(secrets) != 3 || secrets[0][1] != secrets[2][1] {
		t.Errorf("secrets %q", secrets)
	}
	if strings.Contains(p.out.String(), lifelineEnv) {
		t.Errorf("stray variables:\n%s", &p.out)
	}
}

func TestRanksMeetAtTheAddress(t *testing.T) {
	start(t, testJob{Job: Job{Args: []string{"rank:meet"}, Size: 4}}).want(0, `met \[1 2 3\]`)
}

func TestReservedPortIsRankZeros(t *testing.T) {
	address, port, err := reservePort(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	// Whoever asks for any port gets another one.
	for range 2000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if l.Addr().String() == address {
			t.Fatal("the reserved port was handed out")
		}
		l.Close()
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("rank 0 cannot have its port: %v", err)
	}
	l.Close()
}

func TestLinesStayWhole(t *testing.T) {
	p := start(t, testJob{Job: Job{Args: []string{"rank:chatter"}, Size: 4}})
	p.want(0)
	re := regexp.MustCompile(`^\[(\d)\] (?:(?:out|err) (\d) (\d+)|last words of (\d))$`)
	next := map[string]int{}
	words := 0
	for stream, text := range map[string]string{"out": p.out.String(), "err": p.err.String()} {
		for line := range strings.Lines(text) {
			m := re.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
			if m == nil || (m[2]+m[4]) != m[1] {
				t.Fatalf("broken line %q", line)
			}
			if m[4] != "" {
				words++
				continue
			}
			key := stream + m[1]
			if m[3] != strconv.Itoa(next[key]) {
				t.Fatalf("%s: line %s, want %d", key, m[3], next[key])
			}
			next[key]++
		}
	}
	for key, n := range next {
		if n != 1000 {
			t.Errorf("%s: %d lines", key, n)
		}
	}
	if len(next) != 8 || words != 4 {
		t.Errorf("%d streams, %d last lines", len(next), words)
	}
}

func TestFirstFailureEndsTheOthers(t *testing.T) {
	p := start(t, testJob{Job: Job{Args: []string{"rank:exit"}, Size: 4, Grace: 100 * time.Millisecond}})
	ranks := pids(t, p.until(4, `ready (\d+)`))
	_ = p.Process.Signal(syscall.SIGUSR1)
	p.want(3, `weft: rank 1 failed first: exit status 3 after`, `ranks 0,2-3: SIGTERM from weft; rank 1: exit status 3`)
	gone(t, ranks)
}

func TestCrashOutranksThoseWhoSawIt(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	start(t, testJob{Job: Job{Args: []string{"rank:crash", victim}, Size: 4, Grace: time.Hour}}).
		want(128+9, `rank 2 failed first: killed by signal 9 \(SIGKILL\)`, `ranks 0-1,3: exit status 1; rank 2: SIGKILL`)
}

// TestCrashOutranksEarlierExits: ranks may be reaped before the one whose crash they saw.
func TestCrashOutranksEarlierExits(t *testing.T) {
	s := &supervisor{job: &Job{}, timer: time.NewTimer(time.Hour), verdict: time.NewTimer(time.Hour)}
	for i := range 3 {
		s.ranks = append(s.ranks, &rank{index: i, pid: 100 + i})
	}
	const exit1, killed = syscall.WaitStatus(1 << 8), syscall.WaitStatus(syscall.SIGKILL)
	for _, end := range []struct {
		rank   int
		status syscall.WaitStatus
		first  int
	}{{0, exit1, 0}, {2, killed, 2}, {1, killed, 2}} {
		s.ended(100+end.rank, end.status)
		if s.first == nil || s.first.index != end.first {
			t.Errorf("after rank %d: %+v is first, want rank %d", end.rank, s.first, end.first)
		}
	}
}

func TestStubbornRanksAreKilled(t *testing.T) {
	p := start(t, testJob{Job: Job{Args: []string{"rank:stubborn"}, Size: 2, Grace: 50 * time.Millisecond}})
	p.until(2, `ready (\d+)`) // before that SIGTERM would end them
	_ = p.Process.Signal(syscall.SIGUSR1)
	p.want(9, `rank 0 failed first: exit status 9`, `(?m)rank 1: SIGKILL from weft$`)
}

func TestSignalsReachTheRanks(t *testing.T) {
	p := start(t, testJob{Job: Job{Args: []string{"rank:signals"}, Size: 2}})
	p.until(2, `ready (\d+)`)
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT, syscall.SIGINT} {
		if err := p.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		p.until(2, `got (`+signalName(sig)+`)`)
	}
	p.want(0)
}

func TestSecondInterruptKills(t *testing.T) {
	p := start(t, testJob{Job: Job{Args: []string{"rank:heedless"}, Size: 2, Grace: time.Hour}})
	ranks := pids(t, p.until(2, `ready (\d+)`))
	_ = p.Process.Signal(syscall.SIGINT)
	p.until(2, `got (SIGINT)`) // two at once could merge into one
	_ = p.Process.Signal(syscall.SIGINT)
	p.want(128+9, `interrupted again: killing all ranks`)
	gone(t, ranks)
}

func TestTerminationIsReported(t *testing.T) {
	p := start(t, testJob{Job: Job{Args: []string{"rank:wait"}, Size: 2}})
	p.until(2, `ready (\d+)`)
	_ = p.Process.Signal(syscall.SIGTERM)
	p.want(128+15, `killed by signal 15 \(SIGTERM\) after .*, as asked`)
}

// The ranks have children, one of them in a session of its own: nothing may stay
// whichever of the launcher's processes is killed.
func TestNoOrphans(t *testing.T) {
	for _, victim := range []string{"guard", "supervisor"} {
		t.Run(victim, func(t *testing.T) {
			p := start(t, testJob{Job: Job{Args: []string{"rank:family"}, Size: 2}})
			family := pids(t, p.until(6, `ready (\d+)`))
			target := p.Process.Pid
			if victim == "supervisor" {
				target = childOf(t, target)
			}
			if err := syscall.Kill(target, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if code := p.finish(); victim == "supervisor" && code != 128+9 {
				t.Errorf("exit status %d", code)
			}
			gone(t, family)
		})
	}
}

func childOf(t *testing.T, parent int) int {
	t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		if _, ppid, ok := parseStat(stat); ok && ppid == parent {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	t.Fatalf("process %d has no child", parent)
	return 0
}

func TestProcessesLeftBehindAreEnded(t *testing.T) {
	p := start(t, testJob{Job: Job{Args: []string{"rank:family", "leave"}, Size: 1, Grace: 50 * time.Millisecond}})
	left := pids(t, p.until(2, `ready (\d+)`))
	p.want(0, `ending 2 processes that the ranks left behind`)
	gone(t, left)
}

func TestTimeout(t *testing.T) {
	p := start(t, testJob{Job: Job{Args: []string{"rank:wait"}, Size: 2, Timeout: 300 * time.Millisecond}})
	p.want(CodeTimeout, `timeout after 300ms`)
}

func TestClosedOutputEndsTheJob(t *testing.T) {
	j := testJob{Job: Job{Args: []string{"rank:yes"}, Size: 2}}
	p := &process{t: t}
	j.Bind, j.Grace = BindOff, time.Second
	spec, _ := json.Marshal(j)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p.Cmd = exec.CommandContext(ctx, "/proc/self/exe")
	p.Env = append(os.Environ(), jobEnv+"="+string(spec), fastExit)
	p.Stdout = w
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	_ = p.Wait()
	if code := p.ProcessState.ExitCode(); code != 128+13 {
		t.Errorf("exit status %d, want 141", code)
	}
}

func TestJobsThatMakeNoSense(t *testing.T) {
	good := Job{Program: "true", Size: 1, Bind: BindAuto, Env: []string{"A="}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Job){
		"at least one rank": func(j *Job) { j.Size = 0 },
		"bind":              func(j *Job) { j.Bind = "hard" },
		"--grace -1s":       func(j *Job) { j.Grace = -time.Second },
		"--timeout -1s":     func(j *Job) { j.Timeout = -time.Second },
		"KEY=VALUE":         func(j *Job) { j.Env = []string{"=x"} },
		envRank:             func(j *Job) { j.Env = []string{envRank + "=1"} },
	} {
		bad := good
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want a word about %q", err, want)
		}
	}
}

func TestNotFound(t *testing.T) {
	start(t, testJob{Job: Job{Args: []string{"/does/not/exist"}, Size: 2}}).want(CodeNotFound, `no such file`)
	start(t, testJob{Job: Job{Args: []string{"/etc/passwd"}, Size: 2}}).want(CodeNotExecutable, `permission denied`)
	start(t, testJob{Job: Job{Args: []string{t.TempDir()}, Size: 2}}).want(CodeNotExecutable, `is a directory`)
	start(t, testJob{Job: Job{Args: []string{"/etc/passwd/x"}, Size: 2}}).want(CodeNotExecutable, `not a directory`)
	script := filepath.Join(t.TempDir(), "script") // which no shell has been named for
	if err := os.WriteFile(script, []byte("exit 0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	start(t, testJob{Job: Job{Args: []string{script}, Size: 2}}).want(CodeNotExecutable, `exec format error`)
}

func TestBind(t *testing.T) {
	allowed, err := topology.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	n := len(allowed)
	p := start(t, testJob{Job: Job{Args: []string{"rank:affinity"}, Size: n, Bind: BindAuto}})
	var got []int
	for _, s := range p.until(n, `cpus (\S+) <nil>`) {
		cpus, err := topology.ParseList(s)
		if err != nil || len(cpus) != 1 {
			t.Errorf("a rank has CPUs %q, want one (%v)", s, err)
		}
		got = append(got, cpus...)
	}
	slices.Sort(got)
	if !slices.Equal(got, allowed) {
		t.Errorf("ranks have %v, want %v", got, allowed)
	}
	p.want(0)

	p = start(t, testJob{Job: Job{Args: []string{"rank:affinity"}, Size: n + 1, Bind: BindAuto}})
	for _, s := range p.until(n+1, `cpus (\S+) <nil>`) {
		if s != topology.FormatList(allowed) {
			t.Errorf("more ranks than CPUs: a rank has CPUs %q, want %v", s, allowed)
		}
	}
	p.want(0)
	start(t, testJob{Job: Job{Args: []string{"rank:affinity"}, Size: n + 1, Bind: BindOn}}).want(1, `--bind auto or off`)
}

func TestStdinIsEmptyUnlessGiven(t *testing.T) {
	start(t, testJob{Job: Job{Args: []string{"rank:stdin"}, Size: 2}}).want(0, `\[0\] read ""`, `\[1\] read ""`)
}

func TestJSONEvents(t *testing.T) {
	p := start(t, testJob{JSON: true, Job: Job{Args: []string{"rank:exit"}, Size: 2, Grace: 50 * time.Millisecond}})
	p.until(2, `"line":"(ready)`)
	_ = p.Process.Signal(syscall.SIGUSR1)
	p.finish()
	kinds := map[Kind][]Event{}
	for line := range strings.Lines(p.out.String()) {
		var e Event
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		kinds[e.Kind] = append(kinds[e.Kind], e)
	}
	if n := len(kinds[Started]); n != 2 {
		t.Errorf("%d starts", n)
	}
	if f := kinds[Failed]; len(f) != 1 || f[0].Rank != 1 || f[0].Code != 3 {
		t.Errorf("failures %+v", f)
	}
	if e := kinds[Exited]; len(e) != 2 {
		t.Errorf("exits %+v", e)
	}
	if e := kinds[Ended]; len(e) != 1 || e[0].Code != 3 || e[0].Rank != -1 {
		t.Errorf("end %+v", e)
	}
}

func TestParseStat(t *testing.T) {
	state, ppid, ok := parseStat([]byte("12 (a) R 9) S 7 1 1"))
	if !ok || state != 'S' || ppid != 7 {
		t.Errorf("%c %d %v", state, ppid, ok)
	}
	for _, bad := range []string{"", "12", "12 (a)", "12 (a) S", "12 (a) S x"} {
		if _, _, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestDoesNotLeakProcesses(t *testing.T) {
	before := len(children())
	start(t, testJob{Job: Job{Args: []string{"rank:env"}, Size: 8}}).want(0)
	if after := len(children()); after != before {
		t.Errorf("%d children, %d before", after, before)
	}
}
