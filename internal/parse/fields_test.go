package parse

import (
	"bytes"
	"testing"
)

func TestFields(t *testing.T) {
	b := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	f := Fields{Rest: b}
	if a, c, d, e := f.U8(), f.U16(), f.U32(), f.U64(); a != 1 || c != 0x0302 || d != 0x07060504 ||
		e != 0x0F0E0D0C0B0A0908 || f.Bad {
		t.Errorf("%#x %#x %#x %#x, bad %t", a, c, d, e, f.Bad)
	}
	if v := f.Take(1); !bytes.Equal(v, b[15:]) || cap(v) != 1 || f.Bad {
		t.Errorf("%v of capacity %d, bad %t", v, cap(v), f.Bad)
	}
	if v := f.Take(0); v == nil || f.Bad {
		t.Errorf("nothing of nothing: %v, bad %t", v, f.Bad)
	}
	for _, n := range []int{-1, 1, 3} {
		f := Fields{}
		if v := f.Take(n); v != nil || !f.Bad {
			t.Errorf("%d bytes of none: %v, bad %t", n, v, f.Bad)
		}
	}
	f = Fields{Rest: b}
	if f.Take(17); f.U8() != 0 || f.U64() != 0 || !f.Bad {
		t.Error("what is bad goes on")
	}
}
