package channel

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAffinity_bound binds this process's first thread to one processor after the other.
func TestAffinity_bound(t *testing.T) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetaffinity(os.Getpid(), &before); err != nil {
			t.Error(err)
		}
	})
	all := Affinity()
	if got, want := all.Count(), before.Count(); got != want {
		t.Errorf("%d processors, want %d", got, want)
	}
	for c := range 1024 {
		if !before.IsSet(c) {
			continue
		}
		var one unix.CPUSet
		one.Set(c)
		if err := unix.SchedSetaffinity(os.Getpid(), &one); err != nil {
			t.Fatal(err)
		}
		if got := Affinity(); got != set(c) {
			t.Errorf("bound to processor %d: %x", c, got)
		}
	}
}
