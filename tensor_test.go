package weft_test

import (
	"testing"
	"unsafe"

	"github.com/weftgo/weft"
)

func TestTensor(t *testing.T) {
	s := []float32{1, 2, 3, 4, 5, 6}
	x := weft.TensorOf(s, 2, 3)
	if x.String() != "fp32[2 3]" || x.Elems() != 6 || x.Bytes() != 24 || x.IsZero() || len(x.Raw()) != 24 {
		t.Errorf("%v: %d elements, %d bytes", x, x.Elems(), x.Bytes())
	}
	if got := weft.SliceOf[float32](x); &got[0] != &s[0] || len(got) != 6 {
		t.Error("the slice of a tensor is another slice")
	}
	if y := weft.TensorOf(s); y.String() != "fp32[6]" {
		t.Errorf("%v", y)
	}
	mem := make([]byte, 100)
	if y := weft.TensorAt(mem, weft.Int32, 5, 5); y.Data != unsafe.Pointer(&mem[0]) || y.Bytes() != 100 {
		t.Errorf("%v at %p", y, y.Data)
	}
	if none := (weft.Tensor{}); !none.IsZero() || none.String() != "none" {
		t.Errorf("%v", none)
	}
	if absent := weft.Absent("too large"); absent.IsZero() || absent.Absence() != "too large" ||
		absent.String() != "none (too large)" || absent.Bytes() != 0 || x.Absence() != "" {
		t.Errorf("%v", absent)
	}
	if empty := weft.TensorOf([]int32{}, 0, 4); empty.IsZero() || empty.Elems() != 0 {
		t.Errorf("%v", empty)
	}
	for name, f := range map[string]func(){
		"shape":  func() { weft.TensorOf(s, 7) },
		"memory": func() { weft.TensorAt(mem, weft.Float64, 13) },
		"type":   func() { weft.SliceOf[int32](x) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a wrong %s passes", name)
				}
			}()
			f()
		}()
	}
}

func TestDTypes(t *testing.T) {
	for d := weft.BFloat16; d <= weft.Uint64; d++ {
		got, err := weft.ParseDType(d.String())
		if got != d || err != nil || d.Size() < 1 {
			t.Errorf("%v of %d bytes reads %v: %v", d, d.Size(), got, err)
		}
	}
	if _, err := weft.ParseDType("invalid"); err == nil {
		t.Error("the invalid type reads")
	}
	if d := weft.DType(99); d.Size() != 0 || d.String() != "dtype(99)" {
		t.Errorf("%v of %d bytes", d, d.Size())
	}
	for o := weft.Sum; o <= weft.Avg; o++ {
		if got, err := weft.ParseOp(o.String()); got != o || err != nil || !o.Valid() {
			t.Errorf("%v reads %v: %v", o, got, err)
		}
	}
	if _, err := weft.ParseOp("xor"); err == nil || weft.Op(77).Valid() {
		t.Error("no reduction reads")
	}
	sizes(t, map[weft.DType][2]int{
		weft.DTypeOf[weft.BF16](): {int(weft.BFloat16), 2}, weft.DTypeOf[weft.FP16](): {int(weft.Float16), 2},
		weft.DTypeOf[float32](): {int(weft.Float32), 4},
		weft.DTypeOf[float64](): {int(weft.Float64), 8}, weft.DTypeOf[weft.E4M3](): {int(weft.Float8E4M3), 1},
		weft.DTypeOf[weft.E5M2](): {int(weft.Float8E5M2), 1},
		weft.DTypeOf[weft.E8M0](): {int(weft.UE8M0), 1}, weft.DTypeOf[int8](): {int(weft.Int8), 1},
		weft.DTypeOf[int16](): {int(weft.Int16), 2},
		weft.DTypeOf[int32](): {int(weft.Int32), 4}, weft.DTypeOf[int64](): {int(weft.Int64), 8},
		weft.DTypeOf[uint8]():  {int(weft.Uint8), 1},
		weft.DTypeOf[uint16](): {int(weft.Uint16), 2}, weft.DTypeOf[uint32](): {int(weft.Uint32), 4},
		weft.DTypeOf[uint64](): {int(weft.Uint64), 8},
	})
}

func sizes(t *testing.T, want map[weft.DType][2]int) {
	t.Helper()
	if len(want) != 15 {
		t.Errorf("two Go types stand for one element type: %v", want)
	}
	for d, w := range want {
		if int(d) != w[0] || d.Size() != w[1] {
			t.Errorf("%v has %d bytes, want %v", d, d.Size(), w)
		}
	}
}
