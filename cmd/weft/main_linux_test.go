package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/weftgo/weft"
	benchcollective "github.com/weftgo/weft/cmd/weft/internal/bench/collective"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
)

// mainEnv makes the test binary the command itself, for it starts itself as guard,
// supervisor and ranks.
const mainEnv = "WEFT_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		if len(os.Args) > 1 {
			switch os.Args[1] {
			case joinRank:
				os.Exit(joined())
			case channelRank:
				os.Exit(signalled())
			case barrierRank:
				os.Exit(barriers(len(os.Args) > 2))
			}
		}
		os.Exit(execute(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// command runs this program and returns what it wrote.
func command(t *testing.T, wantCode int, args ...string) (stdout, stderr string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	// Without the last, the race detector sleeps a second at the end of each process.
	c.Env = append(os.Environ(), mainEnv+"=1", "GORACE=atexit_sleep_ms=0")
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	c.WaitDelay = 10 * time.Second
	_ = c.Run()
	if code := c.ProcessState.ExitCode(); code != wantCode {
		t.Fatalf("weft %s: exit status %d, want %d\n%s%s", strings.Join(args, " "), code, wantCode, &out, &errs)
	}
	return out.String(), errs.String()
}

// onlyReads leaves a test of what command lines mean out of short tests, which the race detector has: one goroutine
// reads them.
func onlyReads(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("one goroutine reads a command line")
	}
}

func TestRun(t *testing.T) {
	out, _ := command(t, 0, "run", "-n", "2", "--", "/bin/sh", "-c", "echo rank $WEFT_RANK -n")
	if !strings.Contains(out, "[0] rank 0 -n\n") || !strings.Contains(out, "[1] rank 1 -n\n") {
		t.Errorf("%q", out)
	}
	if out, _ := command(t, 0, "run", "-n1", "--no-prefix", "echo", "--json"); out != "--json\n" {
		t.Errorf("the program's flags are not ours: %q", out)
	}
	_, errs := command(t, 7, "run", "-n", "2", "--grace", "10ms", "sh", "-c", `test $WEFT_RANK = 0 || sleep 60; exit 7`)
	if !strings.Contains(errs, "rank 0 failed first: exit status 7") {
		t.Errorf("%q", errs)
	}
	out, _ = command(t, 0, "run", "-n", "1", "--json", "echo", "hi")
	if !strings.Contains(out, `"event":"output"`) || !strings.Contains(out, `"event":"end"`) {
		t.Errorf("%q", out)
	}
}

// joinRank makes the test binary a rank that joins, and does nothing more.
const joinRank = "rank that joins"

func joined() int {
	fmt.Println("joining")
	start := time.Now()
	c, err := weft.Join(context.Background())
	if err != nil {
		peer, ok := errors.AsType[*weft.PeerError](err)
		if !ok {
			peer = &weft.PeerError{Rank: -1}
		}
		fmt.Println("after", time.Since(start).Seconds(), "blames", peer.Rank, err)
		return 5
	}
	_ = c.Operations().VerifySame(context.Background(), "test", "", nil) // the others have joined, too, or have gone since
	_ = c.Close()
	return 0
}

// TestRunTellsThoseWhoJoin has a rank that ends before it joins, in several ways. The others, which
// wait for it, are told how.
func TestRunTellsThoseWhoJoin(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	join := "'" + self + "' '" + joinRank + "'"
	for name, c := range map[string]struct {
		victim     int
		end, words string
	}{
		"fails":           {2, "exit 7", "exit status 7"},
		"has nothing":     {1, "exit 0", "exit status 0"},
		"is killed":       {2, "kill -9 $$", "SIGKILL"},
		"rank 0 fails":    {0, "exit 3", "exit status 3"},
		"rank 0 is done":  {0, "sleep 0.3; exit 0", "exit status 0"},
		"fails later":     {1, "sleep 0.3; exit 9", "exit status 9"},
		"rank 0 is late":  {1, "exit 4", "exit status 4"},
		"in a shell each": {2, "sleep 0.3; exit 8", "exit status 8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := "if [ $WEFT_RANK = " + strconv.Itoa(c.victim) + " ]; then " + c.end + "; fi; "
			switch name {
			case "rank 0 is late": // it never joins: those who wait for it know better
				script += "[ $WEFT_RANK != 0 ] || exec sleep 1; exec " + join
			case "in a shell each": // which keeps no descriptor open
				script += "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd<&-\"; done; (" + join + "); exit $?"
			default:
				script += "exec " + join
			}
			command := exec.CommandContext(t.Context(), "/proc/self/exe", "run", "-n", "4", "--grace", "30s",
				"--timeout", "40s", "sh", "-c", script)
			command.Env = append(os.Environ(), mainEnv+"=1", "GORACE=atexit_sleep_ms=0")
			out, _ := command.CombinedOutput()
			told := 0
			for line := range strings.Lines(string(out)) {
				_, said, ok := strings.Cut(line, "after ")
				if !ok || !strings.Contains(line, "blames") {
					continue
				}
				var took float64
				var rank int
				if _, err := fmt.Sscanf(said, "%g blames %d", &took, &rank); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				if told++; took > 2 || rank != c.victim || !strings.Contains(line, c.words) {
					t.Errorf("%s", line)
				}
			}
			want := 3
			if name == "rank 0 is late" {
				want = 2
			}
			if told != want {
				t.Errorf("%d ranks were told, want %d\n%s", told, want, out)
			}
		})
	}
}

