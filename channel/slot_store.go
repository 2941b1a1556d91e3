//go:build !amd64 || race

package channel

import (
	"sync/atomic"
	"unsafe"
)

// storeWord is one store, behind those before it.
func storeWord(w *uint64, v uint64) {
	release(unsafe.Pointer(w))
	atomic.StoreUint64(w, v)
}
