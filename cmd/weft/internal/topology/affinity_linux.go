package topology

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Allowed lists the CPUs that the calling thread may run on, ascending.
func Allowed() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var cpus []int
	for c := 0; c < len(set)*64; c++ {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}

// Pin restricts the calling thread, and every process it starts from now on, to
// cpus. The caller holds the thread with runtime.LockOSThread.
func Pin(cpus []int) error {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("sched_setaffinity %s: %w", FormatList(cpus), err)
	}
	return nil
}
