//go:build !linux

package channel

import "runtime"

// Affinity is the set of processors that this process may run on.
func Affinity() CPUs { return firstCPUs(runtime.NumCPU()) }
