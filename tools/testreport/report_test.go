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
	r.finish("logs/skipped.txt")
	return r, out.String()
}

func TestPassHidesOutput(t *testing.T) {
	r, out := play(t,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}`,
		`{"Action":"pass","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Output":"PASS\n"}`,
		`{"Action":"pass","Package":"p","Elapsed":1.25}`,
	)
	want := "ok          1.2 s  p\n1 tests passed\n"
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
	want := "FAILED      2.0 s  p\n    b_test.go:3: bad\n    exit status 2\n1 tests passed\n"
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

func TestSkipsAreCounted(t *testing.T) {
	skip := func(name, why string) []string {
		return []string{
			`{"Action":"output","Package":"p","Test":"` + name + `","Output":"=== RUN   ` + name + `\n"}`,
			`{"Action":"output","Package":"p","Test":"` + name + `","Output":"    store_test.go:9: ` + why + `\n"}`,
			`{"Action":"output","Package":"p","Test":"` + name + `","Output":"--- SKIP: ` + name + ` (0.00s)\n"}`,
			`{"Action":"skip","Package":"p","Test":"` + name + `"}`,
		}
	}
	events := append(skip("TestA", "needs a GPU: no driver"), skip("TestB", "needs a GPU: no device")...)
	r, out := play(t, append(events, `{"Action":"skip","Package":"q"}`)...)
	if want := "0 tests passed, 2 skipped: need a GPU (names in logs/skipped.txt)\n"; out != want {
		t.Errorf("printed %q, want %q", out, want)
	}
	if want := "p TestA: needs a GPU: no driver\np TestB: needs a GPU: no device\n"; r.skipped() != want {
		t.Errorf("listed %q, want %q", r.skipped(), want)
	}
	for _, name := range []string{"TestC", "TestD", "TestE"} {
		events = append(events, skip(name, name)...)
	}
	_, out = play(t, events...)
	if want := "0 tests passed, 5 skipped: 2 need a GPU; 1 TestC; 1 TestD; 1 others (names in " +
		"logs/skipped.txt)\n"; out != want {
		t.Errorf("printed %q, want %q", out, want)
	}
}

func TestDurations(t *testing.T) {
	r, _ := play(t,
		`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.25}`,
		`{"Action":"pass","Package":"p","Test":"TestB","Elapsed":0.001}`,
		`{"Action":"fail","Package":"p","Test":"TestC","Elapsed":3}`,
		`{"Action":"fail","Package":"p","Elapsed":3.5}`,
	)
	if want := "    3.50 s  p\n    3.00 s  p TestC\n    0.25 s  p TestA\n"; r.durations() != want {
		t.Errorf("listed %q, want %q", r.durations(), want)
	}
}

func TestForeignLinesPassThrough(t *testing.T) {
	_, out := play(t, "go: cannot find main module")
	if !strings.HasPrefix(out, "go: cannot find main module\n") {
		t.Errorf("printed %q", out)
	}
}
