package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestTableNamesTheFastest(t *testing.T) {
	tab := newTable("allreduce", []string{"a", "b"})
	runs := []struct{ engine, output string }{
		{"a", `progress
{"op":"allreduce","bytes":8,"p50_us":3,"verified":true}
{"op":"allreduce","bytes":64,"p50_us":1,"verified":true}
`},
		{"b", `{"op":"allreduce","bytes":8,"p50_us":2,"verified":true}
{"op":"barrier","bytes":64,"p50_us":0.1,"verified":true}
{"op":"allreduce","bytes":64,"p50_us":2,"verified":true}
{"op":"allreduce","bytes":512,"p50_us":2,"verified":true}`},
		{"a", `{"op":"allreduce","bytes":8,"p50_us":5,"verified":true}`},
	}
	for _, r := range runs {
		if err := tab.add(r.engine, []byte(r.output)); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	tab.write(&out, 2, 1)
	for _, want := range []string{
		"         8        4.00        2.00  b\n", // the median of 3 and 5
		"        64        1.00        2.00  a\n",
		"fastest at how many of 2 sizes: a 1, b 1\n", // 512 bytes was not measured by both
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestTableRefusesWrongResults(t *testing.T) {
	tab := newTable("allreduce", []string{"a"})
	if err := tab.add("a", []byte(`{"op":"allreduce","bytes":8,"p50_us":3,"verified":false}`)); err == nil {
		t.Error("took an unverified row")
	}
	if err := tab.add("a", []byte("nothing\n")); err == nil {
		t.Error("took output without rows")
	}
}

func TestRunEndsAtTheLimit(t *testing.T) {
	start := time.Now()
	// The shell's child holds the pipe: killing the shell alone would wait for it.
	_, err := run(t.Context(), "sleep 60; true", 50*time.Millisecond)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}
