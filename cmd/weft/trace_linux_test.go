package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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
