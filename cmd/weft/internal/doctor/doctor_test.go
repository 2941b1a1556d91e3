package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/fabric/ibgda"
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
		Pages:    func() string { return "4 KiB pages: the pool is empty" },
		Launch:   func() (string, error) { return "no launcher: one rank", nil },
		Allowed:  func() ([]int, error) { return []int{0, 1, 2, 3}, nil },
		Limits:   func() Limits { return Limits{LockedMemory: 8 << 20, OpenFiles: 20000, OpenFilesMax: 20000} },
		Kernel:   func() string { return "6.1.0" },
		CUDA:     func() CUDA { return CUDA{Err: "no libcuda.so.1", Missing: true} },
		Compiler: func() Compiler { return Compiler{Err: "no NVRTC"} },
		Caches:   func() []Cache { return nil },
		Fabric:   func() Fabric { return Fabric{Err: "libfabric is unavailable: install it"} },
		Cards:    func() ([]ibgda.Found, error) { return nil, errors.New("verbs are unavailable") },
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
	if m.CPU.Online != 8 || m.CPU.Usable != 4 || m.CPU.Model != "AMD EPYC" || m.OS != "Debian GNU/Linux 12" ||
		m.Memory.Total != 24689668<<10 {
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
		"proc/driver/nvidia/version",
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2026\nGCC version: 12\n",
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
	h200 := Device{Name: "NVIDIA H200", Arch: "sm_90a", SMs: 132, Memory: 141 << 30, VMM: true, FD: true}
	s.CUDA = func() CUDA {
		return CUDA{Version: "13.0", Devices: []Device{h200, h200}, Peers: [][]bool{{true, true}, {true, true}}}
	}
	m := Collect(s)
	want := map[string]string{
		libcuda: "/usr/lib/x86_64-linux-gnu/libcuda.so.1", libfabric: "/opt/efa/lib/libfabric.so.1",
		libnvrtc13: "/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", libnvrtc12: "", libnvml: "",
		libibverbs: "", libmlx5: "",
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

func TestWhatTheDriverSays(t *testing.T) {
	a := Device{Name: "A", Arch: "sm_90a", SMs: 132, Memory: 1 << 30, VMM: true, FD: true, Fabric: true}
	b, old := a, a
	b.FD, b.Fabric, old.Arch, old.VMM = false, false, "sm_60", false
	s := machine("dev/nvidia0", "", "usr/lib/libcuda.so.1", "")
	s.CUDA = func() CUDA {
		return CUDA{Version: "13.0", Devices: []Device{a, a, b, old}, Peers: [][]bool{
			{true, true, false, false}, {true, true, true, false}, {false, true, true, false}, {false, false, false, true},
		}}
	}
	m := Collect(s)
	for name, want := range map[string]Finding{
		"CUDA":     {Value: "13.0", Meaning: "the newest that the driver"},
		"GPUs":     {Value: "4", Meaning: "may use them"},
		"GPUs 0-1": {Value: "A, sm_90a, 132 SMs, 1.0 GiB", Meaning: "NVLink domain"},
		"GPU 2":    {Value: "A, sm_90a", Meaning: "goroutines of one", Grade: Note},
		"GPU 3":    {Value: "A, sm_60", Meaning: "no virtual memory", Grade: Bad},
		"peers":    {Value: "0: 1; 1: 0,2; 2: 1; 3: none", Meaning: "reaches only these", Grade: Note},
	} {
		if f := find(t, m, name); !strings.HasPrefix(f.Value, want.Value) ||
			!strings.Contains(f.Meaning, want.Meaning) || f.Grade != want.Grade {
			t.Errorf("%+v, want %+v", f, want)
		}
	}
	s.CUDA = func() CUDA { return CUDA{Err: "cuInit: CUDA_ERROR_SYSTEM_NOT_READY"} }
	m = Collect(s)
	for _, name := range []string{"CUDA", "GPUs"} {
		if f := find(t, m, name); f.Grade != Bad {
			t.Errorf("%+v", f)
		}
	}
	s.Root = fstest.MapFS{"usr/lib/libcuda.so.1": {}}
	if f := find(t, Collect(s), "CUDA"); f.Grade != Note || !strings.Contains(f.Meaning, "cuInit") {
		t.Errorf("without a GPU that is no fault: %+v", f)
	}
}

func TestDriverIsAskedWithoutAContext(t *testing.T) {
	m := cudatest.New(cudatest.Config{
		Devices: 3, NoPeers: true,
		Attributes: map[cuda.Attribute]int{cuda.HandleTypeFabric: 1},
	})
	driver, err := m.Open()
	if err != nil {
		t.Skip(err)
	}
	d := Device{Name: "cudatest", Arch: "sm_90a", SMs: 132, Memory: 1 << 30, VMM: true, FD: true, Fabric: true}
	want := CUDA{
		Version: "13.0", Devices: []Device{d, d, d},
		Peers: [][]bool{{true, false, false}, {false, true, false}, {false, false, true}},
	}
	if diff := cmp.Diff(want, describe(driver, nil)); diff != "" {
		t.Error(diff)
	}
	if n := m.Calls("cuDevicePrimaryCtxRetain"); n != 0 {
		t.Errorf("%d contexts", n)
	}
	m.Fail("cuDeviceGetName", 1, cuda.ErrNotPermitted)
	if c := describe(driver, nil); !strings.Contains(c.Err, "GPU 1") || len(c.Devices) != 3 {
		t.Errorf("%+v", c)
	}
	if c := describe(nil, fmt.Errorf("%w: no driver", cuda.ErrUnsupported)); !c.Missing || c.Err == "" {
		t.Errorf("%+v", c)
	}
	if c := describe(nil, cuda.ErrNoDevice); c.Missing || c.Err == "" {
		t.Errorf("%+v", c)
	}
}

func TestCaches(t *testing.T) {
	full, open, absent := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "nosuch")
	compiler := func() (kernel.Compiler, error) { return plain{}, nil }
	specs := []kernel.Spec{{Name: "a", Source: "a", Arch: "sm_90a"}, {Name: "b", Source: "b", Arch: "sm_90a"}}
	fill := kernel.New(kernel.Options{Dir: t.TempDir(), ReadOnly: []string{}, Compiler: compiler})
	for _, dir := range []string{full, open} {
		if err := fill.Fill(t.Context(), dir, specs); err != nil {
			t.Fatal(err)
		}
	}
	refused := filepath.Join(full, specs[0].Key().String()+".cubin")
	if err := errors.Join(os.Chmod(refused, 0o666), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEFT_CACHE", full+":"+open)
	t.Setenv("WEFT_CACHE_DIR", absent)
	s := machine()
	s.Caches = caches
	m := Collect(s)
	if len(m.Caches) != 3 || m.Caches[0].Kernels != 1 || len(m.Caches[0].Refused) != 1 ||
		m.Caches[0].Refused[0].Path != refused ||
		m.Caches[1].Err == "" || !m.Caches[2].Absent || !m.Caches[2].Written {
		t.Fatalf("%+v", m.Caches)
	}
	var lines []Finding
	for _, f := range Findings(m) {
		if f.Name == "kernel cache" {
			lines = append(lines, f)
		}
	}
	wanted := []Finding{
		{Meaning: "1 more are refused", Grade: Note},
		{Meaning: "not used: ", Grade: Bad},
		{Meaning: "made when", Grade: Note},
	}
	for i, want := range wanted {
		if !strings.Contains(lines[i].Meaning, want.Meaning) || lines[i].Grade != want.Grade {
			t.Errorf("%+v, want %+v", lines[i], want)
		}
	}
}

// A plain compiler gives images that nobody loads.
type plain struct{}

func (plain) Compile(context.Context, kernel.Spec) (kernel.Code, error) {
	return kernel.Code{Image: []byte("image")}, nil
}
func (plain) Version() string { return "none" }

func TestCompilerIsSaid(t *testing.T) {
	s := machine("usr/lib/libnvrtc.so.13", "")
	s.Compiler = func() Compiler { return Compiler{Path: "/x/libnvrtc.so.13", Version: "13.0"} }
	if f := find(t, Collect(s), "NVRTC"); f.Grade != Good || f.Value != "13.0 in /x/libnvrtc.so.13" {
		t.Errorf("%+v", f)
	}
	s.Compiler = func() Compiler { return Compiler{Err: "it is broken"} }
	if f := find(t, Collect(s), "NVRTC"); f.Grade != Bad || f.Meaning != "it is broken" {
		t.Errorf("%+v", f)
	}
	if f := find(t, Collect(machine()), "NVRTC"); f.Grade != Note ||
		!strings.Contains(f.Meaning, "pip install nvidia-cuda-nvrtc") {
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
	v := Judge(m, Findings(m), NeedHost)
	if err := Table(&table, Findings(m), v, false); err != nil {
		t.Fatal(err)
	}
	text, found := table.String(), 0
	for line := range strings.Lines(text) {
		if len(line) > lineWidth+1 {
			t.Errorf("%d columns: %s", len(line), line)
		}
		if strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "-- ") {
			found++
		}
	}
	if found != len(Findings(m)) || strings.Contains(text, "\x1b") ||
		!strings.HasSuffix(text, "\n\nready on the host; no GPU\n") {
		t.Errorf("%d findings\n%s", found, text)
	}
	if err := JSON(&object, m, v); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Machine
		Verdict
	}
	if err := json.Unmarshal([]byte(object.String()), &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, back.Machine) + cmp.Diff(v, back.Verdict); d != "" {
		t.Error(d)
	}
}

func TestVerdict(t *testing.T) {
	gpu := Device{Name: "A", Arch: "sm_90a", SMs: 132, Memory: 1 << 30, VMM: true, FD: true}
	nvrtc := Compiler{Path: "/x/libnvrtc.so.13", Version: "13.0"}
	with := func(devices []Device, c Compiler, launch error) Machine {
		s := machine("usr/lib/libcuda.so.1", "")
		s.CUDA = func() CUDA { return CUDA{Version: "13.0", Devices: devices, Peers: [][]bool{{true}}} }
		s.Compiler = func() Compiler { return c }
		if launch != nil {
			s.Launch = func() (string, error) { return "", launch }
		}
		return Collect(s)
	}
	cached := with([]Device{gpu}, Compiler{}, nil)
	cached.Caches = []Cache{{Dir: "d", Kernels: 180}}
	for _, tc := range []struct {
		m          Machine
		need       Need
		ready, gpu bool
		text       string
	}{
		{Collect(machine()), NeedHost, true, false, "ready on the host; no GPU"},
		{Collect(machine()), NeedGPU, false, false, "not ready: ranks cannot work on GPUs here, which is required"},
		{with([]Device{gpu}, nvrtc, nil), NeedGPU, true, true, "ready on the host and 1 GPU"},
		{with([]Device{gpu, gpu}, nvrtc, nil), NeedHost, true, true, "ready on the host and 2 GPUs"},
		{
			with([]Device{gpu}, Compiler{}, nil), NeedHost, true, false,
			"ready on the host; GPUs lack kernels, and NVRTC to compile them",
		},
		{cached, NeedGPU, true, true, "ready on the host and 1 GPU"},
		{
			with(nil, nvrtc, errors.New("RANK is not a number")), NeedHost, false, false,
			"not ready: launch: RANK is not a number - Join will fail with this",
		},
	} {
		v := Judge(tc.m, Findings(tc.m), tc.need)
		if v.Ready != tc.ready || v.GPU != tc.gpu || v.Text != tc.text || v.Ready != (len(v.Problems) == 0) {
			t.Errorf("%+v, want %+v", v, tc.text)
		}
	}
}
