//go:build unix

package bootstrap

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
)

// TestStop stops each rank in turn, which ends no connection: the others must name it when their deadline has passed.
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