// TestRunEndsQuietly has a rank that ends when all have joined, and one of another job that is
// smaller. Nobody is told anything.
func TestRunEndsQuietly(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := `if [ $WEFT_RANK = 2 ]; then exit 0; fi; sleep 0.2; WEFT_SIZE=2 WEFT_LOCAL_SIZE=2 exec "$0" "$1"`
	command(t, 0, "run", "-n", "3", "sh", "-c", script, self, joinRank)
	command(t, 0, "run", "-n", "3", self, joinRank)
}

func TestRunFindsMistakes(t *testing.T) {
	onlyReads(t)
	for _, args := range [][]string{
		{"run", "true"},
		{"run", "-n", "2"},
		{"run", "-n", "0", "true"},
		{"run", "-n", "x", "true"},
		{"run", "-n", "1", "--env", "WEFT_RANK=3", "true"},
		{"run", "-n", "1", "--bind", "hard", "true"},
		{"run", "-n", "1", "--no-such-flag", "true"},
		{"run", "-n", "1025", "true"},
		{"run", "-n", "1000000", "true"},
		{"run", "-n", "1", "--timeout", "-1s", "true"},
		{"run", "-n", "1", "--grace", "-1s", "true"},
	} {
		if _, errs := command(t, 2, args...); !strings.HasPrefix(errs, "weft: ") {
			t.Errorf("%v: %q", args, errs)
		}
	}
	command(t, 127, "run", "-n", "1", "no-such-program-anywhere")
	command(t, 126, "run", "-n", "2", t.TempDir())
}

// TestRunStartsManyOnRequest asks for more ranks than start by a slip, of a program that can't be
// started.
func TestRunStartsManyOnRequest(t *testing.T) {
	command(t, 127, "run", "-n", "1025", "--yes", "no-such-program-anywhere")
	command(t, 2, "run", "-n", "9223372036854775807", "--yes", "true")
}

// TestRunTellsOfLostOutput writes to a full device, while ranks run and when they have ended.
func TestRunTellsOfLostOutput(t *testing.T) {
	for _, args := range [][]string{
		{"run", "-n", "1", "yes"},
		{"run", "-n", "2", "echo", "one line"},
		{"run", "-n", "1", "--json", "true"},
	} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		c := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
		c.Env = append(os.Environ(), mainEnv+"=1", "GORACE=atexit_sleep_ms=0")
		var errs bytes.Buffer
		c.Stdout, c.Stderr, c.WaitDelay = full, &errs, 10*time.Second
		_ = c.Run()
		full.Close()
		if code := c.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs.String(), "no space left on device") {
			t.Errorf("%v: exit status %d, %q", args, code, &errs)
		}
	}
}

