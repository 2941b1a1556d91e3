package simd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fenced maps n bytes that end, or begin, at a page that no access is allowed to.
func fenced(t *testing.T, n int, atEnd bool) []byte {
	t.Helper()
	page := os.Getpagesize()
	body := (n + page - 1) / page * page
	m, err := unix.Mmap(-1, 0, body+2*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	if body > 0 {
		if err := unix.Mprotect(m[page:page+body], unix.PROT_READ|unix.PROT_WRITE); err != nil {
			t.Fatal(err)
		}
	}
	first := page
	if atEnd {
		first += body - n
	}
	return m[first : first+n : first+n]
}

// TestStaysInside runs every kernel on rows between forbidden pages: a read or write beyond a row
// is a fault.
func TestStaysInside(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	eachPath(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129, 255, 257, 511, 640} {
			for _, atEnd := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d/%t", n, atEnd), func(t *testing.T) {
					bytes := 8 * n
					x, y, z := fenced(t, bytes, atEnd), fenced(t, bytes, atEnd), fenced(t, bytes, atEnd)
					cut := func(b []byte, typ Type) []byte {
						if size := n * typ.Size(); atEnd {
							return b[len(b)-size:]
						} else {
							return b[:size]
						}
					}
					for _, typ := range allTypes {
						a, b, out := cut(x, typ), cut(y, typ), cut(z, typ)
						fill(r, typ, a)
						fill(r, typ, b)
						for _, op := range []Op{Sum, Prod, Min, Max} {
							Reduce(op, typ, false, out, a, b)
						}
						Reduce(Sum, typ, true, out, a, b)
						if typ <= F32 {
							rows := []unsafe.Pointer{pointer(a), pointer(b)}
							WeightedSum(typ, pointer(out), n, rows, []float32{1, 2}, rows[:1])
							Scale(typ, pointer(out), pointer(a), n, 3)
							Dot(typ, pointer(a), pointer(b), n)
						}
					}
					for _, stream := range []bool{false, true} {
						FanOut([]unsafe.Pointer{pointer(y), pointer(z)}, pointer(x), bytes, stream)
						Copy(pointer(z), pointer(x), bytes, stream)
						Zero(pointer(z), bytes, stream)
					}
					StoreFence()
					if n%QuantGroup != 0 {
						return
					}
					for _, kind := range []ScaleKind{ScaleF32, ScaleF32Pow2, ScaleUE8M0} {
						for _, typ := range sumTypes {
							scales := fenced(t, n/QuantGroup*scaleSize(kind), atEnd)
							q := cut(y, E4M3)
							QuantizeE4M3(typ, pointer(q), pointer(scales), pointer(cut(x, typ)), n, kind)
						}
					}
				})
			}
		}
	})
}
