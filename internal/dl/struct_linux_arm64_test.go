package dl_test

import (
	"encoding/binary"
	"testing"
	"unsafe"
)

// TestStructByReference: where a large struct is passed by its address, memcpy's second parameter
// can be one.
func TestStructByReference(t *testing.T) {
	memcpy := lookup(t, "memcpy")
	out := make([]byte, 64)
	words := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	memcpy.CallStruct(uintptr(unsafe.Pointer(&out[0])), words, 64)
	for i, want := range words {
		if got := binary.LittleEndian.Uint64(out[8*i:]); got != want {
			t.Errorf("word %d is %d, want %d", i, got, want)
		}
	}
}
