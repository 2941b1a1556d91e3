package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/trace"
)

// barrierRank makes the test binary a rank that meets the others fifty times.
const barrierRank = "rank with barriers"

// barriers is such a rank. If it is to die, rank 1 does before the last time.
func barriers(dies bool) int {
	ctx := context.Background()
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 5
	}
	c, err := weft.Join(ctx)
	if err != nil {
		return fail(err)
	}
	defer c.Close()
	g, err := collective.New(ctx, c, collective.Options{})
	if err != nil {
		return fail(err)
	}
	for call := range 50 {
		if call == 49 && dies && c.Rank() == 1 {
			time.Sleep(500 * time.Millisecond) // what it has recorded is written
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		if err := g.Barrier(ctx, nil); err != nil {
			return fail(err)
		}
	}
	return 0
}

// TestTraceRun: a job of processes is recorded, drawn and summed up.
func TestTraceRun(t *testing.T) {
	dir := t.TempDir()
	drawing, ranks := filepath.Join(dir, "trace.json"), filepath.Join(dir, "ranks")
	_, errs := command(t, 0, "trace", "run", "--out", drawing, "--dir", ranks, "--",
		"/proc/self/exe", "run", "-n", "4", "/proc/self/exe", barrierRank)
	if !strings.Contains(errs, "4 of 4 ranks") || !strings.Contains(errs, "0 of them point backwards") {
		t.Errorf("%s", errs)
	}
	drawn, err := os.ReadFile(drawing)
	if err != nil || !json.Valid(drawn) {
		t.Fatal(err)
	}
	out, _ := command(t, 0, "trace", "summary", "--json", ranks)
	var s trace.Summary
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	if s.Files != 4 || s.Arrows == 0 || s.Backward != 0 || len(s.Unfinished) != 0 || len(s.Clocks) != 1 ||
		len(s.Operations) == 0 || s.Operations[0].Name != "barrier" || s.Operations[0].Calls != 50 {
		t.Errorf("%+v", s)
	}
	merged, _ := command(t, 0, "trace", "merge", ranks)
	if merged != string(drawn) {
		t.Error("merge draws something else")
	}
	_, errs = command(t, 2, "trace", "run", "--dir", ranks, "true")
	if !strings.Contains(errs, "name a new directory") {
		t.Errorf("%s", errs)
	}
	_, errs = command(t, 1, "trace", "run", "--out", drawing, "true")
	if kept, err := os.ReadFile(drawing); err != nil || len(kept) != len(drawn) ||
		!strings.Contains(errs, "true recorded nothing") {
		t.Errorf("%s%v", errs, err)
	}
	began := filepath.Join(dir, "began")
	command(t, 1, "trace", "run", "--out", filepath.Join(dir, "none", "t.json"), "touch", began)
	if _, err := os.Stat(began); err == nil {
		t.Error("the program ran though its drawing cannot be written")
	}
}

// TestTraceInterrupted: an interrupt reaches the program once, whoever sends it, and what it recorded is drawn.
func TestTraceInterrupted(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, keys := range map[string]bool{"by kill": false, "by a terminal": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			drawing, heard := filepath.Join(dir, "t.json"), filepath.Join(dir, "heard")
			c := exec.CommandContext(t.Context(), self, "trace", "run", "--out", drawing, "--", "sh", "-c",
				"trap 'echo once >>"+heard+"' INT; WEFT_RANK=0 WEFT_SIZE=1 '"+self+"' '"+barrierRank+"' && : >"+heard+
					"; until [ -s "+heard+" ]; do sleep 0.05; done; sleep 0.5; exit 9")
			c.Env = append(os.Environ(), mainEnv+"=1", "GORACE=atexit_sleep_ms=0")
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			var screen *os.File
			if keys {
				var tty *os.File
				screen, tty = pseudoTerminal(t)
				c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
				c.SysProcAttr.Setctty = true
				go func() { _, _ = io.Copy(io.Discard, screen) }()
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			for { // the shell waits for its interrupt
				if _, err := os.Stat(heard); err == nil {
					break
				}
				if err := t.Context().Err(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if keys {
				_, err = screen.Write([]byte{3}) // Ctrl-C
			} else {
				err = c.Process.Signal(syscall.SIGINT)
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
			text, err := os.ReadFile(heard)
			if err != nil || string(text) != "once\n" || c.ProcessState.ExitCode() != 9 {
				t.Errorf("%q, exit status %d, %v", text, c.ProcessState.ExitCode(), err)
			}
			if drawn, err := os.ReadFile(drawing); err != nil || !json.Valid(drawn) {
				t.Error(err)
			}
		})
	}
}

// pseudoTerminal is a terminal, and what stands for its keys and its screen.
func pseudoTerminal(t *testing.T) (screen, tty *os.File) {
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals:", err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		t.Skip("no pseudo terminals:", err)
	}
	t.Cleanup(func() { tty.Close() })
	return screen, tty
}

// TestTraceOfHosts: ranks that take themselves for two hosts have two clocks, which come out as the one that they are.
func TestTraceOfHosts(t *testing.T) {
	if err := fabrictest.Libfabric(t.Context(), t, fabric.Options{
		Size: 1, Provider: "tcp", Source: "127.0.0.1",
	}).Close(); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	_, errs := command(t, 0, "trace", "run", "--out", filepath.Join(dir, "t.json"), "--dir", dir, "--",
		"/proc/self/exe", "run", "-n", "4", "sh", "-c",
		"export WEFT_HOSTID=$((WEFT_RANK / 2)); exec '"+self+"' '"+barrierRank+"'")
	files, err := trace.ReadDir(dir)
	if err != nil {
		t.Fatal(err, errs)
	}
	a, err := trace.Align(files)
	if err != nil || len(a.Clocks) != 2 || a.Backward != 0 {
		t.Fatalf("%+v %v", a, err)
	}
	if c := a.Clocks[1]; c.Within < 0 || max(c.Ahead, -c.Ahead) > c.Within {
		t.Errorf("%+v", c)
	}
}

// TestTraceOfKilled: what a job that hung has recorded says which rank never came.
func TestTraceOfKilled(t *testing.T) {
	dir := t.TempDir()
	_, errs := command(t, 128+9, "trace", "run", "--out", filepath.Join(dir, "t.json"), "--",
		"/proc/self/exe", "run", "-n", "3", "--grace", "2s", "/proc/self/exe", barrierRank, "dies")
	if !strings.Contains(errs, "unfinished: barrier") || !strings.Contains(errs, "rank 1 recorded nothing of it") {
		t.Errorf("%s", errs)
	}
}