func TestCommandsFindMistakes(t *testing.T) {
	onlyReads(t)
	for line, want := range map[string]string{
		"nosuch":         `there is no command "nosuch"; see weft --help`,
		"benhc":          `there is no command "benhc"; did you mean bench?; see weft --help`,
		"bench jion":     `bench: there is no command "jion"; did you mean join?; see weft bench --help`,
		"bench ep extra": `bench ep: it takes no arguments, so "extra" means nothing; see weft bench ep --help`,
		"help run extra": `help: there is no command "run extra"; see weft help --help`,
		"completion":     "completion: want the name of one shell: bash, zsh, fish or powershell; see weft completion --help",
		"--nosuch":       "there is no flag --nosuch; see weft --help",

		"run -n two true":      `run: -n, --ranks "two": want a whole number; see weft run --help`,
		"run -np 2 true":       "run: -np is mpirun's spelling: want -n N, or --ranks N; see weft run --help",
		"run -n":               "run: -n, --ranks has no value: want a whole number; see weft run --help",
		"run -ranks 2 true":    "run: there is no flag -ranks; did you mean --ranks?; see weft run --help",
		"run --timeout 5 true": `run: --timeout "5": want a time with its unit, as 500ms, 2s or 1m; see weft run --help`,
		"run -n 2 --hosts-by-namespace 0 true": "run: --hosts-by-namespace 0: want 1 or more; " +
			"without the flag ranks run on this host as it is; see weft run --help",
		"run true":                "run: no number of ranks: give one with -n N, 1 or more; see weft run --help",
		"run -n 0 true":           "run: no number of ranks: give one with -n N, 1 or more; see weft run --help",
		"bench ep --top-k 2":      "bench ep: there is no flag --top-k; did you mean --topk?; see weft bench ep --help",
		"bench ep --seed -1":      `bench ep: --seed "-1": want a whole number from 0 on; see weft bench ep --help`,
		"bench ep --ranks 2,x":    `bench ep: --ranks "2,x": want whole numbers from 1 on, as 2,4; see weft bench ep --help`,
		"bench ep --sms 1,x":      `bench ep: --sms "1,x": want whole numbers from 0 on, as 0,24; see weft bench ep --help`,
		"bench link --json=maybe": `bench link: --json "maybe": want true or false; see weft bench link --help`,
		"bench ep --mode x":       `bench ep: --mode "x": want ll or ht; see weft bench ep --help`,
		"compile --arch sm_12":    `compile: --arch "sm_12": want sm_80 or newer; see weft compile --help`,
		"compile":                 "compile: no directory: give one with --out DIR; see weft compile --help",
	} {
		if _, errs := command(t, 2, strings.Fields(line)...); errs != "weft: "+want+"\n" {
			t.Errorf("%s: %q, want %q", line, errs, want)
		}
	}
	for _, line := range []string{"", "bench", "help", "help bench ep", "help bench allreduce"} {
		out, _ := command(t, 0, strings.Fields(line)...)
		if !strings.Contains(out, "Usage:") || !strings.Contains(out, "Examples:") {
			t.Errorf("%s: %q", line, out)
		}
		for line := range strings.Lines(out) {
			if len(line) > 121 {
				t.Errorf("%d columns: %s", len(line), line)
			}
		}
	}
}

func TestDoctor(t *testing.T) {
	table, _ := command(t, 0, "doctor")
	if !regexp.MustCompile(`\n\nready on the host.*\n$`).MatchString(table) {
		t.Errorf("no verdict in the end:\n%s", table)
	}
	for _, want := range []string{"CPUs", "pages", "SIMD", "GPUs", "launch", "libfabric.so.1"} {
		if !strings.Contains(table, want) {
			t.Errorf("no line about %s:\n%s", want, table)
		}
	}
	object, _ := command(t, 0, "doctor", "--json")
	var m map[string]any
	if err := json.Unmarshal([]byte(object), &m); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields("weft go os kernel arch cpu numa memory pages simd limits gpu cuda " +
		"compiler kernel_caches libraries torch launch ready gpu_ready verdict problems") {
		if _, ok := m[key]; !ok {
			t.Errorf("no key %q", key)
		}
	}
}

func TestDoctorSaysWhichLauncherWon(t *testing.T) {
	out, _ := command(t, 0, "run", "-n", "2", "/proc/self/exe", "doctor")
	if !strings.Contains(out, "rank 1 of 2") || !strings.Contains(out, "with a secret") {
		t.Errorf("%s", out)
	}
}

func TestCompletion(t *testing.T) {
	onlyReads(t)
	for shell, want := range map[string]string{
		"bash": "__start_weft", "zsh": "#compdef weft",
		"fish": "complete -c weft", "powershell": "Register-ArgumentCompleter",
	} {
		if out, _ := command(t, 0, "completion", shell); !strings.Contains(out, want) {
			t.Errorf("%s: no %q", shell, want)
		}
	}
	command(t, 2, "completion", "tcsh")
}

