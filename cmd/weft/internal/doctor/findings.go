package doctor

import (
	"fmt"
	"strings"
)

// Grade says how much a finding matters.
type Grade int

// The grades.
const (
	Good Grade = iota // as it should be
	Note              // works; could be better, or is not there and not needed
	Bad               // something will not work
)

// Finding is one line: the subject, the finding, and its meaning for Weft.
type Finding struct {
	Name, Value, Meaning string
	Grade                Grade
}

// Findings explains a machine.
func Findings(m Machine) []Finding {
	var out []Finding
	add := func(g Grade, name, value, meaning string) {
		out = append(out, Finding{name, value, meaning, g})
	}
	add(Good, "weft", m.Weft, "built with "+m.Go)
	add(Good, "system", strings.Trim(m.OS+", ", ", "), fmt.Sprintf("Linux %s on %s", m.Kernel, m.Arch))
	out = append(out, cpuFinding(m.CPU), numaFinding(m), memoryFinding(m.Memory))
	switch {
	case strings.HasPrefix(m.Pages, "2 MiB"):
		add(Good, "pages", m.Pages, "the first touch of a window's memory is fast")
	case m.Pages == "":
		add(Note, "pages", "unknown", "windows use the system's default")
	default:
		size, why, _ := strings.Cut(m.Pages, ": ")
		meaning := "windows work, and the first touch of their memory is slower"
		if why != "" {
			meaning += " (" + why + ")"
		}
		add(Note, "pages", size, meaning)
	}
	switch m.SIMD {
	case "avx512", "avx2":
		add(Good, "SIMD", m.SIMD, "host arithmetic uses it")
	default:
		add(Note, "SIMD", m.SIMD, "host arithmetic is portable code: the same results, more slowly")
	}
	out = append(out, limitFindings(m.Limits)...)
	out = append(out, gpuFindings(m)...)
	switch {
	case m.LaunchErr != "":
		add(Bad, "launch", m.LaunchErr, "Join will fail with this")
	default:
		add(Good, "launch", m.Launch, "Join would use this environment")
	}
	if len(m.Unread) > 0 {
		out = append(out, variablesFinding(m.Unread))
	}
	return out
}

func cpuFinding(c CPU) Finding {
	f := Finding{Name: "CPUs", Value: fmt.Sprintf("%d of %d usable (%s)", c.Usable, c.Online, c.Allowed)}
	if c.Cores > 0 && c.Cores != c.Usable {
		f.Value += fmt.Sprintf(", %d cores", c.Cores)
	}
	if c.Model != "" {
		f.Value += ", " + c.Model
	}
	switch {
	case c.Usable == 0:
		f.Value, f.Meaning, f.Grade = "unknown", "the affinity mask cannot be read", Bad
	case c.Quota > 0 && c.Quota < float64(c.Usable):
		f.Value += fmt.Sprintf(", cgroup quota %.3g", c.Quota)
		f.Meaning, f.Grade = "the quota throttles ranks that wait actively; raise it, or narrow the mask to it", Note
	default:
		f.Meaning = fmt.Sprintf("up to %s have one each; with more, waiting is slower", count(c.Usable, "rank"))
	}
	return f
}

func numaFinding(m Machine) Finding {
	f := Finding{Name: "NUMA", Value: "1 node", Meaning: "all memory is equally near"}
	if n := len(m.NUMA); n > 1 {
		var cpus []string
		for _, node := range m.NUMA {
			cpus = append(cpus, fmt.Sprintf("%d: %s", node.ID, node.CPUs))
		}
		f.Value, f.Meaning = fmt.Sprintf("%d nodes (%s)", n,
			strings.Join(cpus, "; ")), "weft run pins neighbouring ranks to one node"
	}
	return f
}

func memoryFinding(m Memory) Finding {
	f := Finding{
		Name: "memory", Value: fmt.Sprintf("%s, %s available", gib(m.Total), gib(m.Available)),
		Meaning: "windows come out of this",
	}
	room := m.Available
	if m.Limit > 0 && m.Limit < m.Total {
		f.Value += fmt.Sprintf(", cgroup limit %s", gib(m.Limit))
		f.Meaning = "windows of all ranks count against the limit"
		room = min(room, m.Limit)
	}
	if room < 1<<30 {
		f.Grade, f.Meaning = Note, "tight: large windows may be refused"
	}
	return f
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func gib(n uint64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

func limitFindings(l Limits) []Finding {
	locked := Finding{Name: "locked memory", Value: "unlimited", Meaning: "RDMA can register windows"}
	if l.LockedMemory >= 0 {
		locked.Value = fmt.Sprintf("%d KiB", l.LockedMemory>>10)
		locked.Meaning = "host windows need none; RDMA needs ulimit -l unlimited"
		locked.Grade = Note
	}
	files := Finding{Name: "open files", Value: fmt.Sprint(l.OpenFiles), Meaning: "enough"}
	switch {
	case l.OpenFiles < 0:
		files.Value = "unlimited"
	case l.OpenFiles < 1024 && l.OpenFilesMax >= 0 && l.OpenFilesMax < 1024:
		files.Grade, files.Meaning = Note, "too few for many ranks in one process; raise ulimit -n"
	case l.OpenFiles < 1024:
		files.Meaning = "raised by the process itself when needed"
	}
	return []Finding{locked, files}
}

func gpuNames(g GPU) string {
	if len(g.Names) == 0 {
		return fmt.Sprintf("%d", g.gpuNodes())
	}
	counts := map[string]int{}
	var order []string
	for _, n := range g.Names {
		if counts[n]++; counts[n] == 1 {
			order = append(order, n)
		}
	}
	var parts []string
	for _, n := range order {
		parts = append(parts, fmt.Sprintf("%d x %s", counts[n], n))
	}
	return strings.Join(parts, ", ")
}
