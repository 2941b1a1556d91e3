// Package scripts tests what the scripts beside it promise.
package scripts

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The programs of a bundle, as far as gpu-run.sh asks them. STATE is a folder: a part that is to
// run until it is ended leaves its process's number there. What it does at its end is the shell's own
// work: a program that it started would be ended by a second signal to the group.
const (
	fakeWeft = `#!/bin/sh
case "$*" in
'doctor --json')
	if [ -e "$STATE/four" ]; then
		echo '{"gpus":[{"arch":"sm_90a","name":"A"},
{"arch":"sm_90a","name":"A"},{"arch":"sm_90a","name":"A"},{"arch":"sm_90a","name":"A"}]}'
	elif [ -e "$STATE/gpu" ]; then
		echo '{"gpus":[{"arch":"sm_90a"}],"compiler":{"path":"/a/compiler"}}'
	else
		echo '{"gpus":[]}'
	fi ;;
'bench ep --help') echo --device ;;
'bench overlap'*) echo overlapped ;;
'bench start'*) case $* in *--no-cold*) echo warm ;; *) echo cold ;; esac ;;
'bench ep'*)
	if [ -e "$STATE/endless" ]; then
		trap ': >"$STATE/ended"; exit 1' INT TERM
		echo $$ >"$STATE/pid.new"; mv "$STATE/pid.new" "$STATE/pid"; sleep 600 & wait
	fi
	echo "measured: $*" ;;
'bench allreduce'*) echo '{"op":"allreduce"}'; echo a warning >&2 ;;
'tune ep --out '*) echo '{"rows": []}' >"$4" ;;
'bench link'*) if [ -e "$STATE/broken" ]; then exit 1; fi ;;
esac
`
	fakePlain = `#!/bin/sh
echo '--- PASS: TestIt'
if [ -e "$STATE/meet" ]; then
	: >"$STATE/gpu.$CUDA_VISIBLE_DEVICES"
	until [ "$(ls "$STATE" | grep -c '^gpu\.')" -eq 3 ]; do sleep 0.1; done
fi
if [ -e "$STATE/endless" ]; then
	trap '' INT
	trap ': >"$STATE/ended"; exit 1' TERM
	echo $$ >"$STATE/pid.new"; mv "$STATE/pid.new" "$STATE/pid"; sleep 600 & wait
fi
`
	fakePython = `#!/bin/sh
case $1 in
-c) [ ! -e "$STATE/bare" ] ;;
*) printf '%s, the package in %s, the library in %s, with %s and %s\n' "${*#-m}" "$PYTHONPATH" "$WEFT_LIBRARY" \
	"$([ "$WEFT_REQUIRE_GPU" = 1 ] && echo 'a GPU')" "$([ "$WEFT_REQUIRE_FABRIC" = 1 ] && cat "$WEFT_LIBFABRIC"/*)" ;;
esac
`
	fakeNCCL = `#!/bin/sh
echo "ran $*"
`
	fakeSteps = `# STEP GPUS SECONDS LIMIT WHAT

plain-1 1 1 60 test plain -test.run ^Test(A|B)$
plain-2 2 1 60 VALUE=1 test plain -test.run It
plain-3 1 1 60 test plain
link 4 1 60 lines bench link
measured 2 1 60 lines bench ep --device gpu --mode ht
json 4 1 60 json bench allreduce
tables 4 1 60 tune ep
c 4 1 60 c
python 2 1 60 python -k late
large 8 1 60 lines bench overlap
`
	fakeGPU = `#!/bin/sh
echo '--- PASS: TestIt'
if [ -e "$STATE/gpu" ]; then echo '--- PASS: TestItOnGPUs'; else echo '    --- SKIP: TestItOnGPUs/real'; fi
`
)

