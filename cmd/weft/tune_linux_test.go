package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/collective/tuning"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep"
)

func TestTuneEPFindsMistakes(t *testing.T) {
	onlyReads(t)
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"--gpus -1":                          "want at least 0",
		"--tokens 0":                         "0",
		"--deadline 0s":                      "more than 0s",
		"--layout none":                      "want",
		"--sms -1":                           "want whole numbers from 0 on",
		"--quantize bf16 --dtype fp16":       "fp16 rows are not quantised",
		"--wire per-rank":                    "there is no flag --wire",
		"--tokens 3 --hidden 3 --out unmade": "16 bytes",
	} {
		_, errs := command(t, 2, append([]string{"tune", "ep"}, strings.Fields(line)...)...)
		if !strings.HasPrefix(errs, "weft: ") || !strings.Contains(errs, want) {
			t.Errorf("%s: %q", line, errs)
		}
	}
	if _, errs := command(t, 1, "tune", "ep", "--out", broken); !strings.Contains(errs, broken) ||
		!strings.Contains(errs, "no table") {
		t.Errorf("%q", errs)
	}
	t.Setenv("WEFT_TUNING", "none")
	if _, errs := command(t, 2, "tune", "ep"); !strings.Contains(errs, "--out") {
		t.Errorf("%q", errs)
	}
	if _, err := cuda.Open(); err != nil {
		if _, errs := command(t, 1, "tune", "ep", "--out",
			filepath.Join(t.TempDir(), "table")); !strings.HasPrefix(errs, "weft: tune ep: ") {
			t.Errorf("%q", errs)
		}
	}
}

