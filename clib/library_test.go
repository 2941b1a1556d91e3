package main_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// built is the folder with the library, made once for all tests.
var built = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "weft-clib-")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("sh", "../scripts/clib.sh", folder).CombinedOutput()
	if err != nil {
		return folder, fmt.Errorf("scripts/clib.sh: %w\n%s", err, out)
	}
	return folder, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if folder, _ := built(); needed && folder != "" {
		os.RemoveAll(folder)
	}
	os.Exit(code)
}

var needed bool

// library is the folder with what scripts/clib.sh builds. It skips where they cannot be built.
func library(t testing.TB) string {
	t.Helper()
	compiler(t)
	sourceTree(t)
	needed = true
	folder, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// sourceTree skips where the tests are without it, as they are on a machine that only runs them.
func sourceTree(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("../scripts/clib.sh"); err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("needs Go: %v", err)
	}
}

// compiler is the C compiler. Without one there is nothing to test, unless WEFT_REQUIRE_CC says
// that there must be.
func compiler(t testing.TB) string {
	t.Helper()
	for _, name := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const why = "no C compiler (cc, gcc or clang)"
	if os.Getenv("WEFT_REQUIRE_CC") == "1" {
		t.Fatal(why + ", and WEFT_REQUIRE_CC=1")
	}
	t.Skip(why)
	return ""
}

// compile makes a program of a C file, with warnings for errors.
func compile(t testing.TB, source string) string {
	t.Helper()
	folder := library(t)
	program := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	cmd := exec.Command(compiler(t), "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-Itestdata",
		"-I"+folder, "-o", program, source,
		"-L"+folder, "-Wl,-rpath,"+folder, "-Wl,--as-needed", "-lweft", "-lpthread", "-ldl")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return program
}

// run runs a program alone and returns what it printed.
func run(t testing.TB, program string, arguments ...string) string {
	t.Helper()
	return runFor(t, time.Minute, program, arguments...)
}

// runFor is run with a limit of its own.
func runFor(t testing.TB, limit time.Duration, program string, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Env = withoutLauncher(os.Environ())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(program), arguments, err, out)
	}
	return string(out)
}

// withoutLauncher is an environment in which a process is alone, whoever started the tests.
func withoutLauncher(environment []string) (alone []string) {
	for _, e := range environment {
		name, _, _ := strings.Cut(e, "=")
		launcher := false
		for _, prefix := range []string{
			"WEFT_RANK", "WEFT_SIZE", "WEFT_ADDRESS", "WEFT_ID", "RANK",
			"WORLD_SIZE", "SLURM_", "OMPI_", "PMI_", "LWS_", "JOB_COMPLETION",
		} {
			launcher = launcher || strings.HasPrefix(name, prefix)
		}
		if !launcher {
			alone = append(alone, e)
		}
	}
	return alone
}

// outcome is how a rank ended.
type outcome struct {
	output string
	err    error
}

// ranks runs a program as so many ranks, which meet as their environment says.
func ranks(t testing.TB, n int, program string, arguments ...string) []outcome {
	t.Helper()
	return ranksWith(t, n, func(int) []string { return nil }, program, arguments...)
}

// ranksWith is ranks with more of an environment for each.
func ranksWith(t testing.TB, n int, env func(rank int) []string, program string, arguments ...string) []outcome {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := make([]outcome, n)
	var all sync.WaitGroup
	for r := range n {
		all.Go(func() {
			cmd := exec.CommandContext(ctx, program, arguments...)
			cmd.Env = append(withoutLauncher(os.Environ()), fmt.Sprint("WEFT_RANK=", r),
				fmt.Sprint("WEFT_SIZE=", n), "WEFT_ADDRESS="+address)
			cmd.Env = append(cmd.Env, env(r)...)
			out, err := cmd.CombinedOutput()
			got[r] = outcome{string(out), err}
		})
	}
	all.Wait()
	return got
}

func TestMisuse(t *testing.T) {
	if got := run(t, compile(t, "testdata/misuse.c")); got != "ok\n" {
		t.Error(got)
	}
}

func TestThreads(t *testing.T) {
	if got := run(t, compile(t, "testdata/threads.c")); got != "ok\n" {
		t.Error(got)
	}
}

// Handlers of signals that lack SA_ONSTACK are named, and with the flag they may come as they like.
func TestSignals(t *testing.T) {
	program := compile(t, "testdata/signals.c")
	if got := run(t, program, "repair"); got != "ok\n" {
		t.Error(got)
	}
	got := run(t, program, "log")
	for _, want := range []string{"SA_ONSTACK", "weft_signal_check(1)", " in " + program + ")", "SIGUSR2 (exit in "} {
		if !strings.Contains(got, want) {
			t.Errorf("the log of a join lacks %q:\n%s", want, got)
		}
	}
	if !strings.Contains(got, "SIGUSR1 (0x") || strings.Contains(got, "SIGALRM") || strings.Contains(got, "SIGCHLD") {
		t.Errorf("the log of a join does not name SIGUSR1, or names what has the flag or is ignored:\n%s", got)
	}
}

// A handler of a signal ends waits by weft_interrupt, and SIGINT is the program's.
func TestInterrupt(t *testing.T) {
	program := compile(t, "testdata/interrupt.c")
	if got := run(t, program, "wait"); got != "ok\n" {
		t.Error(got)
	}
	c := exec.CommandContext(t.Context(), program, "die")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "waiting\n" {
		t.Errorf("%q, %v", line, err)
	}
	time.Sleep(20 * time.Millisecond)
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	err = c.Wait()
	status, ok := c.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGINT {
		t.Error(err)
	}
}

// A process that may open no more files is told so.
func TestNoFiles(t *testing.T) {
	if got := run(t, compile(t, "testdata/files.c")); got != "ok\n" {
		t.Error(got)
	}
}

