package channel

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Affinity is the set of processors that this process may run on.
func Affinity() CPUs {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &set); err != nil {
		return firstCPUs(runtime.NumCPU())
	}
	var s CPUs
	for i := range 64 * len(s) {
		if set.IsSet(i) {
			s[i/64] |= 1 << uint(i%64)
		}
	}
	return s
}