// Whatever a shell is offered for a flag, the flag takes, and what it holds unless told
// otherwise is among that.
func TestCompletionOffersWhatFlagsTake(t *testing.T) {
	onlyReads(t)
	for path, flags := range map[string]string{
		"run":             "bind",
		"bench ep":        "dtype payload layout reduction weighting counts routing mode operand device quantize phases",
		"bench allreduce": "dtype op algorithm operand device",
		"bench scatter":   "dtype op operand device",
		"bench start":     "dtype layout",
	} {
		cmd, _, err := newRoot().Find(strings.Fields(path))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(flags) {
			complete, ok := cmd.GetFlagCompletionFunc(name)
			if !ok {
				t.Errorf("%s --%s: nothing is offered", path, name)
				continue
			}
			words, directive := complete(cmd, nil, "")
			if len(words) < 2 || directive != cobra.ShellCompDirectiveNoFileComp {
				t.Errorf("%s --%s: %v, directive %v", path, name, words, directive)
			}
			if d := cmd.Flags().Lookup(name).DefValue; d != "" && !slices.Contains(words, d) {
				t.Errorf("%s --%s: the default %q is not among %v", path, name, d, words)
			}
			for _, w := range words {
				if err := cmd.Flags().Set(name, w); err != nil {
					t.Errorf("%s --%s %s: %v", path, name, w, err)
				}
			}
			if cmd.Flags().Set(name, "nosuch") == nil || cmd.Flags().Set(name, "") == nil {
				t.Errorf("%s --%s: takes anything", path, name)
			}
		}
	}
}

// Every command has an example at least, and examples have flags that there are.
func TestExamples(t *testing.T) {
	onlyReads(t)
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			visit(c)
		}
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		own := false
		for line := range strings.Lines(cmd.Example) {
			_, line, ok := strings.Cut(line, "weft ")
			if !ok { // of what it has made
				continue
			}
			line, _, _ = strings.Cut(line, " #")
			line = strings.TrimRight(regexp.MustCompile(` *(\||&&|\)).*`).ReplaceAllString(line, ""), "\n")
			found, args, err := newRoot().Find(strings.Fields(line))
			own = own || err == nil && found.CommandPath() == cmd.CommandPath() || cmd.HasAvailableSubCommands()
			if err == nil {
				err = found.ParseFlags(args)
			}
			if err != nil {
				t.Errorf("%s: weft %s: %v", cmd.CommandPath(), line, err)
			}
		}
		if !own {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
	}
	visit(newRoot())
}

// keys lists the JSON keys of a struct: those that are always there, and the others.
func keys(v any) (always, sometimes []string) {
	for f := range reflect.TypeOf(v).Fields() {
		if f.Anonymous {
			a, s := keys(reflect.Zero(f.Type.Elem()).Interface())
			sometimes = slices.Concat(sometimes, a, s)
			continue
		}
		key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.IsExported():
		case options == "omitempty":
			sometimes = append(sometimes, key)
		default:
			always = append(always, key)
		}
	}
	return always, sometimes
}

func TestHelpExplainsEveryKey(t *testing.T) {
	has := func(text, key string) bool { return regexp.MustCompile(`(?m)^  .*\b` + key + `\b`).MatchString(text) }
	root := newRoot()
	bench, _, _ := root.Find([]string{"bench"})
	everywhere, elsewhere, ok := strings.Cut(bench.Long, "In every row of dispatch")
	if !ok {
		t.Fatal(bench.Long)
	}
	always, sometimes := keys(measure.Record{})
	for _, key := range always {
		if !has(everywhere, key) {
			t.Errorf("bench --help: %s is in every row", key)
		}
	}
	for _, key := range sometimes {
		if !has(elsewhere, key) {
			t.Errorf("bench --help: %s is in some rows", key)
		}
	}
	all, _, _ := root.Find([]string{"bench", "all"})
	always, sometimes = keys(figure{})
	for _, key := range slices.Concat(always, sometimes) {
		if !has(all.Long, key) {
			t.Errorf("bench all --help: no %s", key)
		}
	}
}

