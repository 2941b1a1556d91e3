package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/spec"
)

// planFile writes an all-gather of two ranks, after a change, and gives its name.
func planFile(t *testing.T, change func(f *plan.File)) string {
	t.Helper()
	p := plan.New("gather", plan.AllGather(2, 1), plan.Options{InPlace: true})
	channels := []*plan.Channel{p.Memory(0, 1), p.Memory(1, 0)}
	for r, c := range channels {
		b := p.Rank(r).Block(0)
		b.RelaxedSignal(c)
		b.RelaxedWait(c)
		b.Put(c, p.Rank(1-r).Output().Chunk(r, 1), p.Rank(r).Output().Chunk(r, 1))
		b.Signal(c)
		b.Wait(c)
	}
	f, err := p.Build()
	if err != nil {
		t.Fatal(err)
	}
	change(f)
	name := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(name, f.Text(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// cut removes operations of rank 0's block.
func cut(from, to int) func(f *plan.File) {
	return func(f *plan.File) {
		b := &f.Ranks[0].Blocks[0]
		b.Ops = append(b.Ops[:from:from], b.Ops[to:]...)
	}
}

func TestPlanCheck(t *testing.T) {
	right := planFile(t, func(*plan.File) {})
	if out, _ := command(t, 0, "plan", "check", "--strict", right); out != right+": nothing to find\n" {
		t.Errorf("%q", out)
	}
	// Without its last signal rank 1 waits for ever, and its buffer may be written too late.
	deadlock := planFile(t, cut(5, 6))
	out, _ := command(t, 1, "plan", "check", deadlock)
	for _, want := range []string{
		"error: deadlock: ", "\n    rank 1, block 0, operation 6 (wait) waits for a signal of memory channel 0 of rank 1",
		"error: balance: ", deadlock + ": 2 errors, 0 warnings\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %q", want, out)
		}
	}
	out, _ = command(t, 1, "plan", "check", "--json", deadlock)
	var report struct {
		Verdict  string
		Errors   int
		Findings []struct {
			Class, Severity, Text string
			Events                []map[string]any
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if report.Verdict != "errors" || report.Errors != 2 || report.Findings[0].Class != "deadlock" ||
		report.Findings[0].Severity != "error" || report.Findings[0].Events[0]["rank"] != 1.0 ||
		report.Findings[0].Events[0]["operation"] != 6.0 || report.Findings[0].Events[0]["name"] != "wait" {
		t.Errorf("%s", out)
	}
	warned := planFile(t, func(f *plan.File) {
		for len(f.Ranks[0].Blocks[0].Ops) <= 64 {
			b := &f.Ranks[0].Blocks[0]
			b.Ops = append(b.Ops, spec.Op{Kind: spec.Nop})
		}
	})
	if out, _ := command(t, 0, "plan", "check", warned); !strings.HasSuffix(out, ": 0 errors, 1 warning\n") {
		t.Errorf("%q", out)
	}
	command(t, 0, "plan", "check", "--strict", warned) // of limits of another executor
	command(t, 1, "plan", "check", "--strict", "--mscclpp", warned)
	_, errs := command(t, 2, "plan", "check", "--mscclpp", warned)
	if !strings.Contains(errs, "--mscclpp is of --strict") {
		t.Errorf("%q", errs)
	}
	semaphore := planFile(t, func(f *plan.File) { // sides that two blocks share are a warning of this executor's, too
		f.Ranks[0].Semaphores = []int{0}
		for range 2 {
			f.Ranks[0].Blocks = append(f.Ranks[0].Blocks, spec.Block{Ops: []spec.Op{
				{Kind: spec.SemRelease, Semaphores: []int{0}}, {Kind: spec.SemAcquire, Semaphores: []int{0}},
			}})
		}
	})
	command(t, 0, "plan", "check", semaphore)
	command(t, 1, "plan", "check", "--strict", semaphore)
	undecided := planFile(t, func(f *plan.File) { // blocks that may be ahead of each other, by too many windows
		const blocks = 40
		f.Ranks[0].Semaphores = append(slices.Repeat([]int{510}, blocks-1), 0)
		for i := range blocks {
			take := spec.Op{Kind: spec.SemAcquire, Semaphores: []int{i}}
			give := spec.Op{Kind: spec.SemRelease, Semaphores: []int{(i + blocks - 1) % blocks}}
			loop := spec.Op{Kind: spec.Pipeline, Unit: 4096, Chunks: 1}
			var ops []spec.Op
			switch i {
			case 0:
				loop.Ops = []spec.Op{take}
				ops = []spec.Op{loop, give}
			case blocks - 1:
				loop.Ops = []spec.Op{give}
				ops = []spec.Op{take, loop}
			default:
				loop.Ops = []spec.Op{take, give}
				ops = []spec.Op{loop}
			}
			f.Ranks[0].Blocks = append(f.Ranks[0].Blocks, spec.Block{Ops: ops})
		}
	})
	if out, _ := command(t, 0, "plan", "check", undecided); !strings.Contains(out, "warning: undecided: pipelines may "+
		"run ahead of each other by 19890 windows in all, more than can be tried") {
		t.Errorf("%q", out)
	}
	command(t, 1, "plan", "check", "--strict", undecided)
	broken := planFile(t, func(f *plan.File) { f.Ranks[0].Blocks[0].Ops[3].Dst[0].Index = 7 })
	if out, _ := command(t, 1, "plan", "check", broken); !strings.Contains(out,
		"error: structure: destination 0 ends at chunk 8 of the output of rank 1, which has 2\n"+
			"    rank 0, block 0, operation 3") {
		t.Errorf("%q", out)
	}
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs := command(t, 2, "plan", "check", broken); !strings.Contains(errs, "the text ends") {
		t.Errorf("%q", errs)
	}
	command(t, 2, "plan", "check", broken+".none")
}

func TestPlanRun(t *testing.T) {
	right := planFile(t, func(*plan.File) {})
	out, _ := command(t, 0, "plan", "run", right, "--simulate", "--seed", "3", "--schedules", "20")
	if !strings.HasPrefix(out, right+": right in 20 schedules of 3 launches, ") {
		t.Errorf("%q", out)
	}
	late := planFile(t, func(f *plan.File) {
		for r := range f.Ranks {
			b := &f.Ranks[r].Blocks[0]
			b.Ops = b.Ops[:4]
		}
	})
	_, errs := command(t, 1, "plan", "run", late, "--simulate", "--schedules", "100")
	if !strings.Contains(errs, ": chunk ") || !strings.Contains(errs, " is wrong when the rank ends\n") {
		t.Errorf("%q", errs)
	}
	_, seed, _ := strings.Cut(errs, ": seed ")
	seed, _, _ = strings.Cut(seed, ":")
	out, again := command(t, 1, "plan", "run", late, "--simulate", "--seed", seed, "--trace")
	if again != errs || !strings.Contains(out, "rank 0 begins launch 1\n") {
		t.Errorf("%q, and before %q; %q", again, errs, out)
	}
	for line, want := range map[string]string{
		"plan check":          "plan check: want the name of one file; see weft plan check --help",
		"plan run x --seed 3": "plan run: --seed is of simulations: add --simulate; see weft plan run --help",
		"plan run x --simulate --bytes 3": "plan run: --bytes is of real ranks: leave out --simulate; " +
			"see weft plan run --help",
		"plan diff x":                        "plan diff: want the names of two files; see weft plan diff --help",
		"plan run x --simulate --launches 0": "plan run: --launches, --schedules: want at least 1; see weft plan run --help",
		"plan show x y":                      "plan show: want the name of one file; see weft plan show --help",
	} {
		if _, errs := command(t, 2, strings.Fields(line)...); errs != "weft: "+want+"\n" {
			t.Errorf("%s: %q, want %q", line, errs, want)
		}
	}
}

// A plan runs on real ranks; what the verifier refuses does not.
func TestPlanRun_host(t *testing.T) {
	right := planFile(t, func(*plan.File) {})
	out, _ := command(t, 0, "plan", "run", right, "--bytes", "64K", "--launches", "1")
	if want := right + ": right in 1 launch of 64 KiB on 2 ranks, 32 KiB in chunks, the first in "; !strings.HasPrefix(out,
		want) {
		t.Errorf("%q, want %q", out, want)
	}
	if _, errs := command(t, 2, "plan", "run", right, "--bytes", "-64"); !strings.Contains(errs,
		`--bytes "-64": want a size from 1 to 1024G, as 64K`) {
		t.Errorf("%q", errs)
	}
	if _, errs := command(t, 2, "plan", "run", right, "--bytes", "100"); !strings.Contains(errs, "no multiple of 32") {
		t.Errorf("%q", errs)
	}
	_, errs := command(t, 1, "plan", "run", planFile(t, cut(5, 6)))
	if !strings.Contains(errs, "the verifier finds: deadlock") {
		t.Errorf("%q", errs)
	}
}

// A plan is measured beside the library's choice.
func TestPlanBench(t *testing.T) {
	right := planFile(t, func(*plan.File) {})
	out, _ := command(t, 0, "plan", "bench", right, "--sizes", "64k", "--iters", "3", "--json")
	for _, want := range []string{`"algorithm":"all-gather/plan/gather"`, `"algorithm":"all-gather/pull"`} {
		if !strings.Contains(out, want) {
			t.Errorf("%s: without %s", out, want)
		}
	}
	out, _ = command(t, 0, "bench", "allgather", "--plan", right, "--sizes", "100000", "--iters", "3", "--json")
	if !strings.Contains(out, `"algorithm":"all-gather/plan/gather"`) || !strings.Contains(out, `"verified":true`) {
		t.Errorf("%s", out)
	}
	for _, line := range []string{"bench allreduce --plan " + right, "bench allgather --plan " + right + " --ranks 2"} {
		if _, errs := command(t, 2, strings.Fields(line)...); !strings.Contains(errs, "plan") {
			t.Errorf("%s: %q", line, errs)
		}
	}
}

// Groups that are made with a plan choose it where a table says that it is faster.
func TestPlanTune(t *testing.T) {
	right, table := planFile(t, func(*plan.File) {}), filepath.Join(t.TempDir(), "tuning.json")
	command(t, 0, "tune", "collectives", "--kinds", "allgather", "--ranks", "2", "--sizes", "64k", "--repeats", "1",
		"--iters", "3", "--plan", right, "--out", table)
	if text, err := os.ReadFile(table); err != nil || !strings.Contains(string(text), `"all-gather/plan/gather"`) {
		t.Errorf("%s: %v", text, err)
	}
	_, errs := command(t, 2, "tune", "collectives", "--kinds", "allgather", "--ranks", "4", "--plan", right)
	if !strings.Contains(errs, "it is for allgather on 2 ranks") {
		t.Errorf("%q", errs)
	}
}

func TestPlanText(t *testing.T) {
	right, other := planFile(t, func(*plan.File) {}), planFile(t, cut(3, 4))
	out, _ := command(t, 0, "plan", "fmt", right, "--compact")
	line := filepath.Join(t.TempDir(), "line.json")
	if err := os.WriteFile(line, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _ := command(t, 0, "plan", "diff", right, line); out != "" {
		t.Errorf("%q", out)
	}
	out, _ = command(t, 1, "plan", "diff", right, other)
	want := "rank 0, block 0:\n  - 3 put output[0:1] -> output of 1[0:1]\n" +
		"they leave other contents: the output of rank 1\n"
	if out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

func TestPlanShow(t *testing.T) {
	right := planFile(t, func(*plan.File) {})
	out, _ := command(t, 0, "plan", "show", right)
	name := filepath.Join(t.TempDir(), "plan.svg")
	command(t, 0, "plan", "show", right, "--out", name)
	if text, err := os.ReadFile(name); err != nil || string(text) != out || !strings.HasPrefix(out, "<svg ") {
		t.Errorf("%v: %.100q", err, out)
	}
}

// A plan without barriers gets them back, on the standard output or in a file.
func TestPlanFix(t *testing.T) {
	right, err := os.ReadFile(planFile(t, func(*plan.File) {}))
	if err != nil {
		t.Fatal(err)
	}
	lacking := planFile(t, func(f *plan.File) {
		for r := range f.Ranks {
			b := &f.Ranks[r].Blocks[0]
			b.Ops = slices.DeleteFunc(b.Ops, func(o spec.Op) bool { return o.Kind == spec.Nop })
		}
	})
	out, _ := command(t, 0, "plan", "fix", lacking)
	if out != string(right)+"\n" {
		t.Errorf("%s\nshould be\n%s", out, right)
	}
	name := filepath.Join(t.TempDir(), "fixed.json")
	command(t, 0, "plan", "fix", lacking, "--out", name)
	if text, err := os.ReadFile(name); err != nil || string(text) != out {
		t.Errorf("the file has something else: %v", err)
	}
	if _, errs := command(t, 2, "plan", "fix"); !strings.Contains(errs, "want the name of one file") {
		t.Errorf("%q", errs)
	}
}

// A plan is made for links, is right, and runs.
func TestPlanSynthesise(t *testing.T) {
	dir := t.TempDir()
	topology, name := filepath.Join(dir, "topology.json"), filepath.Join(dir, "plan.json")
	links := func(top *cost.Topology) {
		if err := os.WriteFile(topology, top.Text(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	links(cost.Ring(4, 50, 1))
	line := []string{"plan", "synthesise", "--collective", "allreduce", "--topology", topology, "--bytes", "1K"}
	out, _ := command(t, 0, append(line, "--out", name, "--name", "mine")...)
	for _, want := range []string{"mine: 2.", " us for 1 KiB, which is 1.0", "packets in ", "the busiest link, from "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %q", want, out)
		}
	}
	if out, _ := command(t, 0, "plan", "check", name); !strings.Contains(out, "0 errors") &&
		!strings.Contains(out, "nothing to find") {
		t.Errorf("%q", out)
	}
	line[3] = "broadcast"
	text, errs := command(t, 0, append(line, "--root", "2", "--seed", "1")...)
	if f, err := plan.Load([]byte(text)); err != nil || f.Ranks[2].Input == 0 || f.Ranks[0].Input != 0 ||
		!strings.HasPrefix(errs, "synthesised-broadcast-4: ") {
		t.Errorf("%v, %q", err, errs)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _ := command(t, 0, "plan", "run", name); !strings.Contains(out, ": right in 3 launches") {
		t.Errorf("%q", out)
	}
	line[3] = "allgather"
	for more, want := range map[string]string{
		"--root 1":            "plan synthesise: --root is of broadcasts; see weft plan synthesise --help",
		"--collective gather": `plan synthesise: --collective "gather": want one of allgather, allreduce, alltoall, `,
		"--topology=":         "plan synthesise: --topology: want the name of a file of ranks and links; ",
		"--bytes 1K,2K":       "plan synthesise: --bytes \"1K,2K\": want a size from 1 to 1024G, as 64K; ",
		"--time 0s":           "plan synthesise: --time: want more than 0; ",
		"ring":                `plan synthesise: "ring" is no flag`,
	} {
		if _, errs := command(t, 2, append(line[:len(line):len(line)], strings.Fields(more)...)...); !strings.Contains(errs,
			want) {
			t.Errorf("%s: %q, want %q", more, errs, want)
		}
	}
	links(cost.AllToAll(2, 50, 1).Without(0, 1))
	if _, errs := command(t, 1, line...); !strings.Contains(errs, "no links lead from rank 0 to rank 1") {
		t.Errorf("%q", errs)
	}
	if err := os.WriteFile(topology, []byte(`{"ranks": 2, "wires": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs := command(t, 2, line...); !strings.Contains(errs, `unknown field "wires"`) {
		t.Errorf("%q", errs)
	}
	command(t, 2, append(line, "--topology", topology+".none")...)
}

func TestPlanOptimise(t *testing.T) {
	name := planFile(t, func(f *plan.File) {
		for r := range f.Ranks {
			b := &f.Ranks[r].Blocks[0]
			b.Ops = append(b.Ops, spec.Op{Kind: spec.Nop}, spec.Op{Kind: spec.Nop})
		}
	})
	better := filepath.Join(t.TempDir(), "better.json")
	out, _ := command(t, 0, "plan", "optimise", name, "--out", better)
	for _, want := range []string{
		name + ": 2 ranks, message of 1 MiB\n", "operations                 18         14\n", "removed: 4 x nop\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %q", want, out)
		}
	}
	command(t, 0, "plan", "check", "--strict", better)
	out, report := command(t, 0, "plan", "optimise", better, "--bytes", "4K", "--seed", "3", "--time", "10m")
	if text, err := os.ReadFile(better); err != nil || out != string(text) {
		t.Errorf("a plan in which nothing is found: %q: %v", out, err)
	}
	if !strings.Contains(report, "nothing was found: the plan stays as it is\n") {
		t.Errorf("%q", report)
	}

	links := filepath.Join(t.TempDir(), "links.json")
	text := []byte(`{"ranks": 2, "links": [{"from": 0, "to": 1, "gbps": 10, "us": 5}]}`)
	if err := os.WriteFile(links, text, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := command(t, 1, "plan", "optimise", name, "--topology", links)
	if !strings.Contains(err, "a path from rank 1 to rank 0, and the topology has none") {
		t.Errorf("%q", err)
	}
	command(t, 2, "plan", "optimise", name, "--topology", name)
	command(t, 2, "plan", "optimise", name, "--bytes", "0")
	wrong := planFile(t, cut(5, 6))
	_, err = command(t, 1, "plan", "optimise", wrong)
	if !strings.Contains(err, "only a plan that it passes is optimised") {
		t.Errorf("%q", err)
	}
}
