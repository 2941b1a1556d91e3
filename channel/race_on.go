//go:build race

package channel

import (
	"runtime"
	"unsafe"
)

// The race detector takes no notice of atomic operations on memory that is not Go's, as shared
// memory is. Counters report their ordering to the race detector, so that it does not accuse
// goroutine ranks that pass ordinary memory to each other. Words that fall on the same stand-in are
// taken for one, which can hide a race and never invents one.
var standIns [4096]byte

func standIn(p unsafe.Pointer) unsafe.Pointer {
	return unsafe.Pointer(&standIns[uintptr(p)/8*0x9E3779B1>>7%uintptr(len(standIns))])
}

func release(p unsafe.Pointer) { runtime.RaceReleaseMerge(standIn(p)) }
func acquire(p unsafe.Pointer) { runtime.RaceAcquire(standIn(p)) }