func TestBenchEP(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.html")
	out, errs := command(t, 0, "bench", "ep", "--ranks", "2", "--tokens", "1,3", "--hidden", "256", "--experts",
		"8", "--topk", "2",
		"--iters", "30", "--json", "--report", file)
	var ops []string
	for line := range strings.Lines(out) {
		var r measure.Record
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		ops = append(ops, r.Op)
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Fatal(err)
		}
		for _, key := range strings.Fields(`op engine ranks iterations p50_us p99_us min_us max_us mean_us slowest_rank
			wire_bytes gbps verified host version tokens hidden topk experts dtype layout reduction weighting counts
			routing mode operand batches`) {
			if _, ok := object[key]; !ok {
				t.Errorf("%s: no key %q", r.Op, key)
			}
		}
		if !r.Verified || r.Ranks != 2 || r.Iterations != 30 || r.P50 <= 0 || r.DType != "bf16" ||
			r.Layout != "expert-major" || r.Engine != "host" {
			t.Errorf("%+v", r)
		}
		if r.Op != "prepare" && (r.DeepEPBytes != int64(r.Tokens*2*512) || r.LogicalBytes > r.DeepEPBytes ||
			r.WireBytes >= r.DeepEPBytes) {
			t.Errorf("%s of %d tokens: bytes %d %d %d", r.Op, r.Tokens, r.WireBytes, r.LogicalBytes, r.DeepEPBytes)
		}
	}
	if d := cmp.Diff(strings.Fields("dispatch combine prepare dispatch combine prepare"), ops); d != "" {
		t.Error(d)
	}
	if !strings.Contains(errs, "ep, 2 ranks, 1 token: ") || !strings.Contains(errs, "ep, 2 ranks, 3 tokens: ") {
		t.Errorf("progress: %q", errs)
	}
	html, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(html, []byte("<svg")) || !bytes.Contains(html, []byte("weft bench ep --ranks 2")) {
		t.Errorf("report: %v, %d bytes", err, len(html))
	}
}

func TestBenchOthers(t *testing.T) {
	out, _ := command(t, 0, "bench", "join", "--ranks", "2", "--iters", "2")
	if !strings.Contains(out, "join") || !strings.Contains(out, " MiB\n") {
		t.Errorf("%s", out)
	}
}

// Each collective measures what it says, whether it starts its ranks or is one of a launcher's; but for some, in one of
// the two ways, and with WEFT_TEST_ALL=1 in both.
func TestBenchCollectives(t *testing.T) {
	for i := range benchcollective.Kinds {
		k := &benchcollective.Kinds[i]
		if testing.Short() && k.Collective != collective.AllReduce && k.Collective != collective.Barrier {
			continue // commands are processes of their own
		}
		if !k.On(false) {
			_, errs := command(t, 2, "bench", k.Name)
			if !strings.Contains(errs, "there is no algorithm on the host") {
				t.Errorf("%q", errs)
			}
			continue
		}
		launchers := [][]string{nil, {"run", "-n", "2", "--no-prefix", "/proc/self/exe"}}
		if !emulate.Everything() && k.Collective != collective.AllReduce && k.Collective != collective.Barrier {
			launchers = launchers[i%2:][:1]
		}
		for _, launcher := range launchers {
			out, _ := command(t, 0, append(launcher, "bench", k.Name, "--sizes", "8,1001", "--iters", "30", "--json")...)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			want := 2
			if k.Collective == collective.Barrier {
				want = 1
			}
			if len(lines) != want {
				t.Errorf("%s", out)
			}
			for _, line := range lines {
				var object map[string]any
				if err := json.Unmarshal([]byte(line), &object); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				for _, key := range strings.Fields("op dtype ranks bytes algorithm us_p50 us_p99 algbw busbw wrong verified") {
					if _, ok := object[key]; !ok {
						t.Errorf("no %s in %s", key, line)
					}
				}
				if object["op"] != k.Name || object["ranks"] != 2.0 || object["verified"] != true ||
					object["us_p50"] != object["p50_us"] || strings.Contains(line, `": `) || strings.Contains(line, `, "`) {
					t.Errorf("%s", line)
				}
			}
		}
	}
	out, _ := command(t, 0, "bench", "allgather", "--sizes", "64", "--iters", "30", "--inplace", "--algorithm",
		"all-gather/eager")
	if !regexp.MustCompile(`# fp32, in place\n(.|\n)* 64 B .* verified +eager\n`).MatchString(out) {
		t.Errorf("%s", out)
	}
	if _, err := cuda.Open(); err != nil {
		if _, errs := command(t, 1, "bench", "reduce", "--device", "gpu"); !strings.HasPrefix(errs, "weft: bench reduce: ") {
			t.Errorf("%q", errs)
		}
	}
	_, errs := command(t, 2, "run", "-n", "2", "/proc/self/exe", "bench", "barrier", "--ranks", "3")
	if !strings.Contains(errs, "the launcher has started 2") {
		t.Errorf("%q", errs)
	}
}

