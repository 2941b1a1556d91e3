package channel

import (
	"sync/atomic"
	"unsafe"
)

// A slot is memory of packets that is written once for each of growing flags, by whoever has it then: twice as long
// as the data, whose length is a multiple of 4, and aligned to 8 bytes. Its words are those of [Packets], 4 bytes of
// data below a flag, and one store each: so a reader needs nothing else to know what has arrived. No flag is 0,
// which is what fresh memory holds.

func slotWord(slot []byte, i int) *uint64 { return (*uint64)(unsafe.Pointer(&slot[8*i])) }

// PutSlot writes data as packets.
func PutSlot(slot, data []byte, flag uint32) {
	words := len(data) / 4
	if words == 0 {
		return
	}
	_ = slot[8*words-1]
	high := uint64(flag) << 32
	from := unsafe.Pointer(unsafe.SliceData(data))
	for i := range words {
		storeWord(slotWord(slot, i), high|uint64(*(*uint32)(unsafe.Add(from, 4*i))))
	}
}

// TakeSlot writes the data of a slot, of which the packets may not have arrived, and returns how many bytes had,
// from the first on.
func TakeSlot(data, slot []byte, flag uint32) (n int) {
	words := len(data) / 4
	if words == 0 {
		return 0
	}
	_ = slot[8*words-1]
	to := unsafe.Pointer(unsafe.SliceData(data))
	for i := range words {
		v, here := loadWord(slot, i, flag)
		if !here {
			return 4 * i
		}
		*(*uint32)(unsafe.Add(to, 4*i)) = v
	}
	return 4 * words
}

// ForwardSlot writes the packets of a slot to others of the same length, as they are there, and returns how many bytes
// of data they were.
func ForwardSlot(to [][]byte, slot []byte, flag uint32) (n int) {
	words := len(slot) / 8
	for i := range words {
		v, here := loadWord(slot, i, flag)
		if !here {
			return 4 * i
		}
		for _, t := range to {
			storeWord(slotWord(t, i), uint64(flag)<<32|uint64(v))
		}
	}
	return 4 * words
}

// CopySlot writes what a slot has, packets or not, to another one of the same length.
func CopySlot(to, slot []byte) {
	for i := range len(slot) / 8 {
		w := (*atomic.Uint64)(unsafe.Pointer(slotWord(slot, i)))
		storeWord(slotWord(to, i), w.Load())
	}
}

// InSlot says whether the packet with the data at an offset, a multiple of 4, has arrived.
func InSlot(slot []byte, at int, flag uint32) bool {
	_, here := loadWord(slot, at/4, flag)
	return here
}

func loadWord(slot []byte, i int, flag uint32) (v uint32, here bool) {
	w := (*atomic.Uint64)(unsafe.Pointer(slotWord(slot, i)))
	x := w.Load()
	if uint32(x>>32) != flag {
		return 0, false
	}
	acquire(unsafe.Pointer(w))
	return uint32(x), true
}
