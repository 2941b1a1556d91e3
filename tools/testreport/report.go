package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
)

// event is one line of "go test -json"; the fields are documented by "go doc test2json" and, for
// the two build actions, by "go help buildjson".
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// test names one test, or a package where Name is empty.
type test struct {
	Package string
	Name    string
}

type skipped struct {
	test
	reason string
}

type took struct {
	test
	seconds float64
}

// report keeps the output of what is still running, and drops it when it passes.
type report struct {
	w      io.Writer
	output map[test][]string
	build  map[string][]string
	skips  []skipped
	times  []took
	passed int
	failed bool
}

func newReport(w io.Writer) *report {
	return &report{w: w, output: map[test][]string{}, build: map[string][]string{}}
}

// read consumes events until the end of r. A line that is no event is passed through: the go
// command writes such lines when it fails before any test starts.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
				r.add(e)
			} else {
				fmt.Fprint(r.w, line)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) add(e event) {
	key := test{e.Package, e.Test}
	if e.Elapsed >= shortest {
		r.times = append(r.times, took{key, e.Elapsed})
	}
	switch e.Action {
	case "build-output":
		r.build[e.ImportPath] = append(r.build[e.ImportPath], e.Output)
	case "output":
		r.output[key] = append(r.output[key], e.Output)
	case "pass":
		if e.Test == "" {
			fmt.Fprintf(r.w, "ok      %7.1f s  %s\n", e.Elapsed, e.Package)
			r.forget(e.Package)
		} else {
			r.passed++
			delete(r.output, key)
		}
	case "skip":
		if e.Test != "" {
			r.skips = append(r.skips, skipped{key, lastLine(r.output[key])})
		}
		delete(r.output, key)
	case "fail":
		if e.Test == "" {
			r.failPackage(e)
		}
	}
}

// failPackage prints what the package still holds: the output of its failed and unfinished tests,
// then its own.
func (r *report) failPackage(e event) {
	r.failed = true
	fmt.Fprintf(r.w, "FAILED  %7.1f s  %s\n", e.Elapsed, e.Package)
	for _, line := range r.build[e.FailedBuild] {
		fmt.Fprint(r.w, "    ", line)
	}
	var keys []test
	for key := range r.output {
		if key.Package == e.Package {
			keys = append(keys, key)
		}
	}
	sort.Slice(keys, func(i, j int) bool {
		a, b := keys[i].Name, keys[j].Name
		if (a == "") != (b == "") {
			return b == ""
		}
		return a < b
	})
	for _, key := range keys {
		for _, line := range r.output[key] {
			fmt.Fprint(r.w, "    ", line)
		}
	}
	r.forget(e.Package)
}

// forget drops the output of a package that has ended.
func (r *report) forget(pkg string) {
	for key := range r.output {
		if key.Package == pkg {
			delete(r.output, key)
		}
	}
}

// finish prints the totals and, in short, why tests were skipped; names says where their names are.
func (r *report) finish(names string) {
	fmt.Fprintf(r.w, "%d tests passed", r.passed)
	if len(r.skips) > 0 {
		fmt.Fprintf(r.w, ", %s (names in %s)", r.why(), names)
	}
	fmt.Fprintln(r.w)
}

// why counts the skipped tests by the first words of their reasons.
func (r *report) why() string {
	count := map[string]int{}
	for _, s := range r.skips {
		head, _, _ := strings.Cut(s.reason, ":")
		count[strings.Replace(head, "needs ", "need ", 1)]++
	}
	reasons := slices.SortedFunc(maps.Keys(count),
		func(a, b string) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	const most = 3
	if len(reasons) == 1 {
		return fmt.Sprintf("%d skipped: %s", len(r.skips), reasons[0])
	}
	others := len(r.skips)
	var parts []string
	for _, reason := range reasons[:min(most, len(reasons))] {
		parts = append(parts, fmt.Sprintf("%d %s", count[reason], reason))
		others -= count[reason]
	}
	if others > 0 {
		parts = append(parts, fmt.Sprintf("%d others", others))
	}
	return fmt.Sprintf("%d skipped: %s", len(r.skips), strings.Join(parts, "; "))
}

// skipped lists every skipped test with its reason.
func (r *report) skipped() string {
	var b strings.Builder
	for _, s := range r.skips {
		fmt.Fprintf(&b, "%s %s: %s\n", s.Package, s.Name, s.reason)
	}
	return b.String()
}

// shortest is the duration in seconds from which on one is told of.
const shortest = 0.01

// durations lists packages and tests by how long they took, the longest first.
func (r *report) durations() string {
	slices.SortStableFunc(r.times, func(a, b took) int { return cmp.Compare(b.seconds, a.seconds) })
	var b strings.Builder
	for _, t := range r.times {
		fmt.Fprintf(&b, "%8.2f s  %s\n", t.seconds, strings.TrimSpace(t.Package+" "+t.Name))
	}
	return b.String()
}

// lastLine is the message of a skip: what a test printed last before the verdict, without its
// position.
func lastLine(output []string) string {
	reason := "no reason given"
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		reason = line
		if file, message, ok := strings.Cut(line, ": "); ok && strings.Contains(file, ".go:") {
			reason = message
		}
	}
	return reason
}
