package collective

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
)

// trial is what a benchmark asks of all ranks.
type trial struct {
	Collective Collective
	Bytes      int
	Times      int
	Window     bool   // operands lie in a window
	InPlace    bool   // the output is the input
	Apart      bool   // a barrier, not timed, precedes each operation
	Force      string // an algorithm
	Scratch    int
	Tuning     sizes
}

// A benchmark's processes: the test is rank 0, the others serve trials until it hangs up.
type bench struct {
	comm     *weft.Comm
	groups   map[string]*Group
	window   *weft.Window
	plain    []byte
	children []*exec.Cmd
	pipes    []*os.File
}

const benchBytes = 64 << 20

// benchVariable makes the test binary run as one rank of a benchmark.
const benchVariable = "WEFT_COLLECTIVE_BENCH"

func newBench(b testing.TB, ranks int) *bench {
	b.Helper()
	id, err := bootstrap.NewID(bootstrap.OnLoopback())
	if err != nil {
		b.Fatal(err)
	}
	s := &bench{}
	cpus := usableCPUs(b)
	for r := 1; r < ranks; r++ {
		read, write, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %s", benchVariable, r, ranks, cpus[r%len(cpus)], id))
		cmd.Stdin, cmd.Stderr = read, os.Stderr
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		read.Close()
		s.children, s.pipes = append(s.children, cmd), append(s.pipes, write)
	}
	pin(b, cpus[0])
	b.Cleanup(func() { unpin(b, cpus) })
	b.Cleanup(func() {
		for i, c := range s.children {
			s.pipes[i].Close()
			if err := c.Wait(); err != nil {
				b.Error(err)
			}
		}
		for _, g := range s.groups {
			g.Close()
		}
		s.comm.Close()
	})
	if err := s.join(context.Background(), 0, ranks, id); err != nil {
		b.Fatal(err)
	}
	return s
}

func (s *bench) join(ctx context.Context, rank, size int, id bootstrap.ID) error {
	boot, err := bootstrap.DialTCP(ctx, bootstrap.TCPConfig{Rank: rank, Size: size, ID: id})
	if err != nil {
		return err
	}
	if s.comm, err = weft.Join(ctx, weft.WithBootstrap(boot), weft.WithDeadline(20*time.Second)); err != nil {
		return err
	}
	s.groups = map[string]*Group{}
	s.plain = bytes.Repeat([]byte{0}, 2*benchBytes) // written, so that its pages exist
	s.window, err = s.comm.Alloc(ctx, 2*benchBytes)
	return err
}

// run takes part in a trial and returns each operation's time.
func (s *bench) run(ctx context.Context, t trial) ([]time.Duration, error) {
	tuning = t.Tuning
	key := fmt.Sprint(t.Force, t.Scratch, t.Tuning)
	g := s.groups[key]
	if g == nil {
		o := Options{Scratch: t.Scratch}
		if t.Force != "" {
			o.Force = []string{t.Force}
		}
		var err error
		if g, err = New(ctx, s.comm, o); err != nil {
			return nil, err
		}
		s.groups[key] = g
	}
	mem := s.plain
	if t.Window {
		mem = s.window.Bytes()
	}
	out := weft.TensorAt(mem, weft.Float32, t.Bytes/4)
	in := weft.TensorAt(mem[benchBytes:], weft.Float32, t.Bytes/4)
	all := weft.TensorAt(mem, weft.Float32, t.Bytes/4*s.comm.Size())
	if t.InPlace {
		in = out
	}
	times := make([]time.Duration, t.Times)
	if err := g.Barrier(ctx, nil); err != nil {
		return nil, err
	}
	for i := range times {
		if t.Apart {
			if err := g.Barrier(ctx, nil); err != nil {
				return nil, err
			}
		}
		var err error
		start := time.Now()
		switch t.Collective {
		case AllReduce:
			err = g.AllReduce(ctx, nil, out, in, weft.Sum)
		case AllGather:
			err = g.AllGather(ctx, nil, all, in)
		case Broadcast:
			err = g.Broadcast(ctx, nil, out, 0)
		default:
			err = g.Barrier(ctx, nil)
		}
		times[i] = time.Since(start)
		if err != nil {
			return nil, err
		}
	}
	return times, nil
}

func (s *bench) trial(b testing.TB, t trial) []time.Duration {
	b.Helper()
	line, err := json.Marshal(t)
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range s.pipes {
		if _, err := p.Write(append(line, '\n')); err != nil {
			b.Fatal(err)
		}
	}
	times, err := s.run(context.Background(), t)
	if err != nil {
		b.Fatal(err)
	}
	slices.Sort(times)
	return times
}

