package bootstrap

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxHosts bounds what a list may expand to: each host has a rank at least.
const maxHosts = MaxSize

// expandHostlist expands Slurm's notation for lists of hosts: "node[01-03,7],gpu2" is node01,
// node02, node03, node7, gpu2. A name may contain several brackets.
func expandHostlist(list string) ([]string, error) {
	var hosts []string
	for len(list) > 0 {
		item, rest, err := cutItem(list)
		if err != nil {
			return nil, err
		}
		names, err := expandHost(item, maxHosts-len(hosts))
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, names...)
		list = rest
	}
	return hosts, nil
}

// cutItem cuts list at its first comma outside brackets.
func cutItem(list string) (item, rest string, err error) {
	inside := false
	for i, c := range list {
		switch {
		case c == '[' && !inside:
			inside = true
		case c == ']' && inside:
			inside = false
		case c == '[' || c == ']':
			return "", "", fmt.Errorf("unbalanced bracket in %q", list)
		case c == ',' && !inside:
			if i == 0 || i == len(list)-1 {
				return "", "", fmt.Errorf("empty name in %q", list)
			}
			return list[:i], list[i+1:], nil
		}
	}
	if inside {
		return "", "", fmt.Errorf("unbalanced bracket in %q", list)
	}
	return list, "", nil
}

// expandHost expands the brackets of one item, the last one fastest, to at most limit names.
func expandHost(item string, limit int) ([]string, error) {
	names := []string{""}
	for item != "" {
		before, after, bracket := strings.Cut(item, "[")
		numbers := []string{""}
		item = ""
		if bracket {
			var ranges string
			ranges, item, _ = strings.Cut(after, "]")
			var err error
			if numbers, err = expandRanges(ranges, limit); err != nil {
				return nil, err
			}
		}
		if len(names)*len(numbers) > limit {
			return nil, fmt.Errorf("more than %d hosts", maxHosts)
		}
		next := make([]string, 0, len(names)*len(numbers))
		for _, name := range names {
			for _, n := range numbers {
				next = append(next, name+before+n)
			}
		}
		names = next
	}
	if names[0] == "" {
		return nil, errors.New("empty name")
	}
	return names, nil
}

// expandRanges expands "01-03,7" to 01, 02, 03, 7. The width of the first number of a range is
// kept.
func expandRanges(ranges string, limit int) ([]string, error) {
	var numbers []string
	for part := range strings.SplitSeq(ranges, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 32)
		to, err2 := strconv.ParseUint(last, 10, 32)
		if err1 != nil || err2 != nil || from > to {
			return nil, fmt.Errorf("%q is no range of numbers", part)
		}
		if to-from >= uint64(limit-len(numbers)) {
			return nil, fmt.Errorf("more than %d hosts", maxHosts)
		}
		for n := from; n <= to; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(first), n))
		}
	}
	return numbers, nil
}

// expandCounts expands Slurm's notation for counts by node: "2(x3),1" is 2, 2, 2, 1.
func expandCounts(list string) ([]int, error) {
	var counts []int
	for part := range strings.SplitSeq(list, ",") {
		times := uint64(1)
		count, repeat, repeated := strings.Cut(part, "(x")
		n, err := strconv.ParseUint(count, 10, 31)
		if err == nil && repeated {
			inner, ok := strings.CutSuffix(repeat, ")")
			if times, err = strconv.ParseUint(inner, 10, 31); !ok {
				err = strconv.ErrSyntax
			}
		}
		if err != nil || times > uint64(maxHosts-len(counts)) {
			return nil, fmt.Errorf("%q is no count of tasks", part)
		}
		for range times {
			counts = append(counts, int(n))
		}
	}
	return counts, nil
}
