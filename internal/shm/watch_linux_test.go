package shm

import (
	"errors"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// exited starts n processes that end at once, and leaves them unreaped until the test ends.
func exited(t *testing.T, n int) []int {
	t.Helper()
	pids := make([]int, n)
	for i := range pids {
		cmd := exec.Command("/proc/self/exe", "-test.run=^$")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pids[i] = cmd.Process.Pid
		t.Cleanup(func() { _ = cmd.Wait() })
	}
	return pids
}

func TestWatch(t *testing.T) {
	checkFDs(t)
	const n = 20 // more than one turn of the watch takes
	pids := exited(t, n)
	w, err := newWatch()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan int, n)
	var running sync.WaitGroup
	running.Go(func() { w.run(func(peer int) { seen <- peer }) })
	for i, pid := range pids {
		if err := w.add(i, pid); err != nil {
			t.Fatal(err)
		}
	}
	reported := make(map[int]bool)
	for range n {
		select {
		case p := <-seen:
			if reported[p] {
				t.Errorf("told twice of %d", p)
			}
			reported[p] = true
		case <-time.After(patience):
			t.Fatalf("told of %d of %d", len(reported), n)
		}
	}
	if err := w.add(n, 1<<22+1); !errors.Is(err, ErrDied) {
		t.Errorf("a process that does not exist: %v", err)
	}
	w.close()
	running.Wait()
	if err := w.add(0, pids[0]); err == nil {
		t.Error("watched after close")
	}
}

// A watch must end even if it is closed while there is much to tell.
func TestWatchClosesWhileProcessesEnd(t *testing.T) {
	checkFDs(t)
	pids := exited(t, 3)
	for range 300 {
		w, err := newWatch()
		if err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		running.Go(func() { w.run(func(int) {}) })
		for i, pid := range pids {
			if err := w.add(i, pid); err != nil {
				t.Fatal(err)
			}
		}
		w.close()
		running.Wait()
	}
}
