package shm

import (
	"os/exec"
	"sync"
	"testing"
	"time"
)

// TestExit asks how processes ended: while they run, when they have ended and nobody has waited for them, and
// afterwards, when kernels before 6.15 know nothing.
func TestExit(t *testing.T) {
	checkFDs(t)
	w, err := newWatch()
	if err != nil {
		t.Fatal(err)
	}
	m := &Mesh{watch: w}
	seen := make(chan int, 2)
	var running sync.WaitGroup
	running.Go(func() { w.run(func(peer int) { seen <- peer }) })
	defer running.Wait()
	defer w.close()

	scripts := []string{"read line; exit 7", "read line; kill -9 $$"}
	wants := []string{"exit status 7", "killed by signal 9 (SIGKILL)"}
	for peer, script := range scripts {
		cmd := exec.Command("sh", "-c", script)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := w.add(peer, cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		if how, ended := m.Exit(peer, 0); how != "" || ended {
			t.Errorf("%s: %q, %v of a process that is watched", script, how, ended)
		}
		_ = in.Close()
		select {
		case <-seen:
		case <-time.After(patience):
			t.Fatalf("%s: not seen to end", script)
		}
		if how, ended := m.Exit(peer, 0); how != "" || !ended {
			t.Errorf("%s: %q, %v before its parent has waited", script, how, ended)
		}
		reaped := make(chan struct{})
		go func() {
			defer close(reaped)
			_ = cmd.Wait()
		}()
		how, ended := m.Exit(peer, patience)
		<-reaped
		if !ended || how != wants[peer] && how != "" {
			t.Errorf("%s: %q, %v, want %q", script, how, ended, wants[peer])
		}
		if _, state := w.exit(peer); state == exitPending {
			t.Errorf("%s: its exit is still to come", script)
		}
	}

	// A peer whose connection ends while its process runs.
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if err := w.add(2, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	w.remove(2)
	if how, ended := m.Exit(2, time.Millisecond); how != "" || ended {
		t.Errorf("a process that runs: %q, %v", how, ended)
	}
	if how, ended := m.Exit(3, patience); how != "" || ended {
		t.Errorf("a peer without a process: %q, %v", how, ended)
	}
}
