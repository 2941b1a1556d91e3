package channel

import (
	"bytes"
	"testing"
)

func TestSlot(t *testing.T) {
	const flag, words = 7, 5
	data := make([]byte, 4*words)
	message(data, 0, 1)
	slot, other, third := make([]byte, 8*words), make([]byte, 8*words), make([]byte, 8*words)
	got := make([]byte, 4*words)
	PutSlot(slot, data[:8], flag)
	PutSlot(slot[16:], data[8:], flag-1)
	if n := TakeSlot(got, slot, flag); n != 8 || !bytes.Equal(got[:8], data[:8]) {
		t.Errorf("%d bytes have arrived, want 8", n)
	}
	if n := ForwardSlot([][]byte{other, third}, slot, flag); n != 8 {
		t.Errorf("%d bytes are forwarded, want 8", n)
	}
	if !InSlot(other, 4, flag) || InSlot(other, 8, flag) || InSlot(slot, 8, flag) {
		t.Error("packets are there that were not written, or the other way round")
	}
	PutSlot(slot[16:], data[8:], flag)
	CopySlot(third, slot)
	for _, s := range [][]byte{slot, third} {
		if n := TakeSlot(got, s, flag); n != len(data) || !bytes.Equal(got, data) {
			t.Errorf("%d bytes have arrived, want %d", n, len(data))
		}
	}
	PutSlot(nil, nil, flag)
	if TakeSlot(nil, nil, flag) != 0 || ForwardSlot(nil, nil, flag) != 0 {
		t.Error("an empty slot has packets")
	}
}
