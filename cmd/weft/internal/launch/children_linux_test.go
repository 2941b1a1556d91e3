package launch

import (
	"fmt"
	"testing"
)

// FuzzStat reads the line of a process whatever its name is, and does not trip over what is no such
// line.
func FuzzStat(f *testing.F) {
	for _, name := range []string{"sh", "", "a b", "x) S 1 (y", "(((", ")", "1 (z) R 2", "new\nline"} {
		f.Add(name, 7)
	}
	f.Fuzz(func(t *testing.T, name string, parent int) {
		parseStat([]byte(name)) // no line at all
		state, ppid, ok := parseStat(fmt.Appendf(nil, "12 (%s) S %d 12 12 0 -1", name, parent))
		if !ok || state != 'S' || ppid != parent {
			t.Errorf("%q: state %q, parent %d, %v; want 'S', %d", name, state, ppid, ok, parent)
		}
	})
}
