package fabric_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// roleEnv makes this test's binary a rank of its own: see TestProcess.
const roleEnv = "WEFT_FABRIC_TEST_ROLE"

// A process is rank 1 in a process of its own.
type process struct {
	*exec.Cmd
	*rank
}

// start starts rank 1 and connects rank 0, which is this process, to it.
func start(t *testing.T, o fabric.Options) process {
	t.Helper()
	o.Rank, o.Size = 0, 2
	own := &rank{
		Domain: fabrictest.Libfabric(t.Context(), t, o), memory: make([]byte, 1<<20), peers: make([]*fabric.Peer, 2),
	}
	t.Cleanup(func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	var err error
	if own.region, err = own.Register(own.memory, 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcess$")
	cmd.Env = append(os.Environ(), roleEnv+"="+o.Provider)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	cards, err := swap(out, in, own)
	if err != nil {
		t.Fatal(err)
	}
	if err := own.meet(t.Context(), 1, cards); err != nil {
		t.Fatal(err)
	}
	return process{cmd, own}
}

// swap exchanges the cards of a rank with the other one's, as lines.
func swap(in io.Reader, out io.Writer, r *rank) (cards [2][]byte, err error) {
	for _, card := range [][]byte{r.Card(), r.region.Card()} {
		if _, err := fmt.Fprintln(out, base64.StdEncoding.EncodeToString(card)); err != nil {
			return cards, err
		}
	}
	lines := bufio.NewReader(in)
	for i := range cards {
		line, err := lines.ReadString('\n')
		if err != nil {
			return cards, err
		}
		if cards[i], err = base64.StdEncoding.DecodeString(strings.TrimSpace(line)); err != nil {
			return cards, err
		}
	}
	return cards, nil
}

func (r *rank) meet(ctx context.Context, other int, cards [2][]byte) (err error) {
	r.remotes = make([]fabric.Remote, 2)
	if r.peers[other], err = r.Connect(ctx, other, cards[0]); err != nil {
		return err
	}
	r.remotes[other], err = r.peers[other].Region(cards[1])
	return err
}

// TestProcess is rank 1 of the tests below: it answers every signal with the bytes that came.
func TestProcess(t *testing.T) {
	name := os.Getenv(roleEnv)
	if name == "" {
		t.Skip("started by other tests")
	}
	d, err := fabric.Open(t.Context(), fabric.Options{Rank: 1, Size: 2, Provider: name, Source: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	r := &rank{Domain: d, memory: make([]byte, 1<<20), peers: make([]*fabric.Peer, 2)}
	if r.region, err = d.Register(r.memory, 0); err != nil {
		t.Fatal(err)
	}
	cards, err := swap(os.Stdin, os.Stdout, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.meet(t.Context(), 0, cards); err != nil {
		t.Fatal(err)
	}
	for p, i := r.peers[0], uint64(1); ; i++ {
		if err := errors.Join(p.Await(t.Context(), 0, i), p.Write(t.Context(), r.remotes[0], 1<<19, r.region, 0, 1<<19),
			p.Signal(t.Context(), 0)); err != nil {
			return // the other rank has gone, or this one is killed
		}
	}
}

// echo writes to rank 1 and waits for its answer.
func (p process) echo(ctx context.Context, t *testing.T, round int) error {
	t.Helper()
	peer := p.peers[1]
	pattern(p.memory[:1<<19], round)
	err := errors.Join(peer.Write(ctx, p.remotes[1], 0, p.region, 0, 1<<19), peer.Signal(ctx, 0))
	if err == nil {
		err = errors.Join(peer.Await(ctx, 0, uint64(round)), peer.Flush(ctx))
	}
	if err == nil && !slices.Equal(p.memory[:1<<19], p.memory[1<<19:]) {
		t.Error("other bytes came back")
	}
	return err
}

// onProcesses runs a test with a rank in another process, on each provider that libfabric has for sockets.
func onProcesses(t *testing.T, test func(*testing.T, process)) {
	for _, name := range []string{"tcp", "tcp;ofi_rxm"} {
		t.Run(name, func(t *testing.T) {
			p := start(t, fabric.Options{Provider: name, Source: "127.0.0.1", Timeout: 30 * time.Second})
			for round := range 3 {
				if err := p.echo(t.Context(), t, round+1); err != nil {
					t.Fatal(err)
				}
			}
			test(t, p)
		})
	}
}

// TestProcessKilled: a process ends while it is written to. Its peer gets an error that names it.
func TestProcessKilled(t *testing.T) {
	onProcesses(t, func(t *testing.T, p process) {
		peer, ctx := p.peers[1], t.Context()
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		var err error
		for err == nil {
			err = errors.Join(peer.Write(ctx, p.remotes[1], 0, p.region, 0, 4096), peer.Flush(ctx))
		}
		failed, ok := errors.AsType[*fabric.PeerError](err)
		if !ok || failed.Rank != 1 || !errors.Is(err, fabric.ErrLost) {
			t.Errorf("%v, want ErrLost of rank 1", err)
		}
		names(t, peer.Signal(ctx, 0), 1, "signal", fabric.ErrLost)
	})
}

// TestProcessStopped: a stopped process is silent, as no network tells; a deadline ends the wait. When
// it goes on, so does what was posted.
func TestProcessStopped(t *testing.T) {
	onProcesses(t, func(t *testing.T, p process) {
		if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var status syscall.WaitStatus // until it has stopped it may answer
		_, err := syscall.Wait4(p.Process.Pid, &status, syscall.WUNTRACED, nil)
		for errors.Is(err, syscall.EINTR) {
			_, err = syscall.Wait4(p.Process.Pid, &status, syscall.WUNTRACED, nil)
		}
		if err != nil || !status.Stopped() {
			t.Fatalf("%v, status %#x", err, status)
		}
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		err = p.echo(short, t, 4)
		failed, ok := errors.AsType[*fabric.PeerError](err)
		if !ok || failed.Rank != 1 || !errors.Is(err, fabric.ErrTimeout) {
			t.Errorf("%v, want ErrTimeout of rank 1", err)
		}
		if err := p.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.peers[1].Await(t.Context(), 0, 4), p.peers[1].Flush(t.Context())); err != nil {
			t.Error(err)
		}
	})
}