// bundle lays out what gpu-run.sh runs, and returns it and its state.
func bundle(t *testing.T, state ...string) (dir, states string) {
	t.Helper()
	dir, states = t.TempDir(), t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("gpu-run.sh")
	must(err)
	must(os.WriteFile(filepath.Join(dir, "run.sh"), script, 0o755))
	script, err = os.ReadFile("gpu-several.sh")
	must(err)
	must(os.WriteFile(filepath.Join(dir, "several.sh"), script, 0o644))
	must(os.WriteFile(filepath.Join(dir, "several.txt"), []byte(fakeSteps), 0o644))
	var packages strings.Builder
	archive := tar.NewWriter(&packages)
	must(archive.WriteHeader(&tar.Header{Name: "python/tests/", Typeflag: tar.TypeDir, Mode: 0o755}))
	must(archive.Close())
	must(os.WriteFile(filepath.Join(states, "python3"), []byte(fakePython), 0o755))
	for name, text := range map[string]string{
		"nccl-ep/run.gz": fakeNCCL, "nccl-ep/c.gz": fakeNCCL, "python.tar.gz": packages.String(), "weft.gz": fakeWeft,
		"libfabric.so.1.gz": "libfabric",
	} {
		must(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		f, err := os.Create(filepath.Join(dir, name))
		must(err)
		z := gzip.NewWriter(f)
		_, err = z.Write([]byte(text))
		must(errors.Join(err, z.Close(), f.Close()))
	}
	for name, text := range map[string]string{"tests/plain/run.test": fakePlain, "tests/ep/run.test": fakeGPU} {
		must(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	must(exec.CommandContext(t.Context(), "tar", "-C", dir, "-cJf", filepath.Join(dir, "tests.tar.xz"), "tests").Run())
	must(os.RemoveAll(filepath.Join(dir, "tests")))
	for _, s := range state {
		must(os.WriteFile(filepath.Join(states, s), nil, 0o644))
	}
	return dir, states
}

// script is a run that was started, in a process group of its own, with no more time than that, if it is not empty.
func script(t *testing.T, dir, state, total string, out *strings.Builder, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sh", append([]string{filepath.Join(dir, "run.sh")}, args...)...)
	c.Env = append(os.Environ(), "PATH="+state+":"+os.Getenv("PATH"), "STATE="+state, "TMPDIR="+state,
		"OUT="+filepath.Join(dir, "logs"), "WEFT_LIBFABRIC=", "WEFT_REQUIRE_FABRIC=",
		"WEFT_TOTAL_SECONDS="+total, "WEFT_GPUS=", "CUDA_VISIBLE_DEVICES=")
	c.Dir, c.Stdout, c.Stderr = dir, out, out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.WaitDelay = time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// Who runs the bundle where there is no GPU must not take it for a pass, unless nothing was asked
// for that needs one.
func TestGPURunSaysWhatPassed(t *testing.T) {
	for _, tc := range []struct {
		name, state, args string
		status            int
		want              []string
	}{
		{"all without a GPU", "", "", 77, []string{
			"link", "skipped: no GPU", "test-ep",
			"ok (1 passed, 1 skipped)", "sees no GPU", "in 12 of the parts",
		}},
		{"what needs none", "", "doctor test-plain", 0, []string{"test-plain", "ok (1 passed, 0 skipped)"}},
		{"tests of which some need one", "", "test-ep", 77, []string{"sees no GPU", "in 1 of the parts"}},
		{
			"with a GPU", "gpu", "doctor test-ep c nccl-ep link bench-ep bench-ep-ht overlap start", 0,
			[]string{
				"on one GPU: ran 1\n", "on one GPU: ran gpus 1\n", "ok (2 passed, 0 skipped)",
				"overlapped\n", "cold\nwarm\n", "--mode ll", "--mode ht",
			},
		},
		{
			"Python", "gpu", "python", 0,
			[]string{
				"pytest -q -s -p no:cacheprovider tests/test_cuda.py, the package in ",
				"/python, the library in ", "/nccl-ep/libweft.so, with a GPU and libfabric\n",
			},
		},
		{
			"calls of Python", "gpu", "calls", 0,
			[]string{"weft.bench_calls --device gpu, the package in ", "/nccl-ep/libweft.so, with a GPU and libfabric\n"},
		},
		{
			"a Python without PyTorch", "gpu bare", "python", 0,
			[]string{"skipped: no python3 with pytest and a PyTorch that sees "},
		},
		{"a part that fails", "gpu broken", "link bench-ep", 1, []string{"FAILED", "1 failed"}},
		{"a part that there is not", "", "test-ep nothing", 2, []string{"there is no part nothing"}},
		{"a part that takes too long", "gpu endless", "bench-ep", 1, []string{"FAILED: it took too long"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, state := bundle(t, strings.Fields(tc.state)...)
			t.Setenv("WEFT_PART_SECONDS", map[bool]string{false: "600", true: "1"}[strings.Contains(tc.state, "endless")])
			var out strings.Builder
			c := script(t, dir, state, "", &out, strings.Fields(tc.args)...)
			_ = c.Wait()
			if got := c.ProcessState.ExitCode(); got != tc.status {
				t.Errorf("exit status %d, want %d", got, tc.status)
			}
			for _, want := range tc.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q", want)
				}
			}
			if tc.status != 2 {
				checkResults(t, dir, len(strings.Fields(tc.args)))
			}
			if tc.status == 0 && strings.Contains(out.String(), "no GPU") {
				t.Error("it speaks of a GPU")
			}
			if tc.status == 2 && strings.Contains(out.String(), "==>") {
				t.Error("other parts run before it is refused")
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

// checkResults reads what a run leaves for the record: a line for the run and one for each part,
// whose number is given if it is not 0.
func checkResults(t *testing.T, dir string, parts int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "logs", "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) < 2 || parts != 0 && len(lines) != 1+parts {
		t.Errorf("%d lines for %d parts:\n%s", len(lines), parts, text)
	}
	for i, line := range lines {
		var run struct{ Date, Part, Result string }
		if err := json.Unmarshal([]byte(line), &run); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if i == 0 && len(run.Date) != len(time.DateOnly) || i > 0 &&
			(run.Part == "" || run.Result != "passed" && run.Result != "failed" && run.Result != "skipped") {
			t.Errorf("line %d: %s", i+1, line)
		}
	}
	if text, err = os.ReadFile(filepath.Join(dir, "logs", "doctor.json")); err != nil || !json.Valid(text) {
		t.Errorf("doctor.json: %v: %s", err, text)
	}
}

// A signal ends the script, the part that runs and all that it has started, and leaves no files.
func TestGPURunEndsWithItsPart(t *testing.T) {
	// Below nohup this signal is ignored, and a shell cannot heed what it was started to ignore.
	heeded := make(chan os.Signal, 1)
	signal.Notify(heeded, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(heeded) })
	for _, part := range []string{"bench-ep", "test-plain", "several plain-*"} {
		for name, send := range map[string]func(script int) error{
			// the terminal's: to the group
			"Ctrl-C":     func(script int) error { return syscall.Kill(-script, syscall.SIGINT) },
			"TERM":       func(script int) error { return syscall.Kill(script, syscall.SIGTERM) },
			"hanging up": func(script int) error { return syscall.Kill(-script, syscall.SIGHUP) },
			"Ctrl-C twice": func(script int) error {
				return errors.Join(syscall.Kill(-script, syscall.SIGINT), syscall.Kill(-script, syscall.SIGINT))
			},
		} {
			t.Run(part+"/"+name, func(t *testing.T) {
				t.Parallel()
				dir, state := bundle(t, "gpu", "endless")
				var out strings.Builder
				c := script(t, dir, state, "", &out, strings.Fields(part)...)
				var pid int
				until(t, "the part runs", func() bool {
					text, err := os.ReadFile(filepath.Join(state, "pid"))
					pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
					return err == nil
				})
				if err := send(c.Process.Pid); err != nil {
					t.Fatal(err)
				}
				_ = c.Wait()
				if got := c.ProcessState.ExitCode(); got != 130 {
					t.Errorf("exit status %d, want 130: %s", got, out.String())
				}
				if _, err := os.Stat(filepath.Join(state, "ended")); err != nil {
					t.Errorf("the part was killed before it could end: %v\n%s", err, out.String())
				}
				until(t, "the part is gone", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
				if left, err := filepath.Glob(filepath.Join(state, "tmp.*")); err != nil || len(left) > 0 {
					t.Errorf("left behind: %v %v", left, err)
				}
			})
		}
	}
}

// until waits for something that must become true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after 20 s", what)
		}
	}
}

// several runs some of the steps of fakeSteps for several GPUs, and returns what it said, how it ended, and the lines
// of its results, of which the first is the run's.
func several(t *testing.T, dir, state, total string, steps ...string) (said string, status int, results []string) {
	t.Helper()
	var out strings.Builder
	c := script(t, dir, state, total, &out, append([]string{"several"}, steps...)...)
	_ = c.Wait()
	archive := filepath.Join(dir, "logs", "several.tar.gz")
	text, err := exec.CommandContext(t.Context(), "tar", "-xzOf", archive, "./results.jsonl").Output()
	if err == nil {
		results = strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	if summary, err := os.ReadFile(filepath.Join(dir, "logs", "summary.txt")); err == nil &&
		!strings.HasSuffix(out.String(), string(summary)) && c.ProcessState.ExitCode() != 2 {
		t.Errorf("the table is not what it said last:\n%s", out.String())
	}
	return out.String(), c.ProcessState.ExitCode(), results
}

// Steps that passed do not run again, those that failed do, and what a step wrote is in the archive.
func TestGPURunSeveralGoesOn(t *testing.T) {
	t.Parallel()
	dir, state := bundle(t, "gpu", "four", "broken")
	said, status, results := several(t, dir, state, "")
	if status != 1 || len(results) != 10 {
		t.Fatalf("exit status %d, %d results, want 1 and 10:\n%s", status, len(results), said)
	}
	for i, want := range []string{
		`{"part":"test-plain","seconds":0,"result":"passed","passed":1,"note":"","what":"-test.run ^Test(A|B)$","gpus":1}`,
		`{"part":"test-plain","seconds":0,"result":"passed","passed":1,"note":"","what":"VALUE=1 -test.run It","gpus":2}`,
		`{"part":"test-plain","seconds":0,"result":"passed","passed":1,"note":"","what":"","gpus":1}`,
		`{"part":"link","seconds":0,"result":"failed","passed":0,"note":"","what":"weft bench link","gpus":4}`,
		`{"part":"bench-ep-ht","seconds":0,"result":"passed","passed":0,"note":"",` +
			`"what":"weft bench ep --device gpu --mode ht","gpus":2}`,
		`{"part":"bench-allreduce","seconds":0,"result":"passed","passed":0,"note":"",` +
			`"what":"weft bench allreduce","gpus":4}`,
		`{"part":"tune","seconds":0,"result":"passed","passed":0,"note":"","what":"weft tune ep","gpus":4}`,
		`{"part":"c","seconds":0,"result":"passed","passed":0,"note":"","what":"on 4 GPUs","gpus":4}`,
		`{"part":"python","seconds":0,"result":"passed","passed":0,"note":"","what":"-k late","gpus":2}`,
	} {
		if got := seconds.ReplaceAllString(results[i+1], `"seconds":0`); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
	unpacked := t.TempDir()
	archive := filepath.Join(dir, "logs", "several.tar.gz")
	if err := exec.CommandContext(t.Context(), "tar", "-xzf", archive, "-C", unpacked).Run(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"json.json": `{"op":"allreduce"}`, "json.log": "a warning", "measured.log": "--lines", "c.log": "ran 4",
		"doctor.json": "sm_90a", "tables.json": `{"rows": []}`,
	} {
		if text, err := os.ReadFile(filepath.Join(unpacked, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v: %q, want %q", name, err, text, want)
		}
	}
	for _, want := range []string{
		"large", "needs 8 GPUs\n", "link FAILED",
		"1 failed, 0 left for another call, 0 for longer calls, 1 for more GPUs than 4",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in\n%s", want, said)
		}
	}

	if err := os.Remove(filepath.Join(state, "broken")); err != nil {
		t.Fatal(err)
	}
	said, status, results = several(t, dir, state, "")
	if status != 0 || len(results) != 10 || strings.Count(said, "passed (earlier)\n") != 8 ||
		strings.Count(said, " s on: ") != 1 {
		t.Errorf("exit status %d, %d results, want 0 and 10, and one step again:\n%s", status, len(results), said)
	}

	if err := os.WriteFile(filepath.Join(dir, "build"), []byte("abc1234\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if said, status, _ = several(t, dir, state, ""); status != 2 || !strings.Contains(said, "is of another build") {
		t.Errorf("another build: exit status %d, want 2:\n%s", status, said)
	}
}

var seconds = regexp.MustCompile(`"seconds":\d+`)

// A call ends before the time that it has, and the next one does the rest.
func TestGPURunSeveralEndsInTime(t *testing.T) {
	t.Parallel()
	dir, state := bundle(t, "gpu", "four", "endless")
	said, status, results := several(t, dir, state, "24", "plain-1", "link")
	if status != 75 || len(results) != 1 || !strings.Contains(said, "2 left for another call") {
		t.Errorf("exit status %d, %d results, want 75 and 1:\n%s", status, len(results), said)
	}
	if err := os.Remove(filepath.Join(state, "endless")); err != nil {
		t.Fatal(err)
	}
	said, status, results = several(t, dir, state, "20", "plain-1", "link")
	if status != 77 || len(results) != 1 || strings.Count(said, "needs WEFT_TOTAL_SECONDS of more than 21\n") != 2 {
		t.Errorf("calls that no step fits in: exit status %d, %d results, want 77 and 1:\n%s", status, len(results), said)
	}
	if said, status, results = several(t, dir, state, "0", "plain-1", "link"); status != 0 || len(results) != 3 {
		t.Errorf("exit status %d, %d results, want 0 and 3:\n%s", status, len(results), said)
	}
}

// Tests run side by side, each with GPUs of its own; what measures runs alone, and with the first GPUs.
func TestGPURunSeveralShares(t *testing.T) {
	t.Parallel()
	dir, state := bundle(t, "gpu", "four", "meet")
	said, status, _ := several(t, dir, state, "", "plain-*", "measured")
	if status != 0 {
		t.Errorf("exit status %d, want 0:\n%s", status, said)
	}
	for _, gpus := range []string{"0", "1,2", "3"} {
		if _, err := os.Stat(filepath.Join(state, "gpu."+gpus)); err != nil {
			t.Error(err)
		}
	}
	if before, after, _ := strings.Cut(said, " s on: measured"); strings.Count(before, ": passed") != 3 || after == "" {
		t.Errorf("it did not wait for the tests:\n%s", said)
	}
}

// Who asks what it does is told so, and nothing runs.
func TestGPURunHelps(t *testing.T) {
	t.Parallel()
	dir, state := bundle(t)
	for _, flag := range []string{"-h", "--help"} {
		var out strings.Builder
		c := script(t, dir, state, "", &out, flag)
		if err := c.Wait(); err != nil || !strings.HasPrefix(out.String(), "Runs this bundle's tests") ||
			!strings.Contains(out.String(), "  run.sh several [STEP...]\n") || strings.Contains(out.String(), "set -u") {
			t.Errorf("%s: %v:\n%s", flag, err, &out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "logs")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something ran: %v", err)
	}
}

// What asks for steps that there are not, or for GPUs where there are none, is told so.
func TestGPURunSeveralRefuses(t *testing.T) {
	t.Parallel()
	dir, state := bundle(t, "gpu", "four")
	said, status, _ := several(t, dir, state, "", "plain-*", "plan-*")
	if status != 2 || !strings.Contains(said, "no step plan-*") {
		t.Errorf("exit status %d, want 2:\n%s", status, said)
	}
	dir, state = bundle(t, "gpu")
	said, status, _ = several(t, dir, state, "", "link", "large")
	if status != 77 || !strings.Contains(said, "needs 4 GPUs\n") || !strings.Contains(said, "2 for more GPUs than 1") {
		t.Errorf("on too few GPUs: exit status %d, want 77:\n%s", status, said)
	}
	if said, status, _ = several(t, dir, state, "", "link", "plain-1"); status != 0 {
		t.Errorf("on enough for one step: exit status %d, want 0:\n%s", status, said)
	}
	if said, status, _ = several(t, dir, state, "soon", "plain-1"); status != 2 ||
		!strings.Contains(said, "WEFT_TOTAL_SECONDS is soon: want whole seconds\n") {
		t.Errorf("no number of seconds: exit status %d, want 2:\n%s", status, said)
	}
	if err := os.WriteFile(filepath.Join(dir, "logs", "several.tar.gz"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if said, status, _ = several(t, dir, state, "", "plain-1"); status != 2 ||
		!strings.Contains(said, "several.tar.gz cannot be read: move it away") || strings.Count(said, "\n") != 1 {
		t.Errorf("a broken archive: exit status %d, want 2:\n%s", status, said)
	}
	dir, state = bundle(t)
	if said, status, _ := several(t, dir, state, ""); status != 77 || !strings.Contains(said, "sees no GPU") {
		t.Errorf("without a GPU: exit status %d, want 77:\n%s", status, said)
	}
}

// The steps name tests and benchmarks that there are, and together all tests on GPUs of what has a GPU for each rank.
func TestGPUSteps(t *testing.T) {
	text, err := os.ReadFile("gpu-several.txt")
	if err != nil {
		t.Fatal(err)
	}
	names, patterns := map[string]bool{}, map[string][]*regexp.Regexp{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		if len(f) < 5 || names[f[0]] {
			t.Fatalf("a name that is there already, or no step: %s", line)
		}
		names[f[0]] = true
		var numbers [3]int
		for i := range numbers {
			if numbers[i], err = strconv.Atoi(f[1+i]); err != nil || numbers[i] <= 0 {
				t.Errorf("%s: %q is no number", f[0], f[1+i])
			}
		}
		if numbers[2] > 400 || numbers[1] > numbers[2] {
			t.Errorf("%s: it takes %d s, with a limit of %d s; a machine may be lent for 500", f[0], numbers[1], numbers[2])
		}
		f = f[4:]
		for strings.Contains(f[0], "=") {
			f = f[1:]
		}
		var program, pattern string
		switch {
		case f[0] == "sanitize", f[0] == "measure" && len(f) == 3:
			program, pattern = f[len(f)-2], f[len(f)-1]
		case f[0] == "test" && len(f) > 2:
			program, pattern = f[1], f[len(f)-1]
		default:
			continue
		}
		found := false
		top, _, _ := strings.Cut(pattern, "/")
		x, err := regexp.Compile(top)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range testsOf(t, program) {
			found = found || x.MatchString(name)
		}
		if !found {
			t.Errorf("%s has no test of %s", program, pattern)
		}
		if f[0] == "test" {
			patterns[program] = append(patterns[program], x)
		}
	}
	emulated := regexp.MustCompile(`^Test(HardwareCard|CardOfOneRank)OnGPUs$`) // these have no part on real ones
	for _, program := range []string{"ep", "collective", "collective/internal/gpu", "plan/internal/gpu"} {
		for _, name := range testsOf(t, program) {
			matches := func(x *regexp.Regexp) bool { return x.MatchString(name) }
			if strings.HasPrefix(name, "Test") && strings.Contains(name, "OnGPU") && !emulated.MatchString(name) &&
				!slices.ContainsFunc(patterns[program], matches) {
				t.Errorf("no step runs %s of %s", name, program)
			}
		}
	}
}

// testsOf lists a package's tests and benchmarks.
func testsOf(t *testing.T, program string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", strings.TrimPrefix(program, "weft"), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	return names
}
