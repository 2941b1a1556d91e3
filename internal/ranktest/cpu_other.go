//go:build !linux

package ranktest

import "time"

// CPUTime is not known here.
func CPUTime() time.Duration { return 0 }
