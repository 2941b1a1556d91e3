package doctor

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/weftgo/weft/cmd/weft/internal/topology"
	"github.com/weftgo/weft/fabric/ibgda"
)

// Machine holds the collected facts. It is the object that --json prints; keys are stable.
type Machine struct {
	Weft      string            `json:"weft"` // version
	Go        string            `json:"go"`
	OS        string            `json:"os"`
	Kernel    string            `json:"kernel"`
	Arch      string            `json:"arch"`
	CPU       CPU               `json:"cpu"`
	NUMA      []topology.Node   `json:"numa"`
	Memory    Memory            `json:"memory"`
	Pages     string            `json:"pages"` // which kind windows get, and why
	SIMD      string            `json:"simd"`
	Limits    Limits            `json:"limits"`
	GPU       GPU               `json:"gpu"`
	NICs      []NIC             `json:"nics"`
	Fabric    Fabric            `json:"fabric"`
	Push      Push              `json:"push"`
	Libraries map[string]string `json:"libraries"` // soname to path; empty is not found
	CUDA      CUDA              `json:"cuda"`
	Compiler  Compiler          `json:"compiler"`
	Caches    []Cache           `json:"kernel_caches"`
	Torch     string            `json:"torch"`  // version, empty is not found
	Launch    string            `json:"launch"` // which environment won
	LaunchErr string            `json:"launch_error,omitempty"`
	Unread    []string          `json:"unread_variables,omitempty"` // WEFT_ variables that nothing reads
}

// CPU counts processors.
type CPU struct {
	Model   string  `json:"model"`
	Online  int     `json:"online"`          // of the machine
	Allowed string  `json:"allowed"`         // to this process, kernel list format
	Usable  int     `json:"usable"`          // how many those are
	Cores   int     `json:"cores"`           // physical ones among them
	Quota   float64 `json:"quota,omitempty"` // cgroup: CPU-seconds per second; 0 is none
}

// Memory is in bytes.
type Memory struct {
	Total     uint64 `json:"total_bytes"`
	Available uint64 `json:"available_bytes"`
	Limit     uint64 `json:"limit_bytes,omitempty"` // cgroup; 0 is none
}

// Limits are this process's soft limits; -1 is unlimited.
type Limits struct {
	LockedMemory int64 `json:"locked_memory_bytes"`
	OpenFiles    int64 `json:"open_files"`
	OpenFilesMax int64 `json:"open_files_max"` // to which a process may raise the limit itself
}

// GPU holds the content of the files of NVIDIA's driver.
type GPU struct {
	Names   []string `json:"names"`   // one for each GPU that the driver knows
	Devices []string `json:"devices"` // nodes in /dev that this process sees
	Driver  string   `json:"driver"`  // version; empty is no driver
}

// Sources is where findings come from.
type Sources struct {
	Root   fs.FS // "/"
	Getenv func(string) string
	Weft   string
	Go     string
	Arch   string
	SIMD   string
	Pages  func() string
	Launch func() (string, error)
	// Allowed lists the CPUs of this process; Limits and Kernel ask the kernel.
	Allowed func() ([]int, error)
	Limits  func() Limits
	Kernel  func() string
	// Environ is the environment, as pairs of a name and a value with "=" between.
	Environ []string
	// CUDA asks the driver, if there is one; Compiler looks for NVRTC; Caches reads the directories
	// of compiled kernels.
	CUDA     func() CUDA
	Compiler func() Compiler
	Caches   func() []Cache
	// Fabric opens libfabric, if there is one.
	Fabric func() Fabric
	// Cards asks libibverbs what it knows of network cards, if there is a card.
	Cards func() ([]ibgda.Found, error)
	// Own are the environments of Python that the command itself is installed in.
	Own []string
	// Python is the interpreter whose site-packages are searched; empty is none.
	Python string
}

// Collect looks at the machine. A fact that cannot be read is left empty.
func Collect(s Sources) Machine {
	m := Machine{
		Weft: s.Weft, Go: s.Go, Arch: s.Arch, SIMD: s.SIMD,
		OS: osName(s.Root), Kernel: s.Kernel(), Pages: s.Pages(), Limits: s.Limits(),
		NUMA: topology.Nodes(s.Root), GPU: gpus(s.Root), CUDA: s.CUDA(), Compiler: s.Compiler(), Caches: s.Caches(),
		NICs: nics(s.Root), Fabric: s.Fabric(), Libraries: map[string]string{},
	}
	askCards(m.NICs, s.Cards)
	cgroup := topology.CgroupLimits(s.Root)
	online, _ := topology.Online(s.Root)
	m.CPU = CPU{Model: cpuModel(s.Root), Online: len(online), Quota: cgroup.CPUs}
	if allowed, err := s.Allowed(); err == nil {
		m.CPU.Allowed, m.CPU.Usable = topology.FormatList(allowed), len(allowed)
		m.CPU.Cores = topology.Cores(s.Root, allowed)
	}
	m.Memory = memory(s.Root)
	m.Memory.Limit = cgroup.Memory
	dirs := libraryDirs(s)
	for _, name := range Libraries {
		m.Libraries[name] = findLibrary(s.Root, dirs, name)
	}
	m.Libraries[libfabric] = libfabricFile(s, m.Fabric, m.Libraries[libfabric])
	m.Push = push(s.Getenv)
	m.Torch = torchVersion(s)
	launch, err := s.Launch()
	m.Launch = launch
	if err != nil {
		m.LaunchErr = err.Error()
	}
	m.Unread = unread(s.Environ)
	return m
}

func readFile(root fs.FS, name string) string {
	b, _ := fs.ReadFile(root, name)
	return string(b)
}

// field returns the value of the first line "key<sep>value".
func field(text, key, sep string) string {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, sep); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func osName(root fs.FS) string {
	return strings.Trim(field(readFile(root, "etc/os-release"), "PRETTY_NAME", "="), `"`)
}

func cpuModel(root fs.FS) string {
	return field(readFile(root, "proc/cpuinfo"), "model name", ":")
}

func memory(root fs.FS) Memory {
	info := readFile(root, "proc/meminfo")
	bytes := func(key string) uint64 {
		kb, _, _ := strings.Cut(field(info, key, ":"), " ")
		v, _ := strconv.ParseUint(kb, 10, 64)
		return v << 10
	}
	return Memory{Total: bytes("MemTotal"), Available: bytes("MemAvailable")}
}

func gpus(root fs.FS) GPU {
	g := GPU{Names: []string{}, Devices: []string{}}
	infos, _ := fs.Glob(root, "proc/driver/nvidia/gpus/*/information")
	for _, f := range infos {
		g.Names = append(g.Names, field(readFile(root, f), "Model", ":"))
	}
	devices, _ := fs.Glob(root, "dev/nvidia*")
	for _, d := range devices {
		if name := path.Base(d); name != "nvidia-caps" && !strings.HasPrefix(name, "nvidia-caps-") {
			g.Devices = append(g.Devices, "/"+d)
		}
	}
	slices.Sort(g.Devices)
	// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul ..."
	for word := range strings.FieldsSeq(field(readFile(root, "proc/driver/nvidia/version"), "NVRM version", ":")) {
		if word[0] >= '0' && word[0] <= '9' && strings.Contains(word, ".") {
			g.Driver = word
			break
		}
	}
	return g
}

// gpuNodes counts the devices that are GPUs, /dev/nvidia0 and so on.
func (g GPU) gpuNodes() int {
	n := 0
	for _, d := range g.Devices {
		if _, err := strconv.Atoi(strings.TrimPrefix(d, "/dev/nvidia")); err == nil {
			n++
		}
	}
	return n
}
