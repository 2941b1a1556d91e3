package collective

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
)

func runChild(role string) error {
	switch role {
	case "bench":
		return runBenchChild()
	case "rank":
		return runRank(os.Stdin, os.Stdout)
	}
	return fmt.Errorf("unknown role %q", role)
}

// order is what a test tells a rank's process at its start.
type order struct {
	ID         string
	Rank, Size int
	Victim     int
	Deadline   time.Duration
	Collective Collective
	Bytes      int
	Window     bool
}

// report is what the process says.
type report struct {
	Event   string // "id", "running", "failed", "went on"
	Rank    int
	ID      string
	Error   string
	Blamed  int
	Died    bool
	Timeout bool
}

// runRank is a rank: it repeats an operation until that fails, masks the victim, and goes on with the others.
func runRank(in io.Reader, out io.Writer) (err error) {
	input := bufio.NewReader(in)
	line, err := input.ReadBytes('\n')
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	say := json.NewEncoder(out).Encode
	var id bootstrap.ID
	if o.ID == "" {
		if id, err = bootstrap.NewID(bootstrap.OnLoopback()); err != nil {
			return err
		}
		if err := say(report{Event: "id", ID: id.String()}); err != nil {
			return err
		}
	} else if id, err = bootstrap.ParseID(o.ID); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	boot, err := bootstrap.DialTCP(ctx, bootstrap.TCPConfig{Rank: o.Rank, Size: o.Size, ID: id})
	if err != nil {
		return err
	}
	comm, err := weft.Join(ctx, weft.WithBootstrap(boot), weft.WithDeadline(o.Deadline))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, comm.Close()) }()
	g, err := New(ctx, comm, Options{})
	if err != nil {
		return err
	}
	mem := make([]byte, o.Bytes*(o.Size+1))
	if o.Window {
		w, err := comm.Alloc(ctx, len(mem))
		if err != nil {
			return err
		}
		mem = w.Bytes()
	}

	for i := 0; ; i++ {
		if err = verified(ctx, g, comm, &o, mem, i); err != nil {
			break
		}
		if i == 20 {
			if err := say(report{Event: "running"}); err != nil {
				return err
			}
		}
	}
	r := report{Event: "failed", Rank: o.Rank, Error: err.Error(), Blamed: -1, Died: errors.Is(err, weft.ErrDied), Timeout: errors.Is(err, weft.ErrTimeout)}
	var peer *weft.PeerError
	if errors.As(err, &peer) {
		r.Blamed = peer.Rank
	}
	if err := say(r); err != nil {
		return err
	}
	if o.Rank == o.Victim {
		return nil
	}
	if again := g.Barrier(ctx, nil); again == nil {
		return errors.New("the failure is not sticky")
	}
	if err := comm.SetMask(ctx, o.Victim); err != nil {
		return err
	}
	for i := range 100 {
		if err := verified(ctx, g, comm, &o, mem, i); err != nil {
			return fmt.Errorf("after the mask: %w", err)
		}
	}
	if err := say(report{Event: "went on"}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, input) // until the test hangs up
	return err
}

// verified runs one operation and checks its result.
func verified(ctx context.Context, g *Group, comm *weft.Comm, o *order, mem []byte, i int) error {
	n := o.Bytes / 4
	whole := weft.SliceOf[int32](weft.TensorAt(mem, weft.Int32, n*(o.Size+1)))
	in, out := whole[:n], whole[n:]
	value := func(rank, k int) int32 { return int32((rank + 1) * (k + i)) }
	for k := range in {
		in[k] = value(comm.Rank(), k)
	}
	var sum int32
	for r := range o.Size {
		if !comm.Masked(r) {
			sum += int32(r + 1)
		}
	}
	wrong := func(k int, got, want int32) error {
		return fmt.Errorf("operation %d: element %d is %d, want %d", i, k, got, want)
	}
	switch o.Collective {
	case Barrier:
		return g.Barrier(ctx, nil)
	case AllReduce:
		if err := g.AllReduce(ctx, nil, weft.TensorOf(out[:n]), weft.TensorOf(in), weft.Sum); err != nil {
			return err
		}
		for k, got := range out[:n] {
			if want := sum * int32(k+i); got != want {
				return wrong(k, got, want)
			}
		}
	case AllGather:
		if err := g.AllGather(ctx, nil, weft.TensorOf(out), weft.TensorOf(in)); err != nil {
			return err
		}
		for k, got := range out {
			if r := k / n; !comm.Masked(r) && got != value(r, k%n) {
				return wrong(k, got, value(r, k%n))
			}
		}
	default:
		root := i % o.Size
		for comm.Masked(root) {
			root = (root + 1) % o.Size
		}
		if err := g.Broadcast(ctx, nil, weft.TensorOf(in), root); err != nil {
			return err
		}
		for k, got := range in {
			if got != value(root, k) {
				return wrong(k, got, value(root, k))
			}
		}
	}
	return nil
}

