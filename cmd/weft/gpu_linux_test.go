package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftgo/weft/cmd/weft/internal/link"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
)

// A choosy compiler gives images that nobody loads, and refuses one kernel.
type choosy struct{ refused string }

func (c choosy) Compile(_ context.Context, s kernel.Spec) (kernel.Code, error) {
	if s.Name == c.refused {
		return kernel.Code{}, errors.New("it is wrong")
	}
	return kernel.Code{Image: []byte("image of " + s.Name), Symbols: s.Kernels}, nil
}

func (choosy) Version() string { return "choosy 1" }

func newCache(t *testing.T, c kernel.Compiler) *kernel.Cache {
	return kernel.New(kernel.Options{
		Dir: t.TempDir(), ReadOnly: []string{},
		Compiler: func() (kernel.Compiler, error) { return c, nil },
	})
}

func TestCompileFillsADirectory(t *testing.T) {
	dir, archs := filepath.Join(t.TempDir(), "kernels"), []string{"sm_90a", "sm_80"}
	var specs []kernel.Spec
	for _, arch := range archs {
		of, err := (&groups{ranks: []int{2, 9}, dtypes: []string{"bf16"}}).kernels(arch)
		if err != nil || len(of) < 50 {
			t.Fatalf("%d kernels of groups: %v", len(of), err)
		}
		specs = append(append(specs, catalogue(arch)...), of...)
	}
	all := len(specs)
	var out strings.Builder
	err := compile(t.Context(), &out, newCache(t, choosy{"link latency"}), dir, specs)
	added, failed := strings.Count(out.String(), "added"), strings.Count(out.String(), "FAILED")
	if err == nil || !strings.Contains(err.Error(), "link latency") || added != all-2 || failed != 2 {
		t.Errorf("%v\n%s", err, &out)
	}
	out.Reset()
	if err := compile(t.Context(), &out, newCache(t, choosy{}), dir, specs); err != nil ||
		strings.Count(out.String(), "added") != 2 ||
		strings.Count(out.String(), "was there") != all-2 || !strings.Contains(out.String(), "choosy 1") {
		t.Errorf("%v\n%s", err, &out)
	}
	// Whoever has the directory needs no compiler.
	none := func() (kernel.Compiler, error) { return nil, errors.New("none") }
	carried := kernel.New(kernel.Options{Dir: t.TempDir(), ReadOnly: []string{dir}, Compiler: none})
	if _, err := carried.LoadAll(t.Context(), specs); err != nil {
		t.Error(err)
	}
	out.Reset()
	empty := kernel.New(kernel.Options{Dir: t.TempDir(), ReadOnly: []string{}, Compiler: none})
	if err := compile(t.Context(), &out, empty, dir, specs); err != nil ||
		strings.Count(out.String(), "was there") != all {
		t.Errorf("a full directory again: %v\n%s", err, &out)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := compile(t.Context(), &out, newCache(t, choosy{}), dir, specs); err == nil ||
		!strings.Contains(err.Error(), "chmod") {
		t.Errorf("what others may write is filled: %v", err)
	}
	out.Reset()
	if err := compile(t.Context(), &out, empty, filepath.Join(t.TempDir(), "x"), specs); !errors.Is(err,
		kernel.ErrNoCompiler) || out.Len() > 0 || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestCompileFindsMistakes(t *testing.T) {
	onlyReads(t)
	for _, line := range []string{
		"compile", "compile --out x --arch 90", "compile --out x --arch sm_90a,",
		"compile --out x --arch sm_90", "compile --out x --arch sm_80 --arch sm_100f", "compile --out x extra",
		"compile --out x --ranks 1", "compile --out x --ranks 2 --dtypes q",
	} {
		if _, errs := command(t, 2, strings.Fields(line)...); !strings.HasPrefix(errs, "weft: ") {
			t.Errorf("%s: %q", line, errs)
		}
	}
}

func TestBenchLinkFindsMistakes(t *testing.T) {
	onlyReads(t)
	for _, line := range []string{
		"--gpus -1", "--replays 0", "--replays 1001", "--sizes 0", "--sms 0",
		"--sms x", "extra",
	} {
		if _, errs := command(t, 2, append([]string{"bench", "link"},
			strings.Fields(line)...)...); !strings.HasPrefix(errs, "weft: ") {
			t.Errorf("%s: %q", line, errs)
		}
	}
	if driver, err := cuda.Open(); err != nil {
		if _, errs := command(t, 1, "bench", "link"); !strings.HasPrefix(errs, "weft: bench link: ") {
			t.Errorf("%q", errs)
		}
	} else if n := len(driver.Devices()); n > 0 {
		if _, errs := command(t, 1, "bench", "link", "--gpus", "99"); !strings.Contains(errs, "99 GPUs: this process sees") {
			t.Errorf("%q", errs)
		}
	}
}

func TestPrimaries(t *testing.T) {
	m := cudatest.New(cudatest.Config{Devices: 3})
	driver, err := m.Open()
	if err != nil {
		t.Skip(err)
	}
	for asked, want := range map[int]int{0: 3, 1: 1, 3: 3} {
		all, closeAll, err := primaries(driver, asked)
		if err != nil || len(all) != want {
			t.Fatalf("%d: %d, %v", asked, len(all), err)
		}
		if err := closeAll(); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := primaries(driver, 4); err == nil || !strings.Contains(err.Error(), "sees 3") {
		t.Error(err)
	}
	m.Fail("cuDevicePrimaryCtxRetain", 1, cuda.ErrOutOfMemory)
	if _, _, err := primaries(driver, 0); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Error(err)
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

func measured() link.Ceiling {
	row := func(w link.Way, p link.Pattern, sms int, gbps float64, ok bool) link.Row {
		r := link.Row{Op: "link", Way: w, Pattern: p, GPUs: 4, SMs: sms, Threads: 1024, Micros: 2, Verified: ok}
		if p != "" {
			r.Bytes, r.GBps = 192<<20, gbps
		}
		return r
	}
	return link.Ceiling{GPUs: 4, Device: "NVIDIA H200", SMs: 132, Rows: []link.Row{
		row(link.Empty, "", 1, 0, true), row(link.Barrier, "", 1, 0, true), row(link.Hop, "", 1, 0, true),
		row(link.Store, link.AllToAll, 8, 300, true), row(link.Store, link.AllToAll, 132, 355, true),
		row(link.BulkStore, link.AllToAll, 8, 335, true), row(link.Load, link.AllToAll, 132, 900, false),
		row(link.Engine, link.AllToAll, 0, 379, true),
		row(link.Store, link.AllToOne, 8, 370, true),
	}}
}

func TestLinkTables(t *testing.T) {
	var out strings.Builder
	if err := linkTables(&out, measured()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"4 GPUs (NVIDIA H200, 132 SMs each)", "hop",
		"all-to-all, 192 MiB: GB/s out of each GPU, by SMs  0    8    132", "bulk-store", "900 WRONG",
		"all-to-one, 192 MiB: GB/s into the one GPU",
		"ceiling for kernels: 355 GB/s (store, 132 SMs); with 8 SMs or fewer 335 GB/s (bulk-store)",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	out.Reset()
	err := linkTables(&out, link.Ceiling{GPUs: 1, Device: "X", SMs: 10})
	if err != nil || !strings.Contains(out.String(), "1 GPU: local memory, no link") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestCeilingWithSMs(t *testing.T) {
	c := measured()
	for sms, want := range map[int]float64{1: 335, 8: 335, 12: 355, 100: 355, 132: 355} {
		if got := c.With(sms); got != want {
			t.Errorf("%d SMs: %g, want %g", sms, got, want)
		}
	}
	c.Rows = append(c.Rows, link.Row{Way: link.Store, Pattern: link.AllToAll, SMs: 2, GBps: 100, Verified: true})
	for sms, want := range map[int]float64{1: 100, 3: 150, 7: 350, 8: 335} {
		if got := c.With(sms); got != want {
			t.Errorf("%d SMs: %g, want %g", sms, got, want)
		}
	}
	if got := (link.Ceiling{}).With(8); got != 0 {
		t.Error(got)
	}
}

func TestLinkLines(t *testing.T) {
	var out strings.Builder
	if err := linkLines(&out, measured()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(measured().Rows)+1 {
		t.Fatalf("%d lines", len(lines))
	}
	help, _, _ := newRoot().Find([]string{"bench", "link"})
	for _, line := range lines {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Fatal(err)
		}
		if object["op"] == nil || object["device"] != "NVIDIA H200" || object["version"] != version() {
			t.Errorf("%s", line)
		}
		for key := range object {
			if !strings.Contains(help.Long, key) {
				t.Errorf("%s is not explained", key)
			}
		}
	}
	always, sometimes := keys(link.Row{})
	for _, key := range append(always, sometimes...) {
		if key != "" && !strings.Contains(help.Long, key) {
			t.Errorf("%s is not explained", key)
		}
	}
	const ceiling = `"op":"ceiling","gpus":4,"sms_per_gpu":132,"local":false,"gbps":355,"way":"store","sms":132,` +
		`"gbps_at_8":335,"way_at_8":"bulk-store","empty_us":2,"hop_us":2,"barrier_us":2`
	if last := lines[len(lines)-1]; !strings.Contains(last, ceiling) {
		t.Errorf("%s", last)
	}
}
