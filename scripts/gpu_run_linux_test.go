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
'doctor --json') [ -e "$STATE/gpu" ] && echo '{"gpus":[{"arch":"sm_90a"}],"compiler":{"path":"/a/compiler"}}' ||
	echo '{"gpus":[]}' ;;
'bench ep --help') echo --device ;;
'bench overlap'*) echo overlapped ;;
'bench start'*) case $* in *--no-cold*) echo warm ;; *) echo cold ;; esac ;;
'bench ep'*)
	if [ -e "$STATE/endless" ]; then
		trap ': >"$STATE/ended"; exit 1' INT TERM
		echo $$ >"$STATE/pid.new"; mv "$STATE/pid.new" "$STATE/pid"; sleep 600 & wait
	fi
	echo "measured: $*" ;;
'bench link'*) if [ -e "$STATE/broken" ]; then exit 1; fi ;;
esac
`
	fakePlain = `#!/bin/sh
echo '--- PASS: TestIt'
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

// script is a run that was started, in a process group of its own.
func script(t *testing.T, dir, state string, out *strings.Builder, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sh", append([]string{filepath.Join(dir, "run.sh")}, args...)...)
	c.Env = append(os.Environ(), "PATH="+state+":"+os.Getenv("PATH"), "STATE="+state, "TMPDIR="+state,
		"OUT="+filepath.Join(dir, "logs"), "WEFT_LIBFABRIC=", "WEFT_REQUIRE_FABRIC=")
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
			c := script(t, dir, state, &out, strings.Fields(tc.args)...)
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
	for _, part := range []string{"bench-ep", "test-plain"} {
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
				c := script(t, dir, state, &out, part)
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
