package topology

import (
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func files(kv ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = &fstest.MapFile{Data: []byte(kv[i+1])}
	}
	return m
}

func TestListRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := rapid.SliceOfDistinct(rapid.IntRange(0, 300), rapid.ID[int]).Draw(t, "cpus")
		slices.Sort(set)
		got, err := ParseList(FormatList(set))
		if err != nil || !slices.Equal(got, set) {
			t.Fatalf("%v -> %q -> %v, %v", set, FormatList(set), got, err)
		}
	})
	for _, bad := range []string{"a", "3-1", "-1", "1,,2", "0-99999999", "1-"} {
		if got, err := ParseList(bad); err == nil {
			t.Errorf("ParseList(%q) = %v, want an error", bad, got)
		}
	}
}

func FuzzParseList(f *testing.F) {
	f.Add("0-3,8")
	f.Add("1-,")
	f.Fuzz(func(t *testing.T, s string) {
		if cpus, err := ParseList(s); err == nil && slices.IsSorted(cpus) {
			again, err := ParseList(FormatList(slices.Compact(cpus)))
			if err != nil || !slices.Equal(again, slices.Compact(cpus)) {
				t.Fatalf("%q -> %v -> %v (%v)", s, cpus, again, err)
			}
		}
	})
}

func TestSlicesKeepNeighboursTogether(t *testing.T) {
	// Two cores of two threads; the kernel numbers siblings far apart.
	root := files(
		"sys/devices/system/cpu/cpu0/topology/core_id", "0", "sys/devices/system/cpu/cpu2/topology/core_id", "0",
		"sys/devices/system/cpu/cpu1/topology/core_id", "1", "sys/devices/system/cpu/cpu3/topology/core_id", "1",
	)
	cpus := []int{0, 1, 2, 3}
	got, err := Slices(root, cpus, 2)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([][]int{{0, 2}, {1, 3}}, got); d != "" {
		t.Error(d)
	}
	if n := Cores(root, cpus); n != 2 {
		t.Errorf("%d cores, want 2", n)
	}
}

func TestSlicesCoverEvenly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpus := make([]int, rapid.IntRange(1, 64).Draw(t, "cpus"))
		for i := range cpus {
			cpus[i] = i
		}
		n := rapid.IntRange(1, len(cpus)).Draw(t, "n")
		parts, err := Slices(fstest.MapFS{}, cpus, n)
		if err != nil {
			t.Fatal(err)
		}
		var all []int
		for _, p := range parts {
			if len(p) < len(cpus)/n || len(p) > len(cpus)/n+1 {
				t.Fatalf("slice of %d CPUs out of %d/%d", len(p), len(cpus), n)
			}
			all = append(all, p...)
		}
		if !slices.Equal(all, cpus) {
			t.Fatalf("slices cover %v", all)
		}
	})
	if _, err := Slices(fstest.MapFS{}, []int{0}, 2); err == nil {
		t.Error("two slices of one CPU must be refused")
	}
}

func TestNodes(t *testing.T) {
	root := files(
		"sys/devices/system/node/node0/cpulist", "0-3\n",
		"sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       1024 kB\nNode 0 MemFree:        10 kB\n",
		"sys/devices/system/node/node10/cpulist", "4-7\n",
		"sys/devices/system/node/node2/cpulist", "\n",
	)
	want := []Node{{ID: 0, CPUs: "0-3", Memory: 1 << 20}, {ID: 2}, {ID: 10, CPUs: "4-7"}}
	if d := cmp.Diff(want, Nodes(root)); d != "" {
		t.Error(d)
	}
}

func TestCgroupLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		root fstest.MapFS
		want Limits
	}{
		"v2, parent is tighter": {files(
			"proc/self/cgroup", "0::/a/b\n",
			"sys/fs/cgroup/a/b/cpu.max", "400000 100000\n", "sys/fs/cgroup/a/b/memory.max", "max\n",
			"sys/fs/cgroup/a/cpu.max", "150000 100000\n", "sys/fs/cgroup/a/memory.max", "1073741824\n",
		), Limits{CPUs: 1.5, Memory: 1 << 30}},
		"v2, unlimited": {files("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "max 100000\n"), Limits{}},
		"v1": {files(
			"proc/self/cgroup", "3:cpu,cpuacct:/x\n4:memory:/x\n",
			"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n",
		), Limits{CPUs: 0.5}},
		"none": {fstest.MapFS{}, Limits{}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tc.want, CgroupLimits(tc.root)); d != "" {
				t.Error(d)
			}
		})
	}
}
