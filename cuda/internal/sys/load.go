package sys

import (
	"reflect"
	"unsafe"

	"github.com/weftgo/weft/internal/dl"
)

// Symbols is where entry points come from: a [*dl.Library].
type Symbols interface {
	Lookup(symbol string) (dl.Func, error)
}

// Load fills a table from the driver's library. Entries that the library does not have answer
// Missing.
//
// The driver is asked for each function by the version that brought its form: cuGetProcAddress
// never answers with a later, different form of the same name. The exported names are for drivers
// before CUDA 12.0, which have no cuGetProcAddress_v2.
func Load(library Symbols) *Table {
	t := new(Table)
	ask, _ := library.Lookup("cuGetProcAddress_v2")
	find := func(e entry) dl.Func {
		if ask != 0 {
			if fn := procAddress(ask, e.symbol, e.version); fn != 0 {
				return fn
			}
		}
		fn, _ := library.Lookup(e.symbol + e.suffix) // no address is answer enough
		return fn
	}
	setCurrent := find(call1("cuCtxSetCurrent", "", 4000, &t.CtxSetCurrent))
	for _, e := range t.entries() {
		if fn := find(e); fn != 0 {
			e.bind(fn, setCurrent)
		} else {
			e.missing()
		}
	}
	return t
}

func procAddress(ask dl.Func, symbol string, version int) dl.Func {
	const defaultFlags = 0
	address, status := new(dl.Func), new(int32)
	r := dl.Bind5[*byte, *dl.Func, int32, uint64, *int32, Result](ask)(CString(symbol), address, int32(version),
		defaultFlags, status)
	if r != Success {
		return 0
	}
	return *address
}

// Complete makes the entries that a test's table leaves nil answer Missing.
func (t *Table) Complete() {
	for _, e := range t.entries() {
		if reflect.ValueOf(e.field).Elem().IsNil() {
			e.missing()
		}
	}
}

// Since returns the version of CUDA that brought the function which a call is named after, in the
// driver's notation, or 0.
func Since(symbol string) int {
	for _, e := range new(Table).entries() {
		if e.symbol == symbol {
			return e.version
		}
	}
	return 0
}

// CString returns s with a NUL after it, on the heap.
func CString(s string) *byte {
	return unsafe.SliceData(append([]byte(s), 0))
}