// serveBench is a rank of a benchmark.
func serveBench(place string) (err error) {
	var rank, size, cpu int
	var text string
	if _, err := fmt.Sscanf(place, "%d %d %d %s", &rank, &size, &cpu, &text); err != nil {
		return err
	}
	id, err := bootstrap.ParseID(text)
	if err != nil {
		return err
	}
	if err := pinTo(cpu); err != nil {
		return err
	}
	var s bench
	if err := s.join(context.Background(), rank, size, id); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.comm.Close()) }()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var t trial
		if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
			return err
		}
		if _, err := s.run(context.Background(), t); err != nil {
			return err
		}
	}
	return lines.Err()
}

func usableCPUs(b testing.TB) []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		b.Fatal(err)
	}
	var cpus []int
	for i := range 1024 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}

// pinTo binds every thread of this process, and those that they will make, to processors.
func pinTo(cpus ...int) error {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		id, err := strconv.Atoi(filepath.Base(t))
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

func pin(b testing.TB, cpu int) {
	if err := pinTo(cpu); err != nil {
		b.Fatal(err)
	}
}

func unpin(b testing.TB, cpus []int) {
	if err := pinTo(cpus...); err != nil {
		b.Error(err)
	}
}

// BenchmarkAllReduce times sums of fp32 on real processes, one pinned to each processor as long as there are enough.
func BenchmarkAllReduce(b *testing.B) {
	for _, ranks := range []int{2, 4} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			s := newBench(b, ranks)
			for _, n := range []int{8, 1 << 10, 32 << 10, 1 << 20, 16 << 20} {
				for _, inWindow := range []bool{false, true} {
					b.Run(fmt.Sprintf("bytes=%d/window=%t", n, inWindow), func(b *testing.B) {
						b.SetBytes(int64(n))
						times := s.trial(b, trial{Collective: AllReduce, Bytes: n, Times: b.N, Window: inWindow, Tuning: tuning})
						b.ReportMetric(float64(times[len(times)/2])/1e3, "p50-us")
						b.ReportMetric(float64(times[len(times)*99/100])/1e3, "p99-us")
					})
				}
			}
		})
	}
}

// TestSweep compares algorithms and settings on real processes, one pinned to each processor, in interleaved rounds:
//
//	SWEEP="2 auto two-shot two-shot,chunk=65536 window,window" SIZES=8,1048576 go test -run TestSweep -v
//
// After the number of ranks come algorithms with what differs: window and inplace say where operands are; chunk, stream and scratch are
// sizes, past what decides between the caches and memory. It prints the median in microseconds and, in brackets, the least of the rounds' medians.
func TestSweep(t *testing.T) {
	want := strings.Fields(os.Getenv("SWEEP"))
	if len(want) == 0 {
		t.Skip("SWEEP is not set")
	}
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	kind := AllReduce
	for k := range collectives {
		if k.String() == os.Getenv("KIND") {
			kind = k
		}
	}
	var sizes []int
	for _, f := range strings.Split(cmp.Or(os.Getenv("SIZES"), "8,64,1024,4096,16384,65536,262144,1048576,4194304,16777216,67108864"), ",") {
		sizes = append(sizes, number(f))
	}
	var trials []trial
	for _, f := range want[1:] {
		parts := strings.Split(f, ",")
		tr := trial{Collective: kind, Apart: os.Getenv("APART") != "", Tuning: tuning}
		if parts[0] != "auto" {
			tr.Force = kind.String() + "/" + parts[0]
		}
		for _, p := range parts[1:] {
			name, value, _ := strings.Cut(p, "=")
			switch name {
			case "window":
				tr.Window = true
			case "inplace":
				tr.InPlace = true
			case "chunk":
				n := number(value)
				tr.Tuning.ReduceChunk, tr.Tuning.TwoShotChunk, tr.Tuning.CopyChunk, tr.Tuning.WindowPart = n, n, n, n
			case "stream":
				tr.Tuning.Stream = number(value)
			case "past":
				tr.Tuning.Staging, tr.Tuning.Sharing = int64(number(value)), int64(number(value))
			case "scratch":
				tr.Scratch = number(value)
			default:
				t.Fatalf("what is %q?", p)
			}
		}
		trials = append(trials, tr)
	}
	s := newBench(t, number(want[0]))
	for _, n := range sizes {
		line := fmt.Sprintf("%9d", n)
		medians := make([][]time.Duration, len(trials))
		for range 5 {
			for i, tr := range trials {
				tr.Bytes, tr.Times = n, max(5, min(4000, 50<<20/(n+4096)))
				times := s.trial(t, tr)
				medians[i] = append(medians[i], times[len(times)/2])
			}
		}
		for i, m := range medians {
			slices.Sort(m)
			line += fmt.Sprintf("  %s %.2f (%.2f)", want[1+i], float64(m[len(m)/2])/1e3, float64(m[0])/1e3)
		}
		t.Log(line)
	}
}
