package topology

import (
	"fmt"
	"strconv"
	"strings"
)

// maxCPU bounds the CPU numbers that a list may name; the kernel's own limit is 8192.
const maxCPU = 1 << 16

// ParseList reads the kernel's CPU list format, "0-3,8,10-11". An empty string
// is an empty list.
func ParseList(s string) ([]int, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	var cpus []int
	for part := range strings.SplitSeq(s, ",") {
		first, last, ranged := strings.Cut(part, "-")
		lo, err := strconv.Atoi(first)
		if err != nil {
			return nil, fmt.Errorf("cpu list %q: %w", s, err)
		}
		hi := lo
		if ranged {
			if hi, err = strconv.Atoi(last); err != nil {
				return nil, fmt.Errorf("cpu list %q: %w", s, err)
			}
		}
		if lo < 0 || hi < lo || hi >= maxCPU {
			return nil, fmt.Errorf("cpu list %q: bad range %q", s, part)
		}
		for c := lo; c <= hi; c++ {
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}

// FormatList is the inverse of ParseList for an ascending list.
func FormatList(cpus []int) string {
	var b strings.Builder
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(cpus[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(cpus[j]))
		}
		i = j + 1
	}
	return b.String()
}
