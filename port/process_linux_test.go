package port_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/port"
)

// roleEnv makes this test's binary a rank of its own: see TestProcess.
const roleEnv = "WEFT_PORT_TEST_ROLE"

const half = 1 << 18

// process is this rank's end of a channel to a rank in another process.
type process struct {
	*port.Channel
	memory []byte
	peer   *exec.Cmd
}

// meet opens a rank on two rails of libfabric, and makes a channel to the rank at the other end of a pipe.
func meet(ctx context.Context, t *testing.T, provider string, rank int, in io.Reader, out io.Writer) process {
	t.Helper()
	var rails []*fabric.Domain
	for range 2 {
		d := fabrictest.Libfabric(ctx, t, fabric.Options{
			Rank: rank, Size: 2, Provider: provider, Source: "127.0.0.1", Timeout: 30 * time.Second,
		})
		t.Cleanup(func() { d.Close() })
		rails = append(rails, d)
	}
	x, err := port.New(port.Options{Timeout: 30 * time.Second, Spread: 4096}, rails...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	p := process{memory: make([]byte, 2*half)}
	m, err := x.Register(p.memory, 1)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(in)
	swap := func(card []byte) []byte {
		t.Helper()
		_, err := fmt.Fprintln(out, base64.StdEncoding.EncodeToString(card))
		line, again := lines.ReadString('\n')
		if err = errors.Join(err, again); err != nil {
			t.Fatal(err)
		}
		if card, err = base64.StdEncoding.DecodeString(strings.TrimSpace(line)); err != nil {
			t.Fatal(err)
		}
		return card
	}
	peer, err := x.Connect(ctx, 1-rank, swap(x.Card()))
	if err != nil {
		t.Fatal(err)
	}
	remote, err := peer.Memory(swap(m.Card()))
	if err != nil {
		t.Fatal(err)
	}
	if p.Channel, err = peer.Channel(port.ChannelOptions{Signal: 1, Spread: true}, remote, m); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestProcess is rank 1 of the tests below: it puts back what came, for every signal.
func TestProcess(t *testing.T) {
	name := os.Getenv(roleEnv)
	if name == "" {
		t.Skip("started by other tests")
	}
	ctx := t.Context()
	for c := meet(ctx, t, name, 1, os.Stdin, os.Stdout); ; {
		if errors.Join(c.Wait(ctx), c.PutWithSignalAndFlush(ctx, half, 0, half)) != nil {
			return // the other rank has gone, or this one is killed
		}
	}
}

// onProcesses runs a test with a rank in another process, on each provider that libfabric has for sockets.
func onProcesses(t *testing.T, test func(*testing.T, process)) {
	for _, name := range []string{"tcp", "tcp;ofi_rxm"} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcess$")
			cmd.Env = append(os.Environ(), roleEnv+"="+name)
			cmd.Stderr = os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // it was killed
			})
			p := meet(t.Context(), t, name, 0, out, in)
			p.peer = cmd
			for round := range 3 {
				if err := p.echo(t.Context(), t, round); err != nil {
					t.Fatal(err)
				}
			}
			test(t, p)
		})
	}
}

// echo puts to rank 1 and waits for its answer.
func (p process) echo(ctx context.Context, t *testing.T, round int) error {
	t.Helper()
	pattern(p.memory[:half], round)
	err := errors.Join(p.PutWithSignal(ctx, 0, 0, half), p.Wait(ctx), p.Flush(ctx))
	if err == nil && !bytes.Equal(p.memory[:half], p.memory[half:]) {
		t.Error("other bytes came back")
	}
	return err
}

// TestProcessKilled: a process ends while it is put to. All calls end, and the error names it.
func TestProcessKilled(t *testing.T) {
	onProcesses(t, func(t *testing.T, p process) {
		waited := make(chan error, 1)
		go func() { waited <- p.Wait(t.Context()) }()
		if err := p.peer.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		var err error
		for err == nil {
			err = p.PutWithSignalAndFlush(t.Context(), 0, 0, half)
		}
		names(t, err, 1, "", fabric.ErrLost)
		names(t, <-waited, 1, "", fabric.ErrLost)
	})
}

// TestProcessStopped: a stopped process is silent, and a deadline ends the wait. When it goes on, so does what was
// pushed.
func TestProcessStopped(t *testing.T) {
	onProcesses(t, func(t *testing.T, p process) {
		if err := p.peer.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var status syscall.WaitStatus // until it has stopped it may answer
		_, err := syscall.Wait4(p.peer.Process.Pid, &status, syscall.WUNTRACED, nil)
		for errors.Is(err, syscall.EINTR) {
			_, err = syscall.Wait4(p.peer.Process.Pid, &status, syscall.WUNTRACED, nil)
		}
		if err != nil || !status.Stopped() {
			t.Fatalf("%v, status %#x", err, status)
		}
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		names(t, p.echo(short, t, 4), 1, "wait", fabric.ErrTimeout)
		if err := p.peer.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Wait(t.Context()), p.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p.memory[:half], p.memory[half:]) {
			t.Error("other bytes came back")
		}
	})
}