// process is a rank's process.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	reports chan report
	exit    chan error
}

func start(t *testing.T, o order) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), reports: make(chan report, 16), exit: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), childVariable+"=rank")
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = write
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	line, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.stdin.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer read.Close()
		defer close(p.reports)
		lines := bufio.NewScanner(read)
		for lines.Scan() {
			var r report
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				r = report{Event: "says", Error: lines.Text()}
			}
			p.reports <- r
		}
	})
	go func() {
		err := p.cmd.Wait()
		reader.Wait()
		p.exit <- err
	}()
	return p
}

func (p *process) expect(t *testing.T, event string) report {
	t.Helper()
	select {
	case r := <-p.reports:
		if r.Event != event {
			t.Fatalf("a rank reports %+v, want %q", r, event)
		}
		return r
	case <-time.After(testTimeout):
		t.Fatalf("no report, want %q", event)
	}
	return report{}
}

// run starts a job's processes, waits until all repeat the operation, and ends them at the end of the test.
func run(t *testing.T, o order) []*process {
	t.Helper()
	var all []*process
	t.Cleanup(func() {
		for _, p := range all {
			p.stdin.Close()
			p.cmd.Process.Kill()
			for range p.reports {
			}
			<-p.exit
		}
	})
	for o.Rank = 0; o.Rank < o.Size; o.Rank++ {
		p := start(t, o)
		all = append(all, p)
		if o.Rank == 0 {
			o.ID = p.expect(t, "id").ID
		}
	}
	for _, p := range all {
		p.expect(t, "running")
	}
	return all
}

// phases are the operations in whose midst ranks are killed and stopped: every way that data travel.
func phases() []order {
	all := []order{
		{Collective: Barrier, Bytes: 4},
		{Collective: AllReduce, Bytes: 8},
		{Collective: AllReduce, Bytes: 1 << 20},
		{Collective: AllReduce, Bytes: 1 << 20, Window: true},
		{Collective: AllGather, Bytes: 1 << 18},
		{Collective: AllGather, Bytes: 1 << 18, Window: true},
		{Collective: Broadcast, Bytes: 1 << 20},
		{Collective: Broadcast, Bytes: 1 << 20, Window: true},
	}
	if testing.Short() {
		all = slices.Delete(all, 4, len(all))
	}
	return all
}

func (o order) String() string {
	return fmt.Sprintf("%v of %d bytes, windows %t, rank %d of %d", o.Collective, o.Bytes, o.Window, o.Victim, o.Size)
}

// TestKilledRank: when a rank is killed in the midst of an operation, the others return an error that names it within two seconds, and
// go on without it.
func TestKilledRank(t *testing.T) {
	for i, o := range phases() {
		o.Size, o.Deadline = 3, 30*time.Second
		o.Victim = i % o.Size
		t.Run(o.String(), func(t *testing.T) {
			all := run(t, o)
			killed := time.Now()
			if err := all[o.Victim].cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			for r, p := range all {
				if r == o.Victim {
					continue
				}
				f := p.expect(t, "failed")
				if d := time.Since(killed); d > 2*time.Second || f.Blamed != o.Victim || !f.Died {
					t.Errorf("rank %d fails after %v: %s", r, d, f.Error)
				}
			}
			for r, p := range all {
				if r != o.Victim {
					p.expect(t, "went on")
				}
			}
		})
	}
}

// TestStoppedRank: when a rank stands still, the others return an error that names it at their deadline, and go on without it. When it
// wakes up in the midst of what they left behind, it returns an error too.
func TestStoppedRank(t *testing.T) {
	const deadline = 800 * time.Millisecond
	for i, o := range phases() {
		o.Size, o.Deadline = 3, deadline
		o.Victim = (i + 1) % o.Size
		t.Run(o.String(), func(t *testing.T) {
			all := run(t, o)
			stopped := time.Now()
			if err := all[o.Victim].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			for r, p := range all {
				if r == o.Victim {
					continue
				}
				f := p.expect(t, "failed")
				if d := time.Since(stopped); d < deadline*9/10 || d > deadline+2*time.Second || f.Blamed != o.Victim || !f.Timeout {
					t.Errorf("rank %d fails after %v: %s", r, d, f.Error)
				}
			}
			for r, p := range all {
				if r != o.Victim {
					p.expect(t, "went on")
				}
			}
			if err := all[o.Victim].cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if f := all[o.Victim].expect(t, "failed"); f.Blamed < 0 {
				t.Errorf("the stopped rank wakes up to %q", f.Error)
			}
		})
	}
}