// The library can be opened late, by a program that was not linked with it.
func TestOpenedLate(t *testing.T) {
	program := compile(t, "testdata/late.c")
	if got := run(t, program, filepath.Join(library(t), "libweft.so")); got != "ok\n" {
		t.Error(got)
	}
}

func TestRanks(t *testing.T) {
	program := compile(t, "testdata/ranks.c")
	for _, test := range []struct {
		scenario string
		ranks    []int
	}{{"exchange", []int{2, 3}}, {"timeout", []int{2}}} {
		for _, n := range test.ranks {
			t.Run(fmt.Sprintf("%s/%d", test.scenario, n), func(t *testing.T) {
				for r, o := range ranks(t, n, program, test.scenario) {
					if o.err != nil || o.output != "ok\n" {
						t.Errorf("rank %d of %d: %v\n%s", r, n, o.err, o.output)
					}
				}
			})
		}
	}
	t.Run("death/3", func(t *testing.T) {
		for r, o := range ranks(t, 3, program, "death") {
			exit, killed := errors.AsType[*exec.ExitError](o.err)
			if r == 2 {
				if !killed || exit.Success() || exit.Exited() {
					t.Errorf("rank %d was not killed: %v\n%s", r, o.err, o.output)
				}
			} else if o.err != nil || o.output != "ok\n" {
				t.Errorf("rank %d: %v\n%s", r, o.err, o.output)
			}
		}
	})
}

// The example builds as its comment says, and runs by itself and under a launcher.
func TestExample(t *testing.T) {
	program := compile(t, "../examples/c/moe_host.c")
	if got := run(t, program, "4"); strings.Count(got,
		"of 4: 16 tokens went to their experts and came home, three times\n") != 4 {
		t.Errorf("by itself:\n%s", got)
	}
	for r, o := range ranks(t, 2, program) {
		if want := fmt.Sprintf("rank %d of 2: 16 tokens went to their experts and came home, three times\n",
			r); o.err != nil || o.output != want {
			t.Errorf("rank %d: %v\n%s", r, o.err, o.output)
		}
	}
}

func TestOverlapExample(t *testing.T) {
	program := compile(t, "../examples/c/overlap.c")
	for r, o := range ranks(t, 3, program) {
		if want := fmt.Sprintf("rank %d of 3: 8 layers averaged\n", r); o.err != nil || o.output != want {
			t.Errorf("rank %d: %v\n%s", r, o.err, o.output)
		}
	}
}

// Each command of docs/guides/c.md that builds a program builds one that runs from any directory.
func TestDocumentedLink(t *testing.T) {
	folder := library(t)
	text, err := os.ReadFile("../docs/guides/c.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs("../examples/c/moe_host.c")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^    (cc .*)$`).FindAllStringSubmatch(string(text), -1)
	if len(commands) == 0 {
		t.Fatal("docs/guides/c.md builds no program")
	}
	for _, command := range commands {
		if _, err := exec.LookPath("pkg-config"); err != nil && strings.Contains(command[1], "pkg-config") {
			t.Log("no pkg-config, so not tried:", command[1])
			continue
		}
		root := t.TempDir()
		if err := errors.Join(os.Mkdir(filepath.Join(root, "build"), 0o755),
			os.Symlink(folder, filepath.Join(root, "build/clib")),
			os.Symlink(source, filepath.Join(root, "program.c"))); err != nil {
			t.Fatal(err)
		}
		build := exec.Command("sh", "-c", "cc() { '"+compiler(t)+"' \"$@\"; }; "+command[1])
		build.Dir = root
		build.Env = append(os.Environ(), "PWD="+root)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command[1], err, out)
		}
		run(t, filepath.Join(root, "program"), "1") // not from root
	}
}

// The package file finds the library, wherever the folder has been moved.
func TestPackageFile(t *testing.T) {
	folder := library(t)
	tool, err := exec.LookPath("pkg-config")
	if err != nil {
		t.Skip("no pkg-config")
	}
	cmd := exec.Command(tool, "--cflags", "--libs", "weft")
	cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+folder)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	flags := strings.Fields(string(out))
	program := filepath.Join(t.TempDir(), "example")
	args := append([]string{"-o", program, "../examples/c/moe_host.c"}, flags...)
	if out, err := exec.Command(compiler(t), args...).CombinedOutput(); err != nil {
		t.Fatalf("cc %v: %v\n%s", args, err, out)
	}
	run(t, program, "1")
}

// The header is C99 and C++, by itself and without a warning.
func TestHeader(t *testing.T) {
	folder := library(t)
	source := filepath.Join(t.TempDir(), "header.c")
	if err := os.WriteFile(source, []byte("#include \"weft.h\"\nint main(void) { return weft_version() - "+
		"WEFT_VERSION; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(name string, flags ...string) {
		args := append(flags, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-I"+folder, source)
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Errorf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	check(compiler(t), "-std=c99")
	if cxx, err := exec.LookPath("c++"); err == nil {
		check(cxx, "-std=c++11", "-x", "c++")
	}
}

// page is the program of a page, in a file.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```c\n")
	program, _, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatalf("%s has no program", name)
	}
	source := filepath.Join(t.TempDir(), "page.c")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	return source
}

// The program of docs/guides/c.md is one that compiles and runs.
func TestDocumentation(t *testing.T) {
	sourceTree(t)
	for r, o := range ranks(t, 2, compile(t, page(t, "../docs/guides/c.md"))) {
		if want := fmt.Sprintf("rank %d: 1 2 3 4\n", r); o.err != nil || o.output != want {
			t.Errorf("rank %d: %v\n%s", r, o.err, o.output)
		}
	}
}
