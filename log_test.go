package weft_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
)

// journal gathers what several ranks log.
type journal struct {
	sync.Mutex
	bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.Lock()
	defer j.Unlock()
	return j.Buffer.Write(b)
}

func (j *journal) text() string {
	j.Lock()
	defer j.Unlock()
	return j.String()
}

// records are the lines that were written, as JSON.
func (j *journal) records(t *testing.T) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(j.text()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

// TestLogVariable: WEFT_LOG logs beside the logger that the caller gives, at its level and in its
// format, and refuses what it does not know.
func TestLogVariable(t *testing.T) {
	for _, c := range []struct {
		value               string
		given               bool
		info, debug, warned bool // in the environment's log
		json                bool
	}{
		{value: "", warned: true},
		{value: "", given: true},
		{value: "off"},
		{value: "off", given: true},
		{value: "warn", warned: true},
		{value: "info", info: true, warned: true},
		{value: "info", given: true, info: true, warned: true},
		{value: "debug,json", info: true, debug: true, warned: true, json: true},
	} {
		var own, to bytes.Buffer
		var given *slog.Logger
		if c.given {
			given = slog.New(slog.NewTextHandler(&own, nil))
		}
		comm, join, err := weft.Loggers(given, c.value, &to)
		if err != nil {
			t.Fatal(err)
		}
		comm.Info("told")
		comm.Debug("detailed")
		join.Warn("long")
		if got := to.String(); strings.Contains(got, "told") != c.info || strings.Contains(got, "detailed") != c.debug ||
			strings.Contains(got, "long") != c.warned || c.json != strings.HasPrefix(got, "{") {
			t.Errorf("%+v: %q", c, got)
		}
		if got := own.String(); strings.Contains(got, "told") != c.given || strings.Contains(got, "long") != c.given {
			t.Errorf("%+v: the caller's logger has %q", c, got)
		}
	}
	for _, value := range []string{"verbose", "info,yaml", "INFO"} {
		t.Setenv(weft.LogVariable, value)
		if _, err := weft.Join(testContext(t)); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), value) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// TestLogOfRanks: every rank says what it joined, and all of a communicator have the same name.
func TestLogOfRanks(t *testing.T) {
	var j journal
	group := join(t, 3, weft.WithLogger(slog.New(slog.NewJSONHandler(&j, nil))))
	joined := map[float64]map[string]any{}
	for _, r := range j.records(t) {
		if r["msg"] == "joined" {
			joined[r["rank"].(float64)] = r
		}
	}
	if len(joined) != len(group) {
		t.Fatalf("%d ranks say that they joined: %s", len(joined), j.text())
	}
	for _, r := range joined {
		if r["comm"] != joined[0]["comm"] || r["ranks"] != 3.0 || r["engine"] != "host" || r["op"] != "join" ||
			r["transport"] != "shared memory" || r["control_bytes"] == 0.0 || r["took"] == "" {
			t.Errorf("%v", r)
		}
	}
	group[1].Abort()
	must(t, group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) })
	for _, want := range []string{`"msg":"fault"`, `"cause":"aborted"`, `"peer":1`, `"msg":"mask"`} {
		if !strings.Contains(j.text(), want) {
			t.Errorf("no %s in %s", want, j.text())
		}
	}
}

// TestLogOfWaits: a rank that waits for long says for whom, whom that one waits for, and for how long.
func TestLogOfWaits(t *testing.T) {
	var j journal
	group := join(t, 3, weft.WithLogger(slog.New(slog.NewJSONHandler(&j, nil))))
	for _, c := range group {
		c.Operations().Waiter().ReportAfter = 20 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(testContext(t))
	gather := func(c *weft.Comm) error {
		_, err := c.Operations().GatherNotes(ctx, "gather", nil)
		return err
	}
	done := make(chan error)
	for _, c := range group[:2] {
		go func() { done <- gather(c) }()
	}
	pattern := regexp.MustCompile(`"msg":"waiting for rank 2 of 3 \(process \d+\) for 0\.\d+ s".*` +
		`"rank":[01],"op":"gather","peer":2`)
	for !pattern.MatchString(j.text()) {
		if ctx.Err() != nil {
			t.Fatal(j.text())
		}
		time.Sleep(time.Millisecond)
	}
	if err := gather(group[2]); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	cancel()
}

// TestErrorsSayTheWayOn: the errors of deadlines, of ranks that left and of aborts say how long was
// waited, what sets that, and the way on.
func TestErrorsSayTheWayOn(t *testing.T) {
	ctx := testContext(t)
	gather := func(c *weft.Comm) error {
		_, err := c.Operations().GatherNotes(ctx, "gather", nil)
		return err
	}
	group := join(t, 3, weft.WithDeadline(50*time.Millisecond))
	for r, err := range each(group[:2], gather) {
		want := "gather: rank 2: no answer before the deadline: rank [01] waited 0.05 s, which WithDeadline sets; " +
			"SetMask goes on without rank 2"
		if !errors.Is(err, weft.ErrTimeout) || !regexp.MustCompile("^"+want+"$").MatchString(err.Error()) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	must(t, group[:2], func(c *weft.Comm) error { return c.SetMask(ctx, 2) })
	group[0].Abort()
	want := "gather: rank 0: aborted: its call was cancelled or interrupted, it called Abort, or it met an error of " +
		"its own; SetMask goes on"
	if err := gather(group[1]); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}

	group = join(t, 2)
	if err := group[1].Close(); err != nil {
		t.Fatal(err)
	}
	want = "gather: rank 1: rank left: it closed its communicator; SetMask goes on without rank 1"
	if err := gather(group[0]); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestJoinDials: Join calls what WithDial gives it, and returns its error.
func TestJoinDials(t *testing.T) {
	ranks, err := bootstrap.NewInProcess(1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := weft.Join(testContext(t), weft.WithDial(func(context.Context) (bootstrap.Bootstrap, error) {
		return ranks[0], nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	c, err = weft.Join(testContext(t), weft.WithDial(func(context.Context) (bootstrap.Bootstrap, error) {
		return nil, os.ErrPermission
	}))
	if c != nil || !errors.Is(err, os.ErrPermission) {
		t.Errorf("%v, %v", c, err)
	}
}
