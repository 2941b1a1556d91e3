//go:build unix

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestStop stops each rank in turn, which ends no connection: the others must name it when their
// deadline has passed.
func TestStop(t *testing.T) {
	const size = 3
	for victim := range size {
		t.Run(fmt.Sprint("without ", victim), func(t *testing.T) {
			ps := startProcesses(t, size, "stopped", victimVariable+"="+strconv.Itoa(victim))
			waitReady(t, ps)
			if err := ps[victim].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			for r, p := range ps {
				if r != victim {
					p.in.Close()
				}
			}
			for r, p := range ps {
				if r == victim {
					continue
				}
				if got, want := p.line(), fmt.Sprintf("error barrier: rank %d: %v", victim, ErrTimeout); got != want {
					t.Errorf("rank %d: %s, want %s", r, got, want)
				}
			}
		})
	}
}

func init() {
	childRoles["no files to accept with"] = func(ctx context.Context, e Environment) error {
		if e.Rank == 0 {
			if _, err := openAll(e.Size+64, 1); err != nil { // which rank 0 asks for at least, and listens with one
				return err
			}
		}
		_, err := e.Dial(ctx)
		return err
	}
	childRoles["few files"] = func(ctx context.Context, e Environment) error {
		few := uint64(e.Size + 63)
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: few, Max: few}); err != nil {
			return err
		}
		_, err := e.Dial(ctx)
		return err
	}
	childRoles["no files to link with"] = func(ctx context.Context, e Environment) error {
		b, err := e.Dial(ctx)
		if err != nil {
			return err
		}
		if e.Rank == 1 {
			free, err := openAll(100, 0)
			if err != nil {
				return err
			}
			if err := b.Send(ctx, 2, nil); err == nil || !errors.Is(err, syscall.EMFILE) {
				return fmt.Errorf("send: %w", err)
			} else if pe, ok := errors.AsType[*PeerError](err); !ok || pe.Rank != 1 {
				return err
			}
			free()
		}
		if err := b.Barrier(ctx); err != nil {
			return err
		}
		if e.Rank == 1 {
			if err := b.Send(ctx, 2, nil); err != nil {
				return err
			}
		} else if e.Rank == 2 {
			if _, err := b.Recv(ctx, 1); err != nil {
				return err
			}
		}
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
		return nil
	}
}

// openAll opens all files that this process may, but a few.
func openAll(limit, spare int) (free func(), err error) {
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE,
		&syscall.Rlimit{Cur: uint64(limit), Max: uint64(limit)}); err != nil {
		return nil, err
	}
	var files []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	free = func() {
		for _, f := range files {
			f.Close()
		}
		files = nil
	}
	for range spare {
		files[len(files)-1].Close()
		files = files[:len(files)-1]
	}
	return free, nil
}

// TestNoFiles: a rank that can open no more files blames itself, and says what to do; no peer of it
// is taken for dead.
func TestNoFiles(t *testing.T) {
	for _, role := range []string{"no files to accept with", "few files"} {
		ps := startProcesses(t, 2, role)
		if got := ps[0].line(); !strings.Contains(got, "rank 0") || !strings.Contains(got, "ulimit -n") {
			t.Errorf("%s: rank 0: %s", role, got)
		}
	}
	waitReady(t, startProcesses(t, 3, "no files to link with"))
}
