package topology

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Limits are the limits of the cgroups around this process. Zero means no limit.
type Limits struct {
	CPUs   float64 // CPU-seconds per second
	Memory uint64  // bytes
}

// unlimited is above any real memory limit; cgroup v1 writes "no limit" as a
// number near 2^63.
const unlimited = 1 << 60

// CgroupLimits reads the tightest limits from this process's cgroup up to the
// root, in either version of the interface.
func CgroupLimits(root fs.FS) Limits {
	var l Limits
	for line := range strings.Lines(readLine(root, "proc/self/cgroup") + "\n") {
		// "0::/path" is version 2; "4:memory:/path" is version 1.
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		switch controllers := strings.Split(f[1], ","); {
		case f[0] == "0":
			walkUp("sys/fs/cgroup", f[2], func(dir string) { l.add(v2(root, dir)) })
			walkUp("sys/fs/cgroup/unified", f[2], func(dir string) { l.add(v2(root, dir)) })
		case slices.Contains(controllers, "cpu"), slices.Contains(controllers, "memory"):
			for _, c := range controllers {
				walkUp("sys/fs/cgroup/"+c, f[2], func(dir string) { l.add(v1(root, dir)) })
			}
		}
	}
	return l
}

func (l *Limits) add(m Limits) {
	if m.CPUs > 0 && (l.CPUs == 0 || m.CPUs < l.CPUs) {
		l.CPUs = m.CPUs
	}
	if m.Memory > 0 && m.Memory < unlimited && (l.Memory == 0 || m.Memory < l.Memory) {
		l.Memory = m.Memory
	}
}

func v2(root fs.FS, dir string) Limits {
	var l Limits
	if quota, period, ok := strings.Cut(readLine(root, dir+"/cpu.max"), " "); ok && quota != "max" {
		l.CPUs = ratio(quota, period)
	}
	l.Memory, _ = strconv.ParseUint(readLine(root, dir+"/memory.max"), 10, 64)
	return l
}

func v1(root fs.FS, dir string) Limits {
	var l Limits
	if quota := readLine(root, dir+"/cpu.cfs_quota_us"); quota != "" && !strings.HasPrefix(quota, "-") {
		l.CPUs = ratio(quota, readLine(root, dir+"/cpu.cfs_period_us"))
	}
	l.Memory, _ = strconv.ParseUint(readLine(root, dir+"/memory.limit_in_bytes"), 10, 64)
	return l
}

func ratio(quota, period string) float64 {
	q, err1 := strconv.ParseFloat(quota, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err1 != nil || err2 != nil || p <= 0 {
		return 0
	}
	return q / p
}

// walkUp visits mount/group and every ancestor up to mount. In a container the
// group's path may not exist below the mount; the mount itself then is the group.
func walkUp(mount, group string, visit func(dir string)) {
	for g := path.Clean("/" + group); ; g = path.Dir(g) {
		visit(strings.TrimSuffix(mount+g, "/"))
		if g == "/" {
			return
		}
	}
}