// A report of a collective has Gloo's curve beside ours, where there is a Python with PyTorch.
func TestBenchGloo(t *testing.T) {
	dir := t.TempDir()
	python, file := filepath.Join(dir, "python"), filepath.Join(dir, "report.html")
	script := "#!/bin/sh\n[ \"$1\" = -c ] && exit 0\n" +
		`echo '{"contract": "Gloo all_reduce", "bytes": 64, "p50_us": 80, "p99_us": 90, "verified": true}'` + "\n"
	if err := os.WriteFile(python, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEFT_PYTHON", python)
	args := []string{"bench", "allreduce", "--sizes", "8,64", "--iters", "30", "--json", "--report", file}
	out, _ := command(t, 0, args...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 || !strings.Contains(lines[2], `"engine":"gloo"`) {
		t.Errorf("%s", out)
	}
	page, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(page, []byte("</svg>Gloo</li>")) ||
		!bytes.Contains(page, []byte("</svg>Weft on the host</li>")) {
		t.Errorf("no curves of both, %v", err)
	}
	if out, _ := command(t, 0, append(args, "--no-peers")...); strings.Contains(out, "gloo") {
		t.Errorf("%s", out)
	}
	t.Setenv("WEFT_PYTHON", filepath.Join(dir, "nosuch"))
	out, errs := command(t, 0, args...)
	if strings.Contains(out, "gloo") || !strings.Contains(errs, "Gloo is not available") {
		t.Errorf("%s%s", out, errs)
	}
}

func TestBenchRefusesBeforeItStarts(t *testing.T) {
	onlyReads(t)
	for _, args := range [][]string{
		{"bench", "ep", "--ranks", "3"},
		{"bench", "ep", "--dtype", "opaque"},
		{"bench", "ep", "--tokens", "0"},
		{"bench", "ep", "--mode", "x"},
		{"bench", "ep", "--routing", "cold"},
		{"bench", "ep", "--operand", "disk"},
		{"bench", "ep", "--layout", "heap"},
		{"bench", "ep", "--dtype", "fp8", "--in-place"},
		{"bench", "allreduce", "--sizes", "0"},
		{"bench", "allreduce", "--dtype", "x"},
		{"bench", "allreduce", "--sizes", "1T"},
		{"bench", "ep", "--warmup", "-5", "--ranks", "2", "--tokens", "1", "--iters", "3"},
		{"bench", "ep", "--iters", "-1"},
		{"bench", "ep", "--iters", "100001"},
		{"bench", "ep", "--time", "-1s"},
		{"bench", "ep", "--batches", "0"},
		{"bench", "allreduce", "--warmup", "-1"},
		{"bench", "allreduce", "--algorithm", "nope"},
		{"bench", "allreduce", "--algorithm", "all-gather/eager"},
		{"bench", "allreduce", "--dtype", "ue8m0"},
		{"bench", "allreduce", "--dtype", "bool", "--op", "avg"},
		{"bench", "allgather", "--op", "max"},
		{"bench", "barrier", "--op", "sum"},
		{"bench", "allreduce", "--graph"},
		{"bench", "allreduce", "--device", "gpu", "--iters", "3"},
		{"bench", "allreduce", "--device", "gpu", "--loopback", "--ranks", "1"},
		{"bench", "allreduce", "--device", "gpu", "--loopback", "--ranks", "4", "--op", "avg"},
		{"bench", "allreduce", "--device", "gpu", "--ranks", "2,4"},
		{"bench", "allreduce", "--device", "gpu", "--operations", "2001"},
		{"bench", "allreduce", "--device", "gpu", "--algorithm", "all-reduce/eager"},
		{"bench", "sendrecv", "--inplace"},
		{"bench", "allreduce", "--ranks", "1025"},
		{"bench", "join", "--iters", "-1"},
		{"bench", "join", "--iters", "100001"},
		{"bench", "all", "--time", "-1s"},
		{"bench", "all", "--rounds", "0"},
		{"bench", "join", "--report", filepath.Join(t.TempDir(), "nosuch", "x.html")},
		{"bench", "all", "--report", t.TempDir()},
	} {
		if _, errs := command(t, 2, args...); !strings.HasPrefix(errs, "weft: ") {
			t.Errorf("%v: %q", args, errs)
		}
	}
}

// What is refused is called as the flag is, with what was given and what can be.
func TestRefusalsNameFlags(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"bench ep --topk 100", "--topk is 100: want 1 to 32"},
		{"bench ep --hidden 7", "--hidden is 7, and a row"},
		{"bench ep --experts 5", "--experts is 5 on 4 ranks"},
		{"bench ep --ranks 5000", "--ranks 5000: want 1 to 1024"},
		{"bench ep --iters -1", "--iters -1: want 0"},
		{"bench ep --time -1s", "--time -1s: want 0"},
		{"run -n 2 --grace -1s true", "--grace -1s: want 0"},
		{"plan synthesise --collective foo", `--collective "foo": want one of allgather`},
		{"compile --out k --ranks x", `--ranks "x": want whole numbers from 1 on, as 2,4`},
		{"compile --out k --ranks 2 --dtypes foo", `--dtypes: unknown dtype "foo": want one of bf16, fp16, fp32`},
	} {
		if _, errs := command(t, 2, strings.Fields(c.args)...); !strings.Contains(errs, c.want) {
			t.Errorf("%s: %q, want %q", c.args, errs, c.want)
		}
	}
}

