package topology

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Node is one NUMA node.
type Node struct {
	ID     int    `json:"id"`
	CPUs   string `json:"cpus"`         // kernel list format
	Memory uint64 `json:"memory_bytes"` // total, in bytes
}

// Online lists the CPUs that the machine has switched on. root is the root of a
// file system that holds sys/, normally os.DirFS("/").
func Online(root fs.FS) ([]int, error) {
	text, err := fs.ReadFile(root, "sys/devices/system/cpu/online")
	if err != nil {
		return nil, fmt.Errorf("online CPUs: %w", err)
	}
	return ParseList(string(text))
}

// Nodes lists the NUMA nodes, or none where the kernel does not say.
func Nodes(root fs.FS) []Node {
	dirs, _ := fs.Glob(root, "sys/devices/system/node/node[0-9]*")
	var nodes []Node
	for _, dir := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(path.Base(dir), "node"))
		if err != nil {
			continue
		}
		n := Node{ID: id, CPUs: readLine(root, dir+"/cpulist")}
		meminfo, _ := fs.ReadFile(root, dir+"/meminfo")
		for line := range strings.Lines(string(meminfo)) {
			// "Node 0 MemTotal:       24689668 kB"
			f := strings.Fields(line)
			if len(f) >= 4 && f[2] == "MemTotal:" {
				kb, _ := strconv.ParseUint(f[3], 10, 64)
				n.Memory = kb << 10
			}
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return nodes
}

// position is where a CPU sits; CPUs that compare close share caches.
type position struct{ node, pkg, core, cpu int }

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.node, q.node), cmp.Compare(p.pkg, q.pkg), cmp.Compare(p.core, q.core),
		cmp.Compare(p.cpu, q.cpu))
}

func positions(root fs.FS, cpus []int) []position {
	nodeOf := map[int]int{}
	for _, n := range Nodes(root) {
		list, _ := ParseList(n.CPUs)
		for _, c := range list {
			nodeOf[c] = n.ID
		}
	}
	out := make([]position, len(cpus))
	for i, c := range cpus {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", c)
		out[i] = position{
			node: nodeOf[c],
			pkg:  readInt(root, dir+"physical_package_id", 0),
			core: readInt(root, dir+"core_id", c),
			cpu:  c,
		}
	}
	return out
}

// Cores counts the physical cores among cpus: two hardware threads of one core
// count once.
func Cores(root fs.FS, cpus []int) int {
	type core struct{ pkg, core int }
	seen := map[core]bool{}
	for _, p := range positions(root, cpus) {
		seen[core{p.pkg, p.core}] = true
	}
	return len(seen)
}

// Slices cuts cpus into n parts whose sizes differ by at most one, keeping
// hardware threads of a core, then cores of a socket, then sockets of a NUMA node
// together. It needs 1 <= n <= len(cpus); each part is ascending.
func Slices(root fs.FS, cpus []int, n int) ([][]int, error) {
	if n < 1 || n > len(cpus) {
		return nil, fmt.Errorf("cannot cut %d CPUs into %d slices", len(cpus), n)
	}
	order := positions(root, cpus)
	slices.SortFunc(order, position.compare)
	parts := make([][]int, n)
	for i := range parts {
		for _, p := range order[i*len(order)/n : (i+1)*len(order)/n] {
			parts[i] = append(parts[i], p.cpu)
		}
		slices.Sort(parts[i])
	}
	return parts, nil
}

func readLine(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func readInt(root fs.FS, name string, missing int) int {
	v, err := strconv.Atoi(readLine(root, name))
	if err != nil {
		return missing
	}
	return v
}
