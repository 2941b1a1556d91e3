package main

import (
	"strings"
	"testing"
)

// play feeds events and returns the report and what it printed.
func play(t *testing.T, events ...string) (*report, string) {
	t.Helper()
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(strings.Join(events, "\n") + "\n")); err != nil {
		t.Fatal(err)
	}
	r.finish()
	return r, out.String()
}

func TestPassHidesOutput(t *testing.T) {
	r, out := play(t,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}`,
		`{"Action":"pass","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Output":"PASS\n"}`,
		`{"Action":"pass","Package":"p","Elapsed":1.25}`,
	)
	want := "ok          1.2 s  p\n1 tests passed, 0 skipped\n"
	if r.failed || out != want {
		t.Errorf("failed %v, printed %q, want %q", r.failed, out, want)
	}
	if len(r.output) != 0 {
		t.Errorf("still holds %v", r.output)
	}
}

func TestFailPrintsOnlyWhatFailed(t *testing.T) {
	r, out := play(t,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"good\n"}`,
		`{"Action":"pass","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"b_test.go:3: bad\n"}`,
		`{"Action":"fail","Package":"p","Test":"TestB"}`,
		`{"Action":"output","Package":"p","Output":"exit status 2\n"}`,
		`{"Action":"output","Package":"q","Test":"TestC","Output":"other\n"}`,
		`{"Action":"fail","Package":"p","Elapsed":2}`,
	)
	want := "FAILED      2.0 s  p\n    b_test.go:3: bad\n    exit status 2\n1 tests passed, 0 skipped\n"
	if !r.failed || out != want {
		t.Errorf("failed %v, printed %q, want %q", r.failed, out, want)
	}
}

func TestFailedBuild(t *testing.T) {
	r, out := play(t,
		`{"Action":"build-output","ImportPath":"p [p.test]","Output":"x.go:1:1: undefined: y\n"}`,
		`{"Action":"build-fail","ImportPath":"p [p.test]"}`,
		`{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
	)
	if !r.failed || !strings.Contains(out, "undefined: y") {
		t.Errorf("failed %v, printed %q", r.failed, out)
	}
}

func TestSkipsAreNamed(t *testing.T) {
	_, out := play(t,
		`{"Action":"output","Package":"p","Test":"TestStore","Output":"=== RUN   TestStore\n"}`,
		`{"Action":"output","Package":"p","Test":"TestStore","Output":"    store_test.go:9: torch: not importable\n"}`,
		`{"Action":"output","Package":"p","Test":"TestStore","Output":"--- SKIP: TestStore (0.00s)\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestStore"}`,
		`{"Action":"skip","Package":"q"}`,
	)
	want := "0 tests passed, 1 skipped\nskipped: p TestStore: torch: not importable\n"
	if out != want {
		t.Errorf("printed %q, want %q", out, want)
	}
}

func TestForeignLinesPassThrough(t *testing.T) {
	_, out := play(t, "go: cannot find main module")
	if !strings.HasPrefix(out, "go: cannot find main module\n") {
		t.Errorf("printed %q", out)
	}
}
