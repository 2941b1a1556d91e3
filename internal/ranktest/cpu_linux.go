package ranktest

import (
	"syscall"
	"time"
)

// CPUTime is what this process has had of processors. Benchmarks tell of it beside the time: other work on the machine
// does not count.
func CPUTime() time.Duration {
	var use syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &use) != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
