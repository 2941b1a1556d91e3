//go:build !linux

package channel

import (
	"runtime"
	"sync/atomic"
	"time"
)

func wake(*atomic.Uint64) {}

func sleep(_ *atomic.Uint64, _ uint32, d time.Duration) { time.Sleep(min(d, 50*time.Microsecond)) }

func yieldThread() { runtime.Gosched() }