// TestTuneCollectives measures two algorithms, and reads what it has found.
func TestTuneCollectives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tuning.json")
	if err := os.WriteFile(path, []byte(`{"rows": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ := command(t, 0, strings.Fields("tune collectives --kinds broadcast,allgather --ranks 2 --sizes 64,8K "+
		"--iters 20 --repeats 1 --out "+path)...)
	for _, want := range []string{
		"shared-memory, 2 ranks of fp32", "broadcast", "outside windows", "in place", path + ": written",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	tables, err := tuning.Read(path)
	if err != nil || len(tables) != 1 || len(tables[tuning.SharedMemory].Measured) != 9 {
		t.Errorf("%+v, %v", tables, err)
	}
	shown, _ := command(t, 0, strings.Fields("tune collectives --show --kinds broadcast --ranks 2 --out "+path)...)
	if lines := strings.SplitAfter(out, "\n"); !strings.Contains(shown, lines[1]) {
		t.Errorf("it shows %s of %s", shown, out)
	}
	t.Setenv("WEFT_TUNING", "none")
	shown, _ = command(t, 0, strings.Fields("tune collectives --device gpu --show --profile h200-nvswitch --ranks 4")...)
	for _, want := range []string{
		"one-shot to 256 KiB, two-shot to 8 MiB, direct", "one launch takes at most", "5.33 MiB",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not in %s", want, shown)
		}
	}
}

func TestTuneCollectivesFindsMistakes(t *testing.T) {
	onlyReads(t)
	for line, want := range map[string]string{
		"--kinds barrier":                 "want some of allreduce",
		"--device gpu --time 1s":          "--time is for --device host",
		"--loopback":                      "--loopback is for --device gpu",
		"--repeats 0":                     "at least 1",
		"--profile x":                     "--show",
		"--sizes 0":                       "0",
		"--device gpu --sms -1":           "at least 0",
		"--device gpu --show --profile x": "name --ranks",

		"--show --profile h200-nvswitch":                         "add --device gpu",
		"--device gpu --show --profile shared-memory --ranks 4":  "leave out --device gpu",
		"--device gpu --show --profile x --ranks 4":              "there is no such table; want one of h100-nvswitch",
		"--device gpu --show --profile h200-nvswitch --ranks 73": "want 0 to 72",
		"--device gpu --loopback --ranks 1":                      "at least 2",
		"--device gpu --operations 0":                            "operations 0",
	} {
		_, errs := command(t, 2, append([]string{"tune", "collectives"}, strings.Fields(line)...)...)
		if !strings.HasPrefix(errs, "weft: ") || !strings.Contains(errs, want) {
			t.Errorf("%s: %q", line, errs)
		}
	}
	t.Setenv("WEFT_TUNING", "none")
	if _, errs := command(t, 2, "tune", "collectives", "--kinds", "broadcast"); !strings.Contains(errs, "--out") {
		t.Errorf("%q", errs)
	}
}

// TestTuneMerge puts the rows of several files into one, and into tables of the library.
func TestTuneMerge(t *testing.T) {
	t.Setenv("WEFT_TUNING", "")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	const h100 = "NVIDIA H100 80GB HBM3"
	handle := func(gpu string, ranks, threads int) ep.TuningRow {
		return ep.TuningRow{
			Hardware: ep.Hardware{GPU: gpu, SMs: 132, Ranks: ranks}, Date: "2026-11-28",
			Kind:   ep.HandleKind{Layout: "rank-major", Payload: "bf16", Hidden: 7168, TopK: 8, MaxTokens: 8},
			Tuning: ep.Tuning{Combine: ep.KernelTuning{Threads: threads}},
		}
	}
	write := func(name string, rows ...ep.TuningRow) string {
		if err := (&ep.TuningTable{Rows: rows}).Write(in(name)); err != nil {
			t.Fatal(err)
		}
		return in(name)
	}
	times := func(name, profile string, ranks int, us float64) string {
		if err := tuning.Write(in(name), map[string]*tuning.Table{profile: {
			Date: "2026-11-28", Measured: []spec.Measured{{
				Algorithm: "all-reduce/one-shot", Ranks: ranks, Points: []spec.Point{{Bytes: 8, Micros: us}},
			}},
		}}); err != nil {
			t.Fatal(err)
		}
		return in(name)
	}
	four, two := write("four.json", handle(h100, 4, 128)), write("two.json", handle(h100, 2, 96))
	other := write("other.json", handle("NVIDIA A100-SXM4-80GB", 2, 256))
	sums4, sums2 := times("sums4.json", "h100-nvswitch", 4, 3), times("sums2.json", "h100-nvswitch", 2, 2)
	files := []string{four, two, two, other, sums4, sums2}

	all := write("all.json", handle(h100, 4, 64), handle(h100, 8, 64))
	out, _ := command(t, 0, append([]string{"tune", "merge", "--out", all}, files...)...)
	if !strings.Contains(out, all+": 3 rows of expert parallelism, 2 of collectives\n") {
		t.Errorf("%q", out)
	}
	table, err := ep.ReadTuningTable(all)
	want := []ep.TuningRow{
		handle(h100, 4, 128), handle(h100, 8, 64), handle(h100, 2, 96), handle("NVIDIA A100-SXM4-80GB", 2, 256),
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, table.Rows); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if tables, err := tuning.Read(all); err != nil || len(tables["h100-nvswitch"].Measured) != 2 {
		t.Errorf("%+v, %v", tables, err)
	}

	source := t.TempDir()
	profiles := filepath.Join(source, "collective", "tuning", "profiles")
	for _, d := range []string{filepath.Join(source, "ep", "profiles"), profiles} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const old = `{"version": 1, "note": "of old", "constants": {"launch_us": 2}}`
	if err := os.WriteFile(filepath.Join(profiles, "h100-nvswitch.json"), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	files = append(files, times("shared.json", "h100-shared", 2, 5))
	command(t, 0, append([]string{"tune", "merge", "--source", source}, files...)...)
	for profile, want := range map[string]int{"h100-nvswitch": 2, "a100-sxm4-80gb-peers": 1} {
		table, err := ep.ReadTuningTable(filepath.Join(source, "ep", "profiles", profile+".json"))
		if err != nil || len(table.Rows) != want {
			t.Errorf("%s: %+v, %v", profile, table, err)
		}
	}
	for profile, want := range map[string]struct {
		rows   int
		launch float64
	}{"h100-nvswitch": {2, 2}, "h100-shared": {1, tuning.Builtin("h100-shared").Constants.Launch}} {
		text, err := os.ReadFile(filepath.Join(profiles, profile+".json"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := tuning.Parse(profile, text)
		if err != nil || len(got.Measured) != want.rows || got.Constants.Launch != want.launch || got.Note == "" ||
			got.Date != "2026-11-28" {
			t.Errorf("%s: %+v, %v", profile, got, err)
		}
	}
}

func TestTuneMergeFindsMistakes(t *testing.T) {
	t.Setenv("WEFT_TUNING", "none")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	row := func(version int, threads string) string {
		return fmt.Sprintf(`{"version": %d, "rows": [{"hardware": {"gpu": "x", "sms": 1, "ranks": 2}, "kind": {"layout": `+
			`"rank-major", "payload": "bf16", "hidden": 8, "topk": 1, "max_tokens": 8, "sms": 0}, "tuning": `+
			`{"combine": {"threads": %s}}, "weft": "", "date": ""}]}`, version, threads)
	}
	sums := func(of string) string { return `{"collectives": {"p": ` + of + `}}` }
	times := func(us string) string {
		return sums(`{"version": 1, "measured": [{"algorithm": "barrier/x", "ranks": 2, "points": [{"bytes": 0, "us": ` +
			us + `}]}]}`)
	}
	var current ep.TuningTable
	if err := current.Write(filepath.Join(dir, "current.json")); err != nil {
		t.Fatal(err)
	}
	now := current.Version
	good, other := file("good.json", row(now, "64")), file("other.json", row(now, "96"))
	short, long := file("short.json", times("1")), file("long.json", times("2"))
	for _, tc := range []struct {
		status int
		want   string
		args   []string
	}{
		{2, "want files", nil},
		{2, "want one of them", []string{"--out", "x", "--source", "y", good}},
		{2, "--out", []string{good}},
		{2, "want that of Weft's source", []string{"--source", dir, good}},
		{1, "no such file", []string{filepath.Join(dir, "missing.json")}},
		{1, "leave it out", []string{file("doctor.json", `{"cuda": {}}`)}},
		{1, "version 1, which other kernels gave", []string{file("old.json", row(1, "64"))}},
		{1, "1000 threads", []string{file("threads.json", row(now, "1000"))}},
		{1, good + " and " + other + " have different rows of rank-major handles", []string{good, other}},
		{1, short + " and " + long + " have different rows of barrier/x on 2 ranks", []string{short, short, long}},
		{1, "of another version", []string{file("later.json", sums(`{"version": 9}`))}},
		{1, "has constants", []string{file("constants.json", sums(`{"version": 1, "constants": {"hop_us": 1}}`))}},
	} {
		_, errs := command(t, tc.status, append([]string{"tune", "merge"}, tc.args...)...)
		if !strings.HasPrefix(errs, "weft: ") || !strings.Contains(errs, tc.want) {
			t.Errorf("%v: %q, want %q", tc.args, errs, tc.want)
		}
	}
}

// TestTuneTells: who has searched is told where the rows are.
func TestTuneTells(t *testing.T) {
	for out, want := range map[string]string{
		"":     "\na.json: 3 rows, of the profile h100-nvswitch\n",
		"here": "\na.json: 3 rows, of the profile h100-nvswitch\nHandles read them where WEFT_TUNING names the file.",
	} {
		var b strings.Builder
		(&tuneFlags{out: out}).tell(&b, "a.json", "h100-nvswitch", 3)
		if !strings.HasPrefix(b.String(), want) {
			t.Errorf("%q, want %q", b.String(), want)
		}
	}
}