func TestLists(t *testing.T) {
	var c counts
	if err := c.Set("2, 4"); err != nil || c.String() != "2,4" {
		t.Errorf("%v %v", c, err)
	}
	var z sizes
	if err := z.Set("8,64K,1m"); err != nil || z.String() != "8,64K,1M" {
		t.Errorf("%v %v", z, err)
	}
	for _, bad := range []string{"", "0", "-1", "x", "1,"} {
		if c.Set(bad) == nil || z.Set(bad) == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestCommandLine(t *testing.T) {
	if got, want := commandLine([]string{
		"/bin/weft", "bench", "a b", "",
		"it's",
	}), `weft bench 'a b' '' 'it'\''s'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestVersion(t *testing.T) {
	info := func(v string, kv ...string) *debug.BuildInfo {
		b := &debug.BuildInfo{Main: debug.Module{Version: v}}
		for i := 0; i < len(kv); i += 2 {
			b.Settings = append(b.Settings, debug.BuildSetting{Key: kv[i], Value: kv[i+1]})
		}
		return b
	}
	const format = "$Format:%H$\n"
	commit := strings.Repeat("0123456789", 4)
	for _, c := range []struct {
		want, archived string
		info           *debug.BuildInfo
	}{
		{"0.1.0", format, info("(devel)")},
		{"0.1.0", format, info("v0.1.0")},
		{"0.1.0 0123456789ab", format, info("v0.1.0", "vcs.revision", "0123456789abcdef", "vcs.modified", "false")},
		{"0.1.0 0123456789ab+dirty", format, info("", "vcs.revision", "0123456789abcdef", "vcs.modified", "true")},
		{"0.1.0 0123456789ab", format, info("v0.0.0-20261125214340-0123456789ab")},
		{"0.1.0 0123456789ab", format, info("v0.1.1-0.20261125214340-0123456789ab+dirty")},
		{"0.1.0 012345678901", commit + "\n", info("(devel)", "vcs.revision", "of another repository")},
	} {
		if got := versionOf("0.1.0", c.archived, c.info); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if got, want := version(), weft.Version(); !strings.HasPrefix(got, want) {
		t.Errorf("%q, want it to begin with %q", got, want)
	}
}

func TestFigures(t *testing.T) {
	f := figure{Target: 0.6, Least: true, samples: []float64{0.9, 0.5, 0.7}}
	f.finish()
	if f.Value != 0.7 || !f.Met || f.Rounds != 3 {
		t.Errorf("%+v", f)
	}
	f = figure{Target: 5, samples: []float64{6}}
	f.finish()
	if f.Met {
		t.Errorf("%+v", f)
	}
}

func TestCheckReportLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := checkReport(filepath.Join(dir, "report.html")); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
