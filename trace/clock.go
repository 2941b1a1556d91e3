package trace

import (
	"time"
	_ "unsafe" // for linkname
)

//go:linkname nanotime runtime.nanotime
func nanotime() int64

// Now is the time of the clock "host": nanoseconds of the machine's monotonic clock, the same in all its processes.
func Now() uint64 { return uint64(nanotime()) }

// reading reads the clock "host" beside the time of day.
func reading() (own uint64, unix int64, within uint64) {
	within = ^uint64(0)
	for range 8 {
		before := Now()
		u := time.Now().UnixNano()
		if took := Now() - before; took/2+1 < within {
			own, unix, within = before+took/2, u, took/2+1
		}
	}
	return own, unix, within
}
