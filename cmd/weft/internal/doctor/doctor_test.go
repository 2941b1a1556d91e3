package doctor

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// machine builds sources over files given as name, content pairs.
func machine(kv ...string) Sources {
	root := fstest.MapFS{}
	for i := 0; i < len(kv); i += 2 {
		root[kv[i]] = &fstest.MapFile{Data: []byte(kv[i+1])}
	}
	return Sources{
		Root: root, Getenv: func(string) string { return "" },
		Weft: "v1.2.3", Go: "go1.26", Arch: "amd64", SIMD: "avx2",
		Pages:   func() string { return "4 KiB pages: the pool is empty" },
		Launch:  func() (string, error) { return "no launcher: one rank", nil },
		Allowed: func() ([]int, error) { return []int{0, 1, 2, 3}, nil },
		Limits:  func() Limits { return Limits{LockedMemory: 8 << 20, OpenFiles: 20000, OpenFilesMax: 20000} },
		Kernel:  func() string { return "6.1.0" },
	}
}

func find(t *testing.T, m Machine, name string) Finding {
	t.Helper()
	for _, f := range Findings(m) {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no finding %q in %+v", name, Findings(m))
	return Finding{}
}

func TestBareMachine(t *testing.T) {
	m := Collect(machine(
		"proc/meminfo", "MemTotal:       24689668 kB\nMemAvailable:   20000000 kB\n",
		"proc/cpuinfo", "processor : 0\nmodel name\t: AMD EPYC\n",
		"etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n",
		"sys/devices/system/cpu/online", "0-7\n",
	))
	if m.CPU.Online != 8 || m.CPU.Usable != 4 || m.CPU.Model != "AMD EPYC" || m.OS != "Debian GNU/Linux 12" || m.Memory.Total != 24689668<<10 {
		t.Errorf("%+v", m)
	}
	for _, f := range Findings(m) {
		if f.Grade == Bad {
			t.Errorf("a bare machine is fine, but: %+v", f)
		}
		if f.Name == "" || f.Value == "" || f.Meaning == "" {
			t.Errorf("incomplete: %+v", f)
		}
	}
	if f := find(t, m, "GPUs"); f.Value != "none" || !strings.Contains(f.Meaning, "host engine") {
		t.Errorf("%+v", f)
	}
}

func TestGPUMachine(t *testing.T) {
	s := machine(
		"proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2026\nGCC version: 12\n",
		"proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n",
		"proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: \t\t NVIDIA H200\n",
		"dev/nvidia0", "", "dev/nvidia1", "", "dev/nvidiactl", "", "dev/nvidia-uvm", "",
		"usr/lib/x86_64-linux-gnu/libcuda.so.1", "",
		"etc/ld.so.conf", "include ld.so.conf.d/*.conf # all of them\n",
		"etc/ld.so.conf.d/efa.conf", "/opt/efa/lib\n", "opt/efa/lib/libfabric.so.1", "",
		"venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "",
		"venv/lib/python3.12/site-packages/torch-2.13.0.dist-info/METADATA", "",
	)
	s.Python = "/venv/bin/python3"
	m := Collect(s)
	want := map[string]string{
		libcuda: "/usr/lib/x86_64-linux-gnu/libcuda.so.1", libfabric: "/opt/efa/lib/libfabric.so.1",
		libnvrtc13: "/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", libnvrtc12: "", libnvml: "",
	}
	if d := cmp.Diff(want, m.Libraries); d != "" {
		t.Error(d)
	}
	if m.Torch != "2.13.0" || m.GPU.Driver != "580.65.06" || m.GPU.gpuNodes() != 2 {
		t.Errorf("torch %q, %+v", m.Torch, m.GPU)
	}
	if f := find(t, m, "GPUs"); f.Value != "2 x NVIDIA H200" || f.Grade != Good {
		t.Errorf("%+v", f)
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	noLib := Collect(machine("dev/nvidia0", ""))
	if f := find(t, noLib, "GPUs"); f.Grade != Bad || !strings.Contains(f.Meaning, "libcuda") {
		t.Errorf("%+v", f)
	}
	noDev := Collect(machine("proc/driver/nvidia/gpus/0/information", "Model: X\n"))
	if f := find(t, noDev, "GPUs"); f.Grade != Bad || !strings.Contains(f.Meaning, "/dev/nvidia") {
		t.Errorf("%+v", f)
	}
	s := machine("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "150000 100000\n")
	s.Launch = func() (string, error) { return "", errors.New("RANK is not a number") }
	m := Collect(s)
	if f := find(t, m, "launch"); f.Grade != Bad || f.Value != "RANK is not a number" {
		t.Errorf("%+v", f)
	}
	if f := find(t, m, "CPUs"); f.Grade != Note || !strings.Contains(f.Value, "quota 1.5") {
		t.Errorf("%+v", f)
	}
}

func TestNVRTCByVariableWins(t *testing.T) {
	s := machine("usr/lib/libnvrtc.so.12", "", "home/me/cuda/libnvrtc.so.12", "")
	s.Getenv = func(k string) string {
		return map[string]string{"WEFT_NVRTC": "/home/me/cuda/libnvrtc.so.12"}[k]
	}
	if got := Collect(s).Libraries[libnvrtc12]; got != "/home/me/cuda/libnvrtc.so.12" {
		t.Errorf("%q", got)
	}
}

func TestIncludeLoopEnds(t *testing.T) {
	s := machine("etc/ld.so.conf", "include /etc/ld.so.conf\n/a\n", "a/libfabric.so.1", "")
	if got := Collect(s).Libraries[libfabric]; got != "/a/libfabric.so.1" {
		t.Errorf("%q", got)
	}
}

func TestOutput(t *testing.T) {
	m := Collect(machine())
	var table, object strings.Builder
	if err := Table(&table, Findings(m), false); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(table.String(), "\n"); n != len(Findings(m)) || strings.Contains(table.String(), "\x1b") {
		t.Errorf("%d lines\n%s", n, &table)
	}
	if err := JSON(&object, m); err != nil {
		t.Fatal(err)
	}
	var back Machine
	if err := json.Unmarshal([]byte(object.String()), &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, back); d != "" {
		t.Error(d)
	}
}
