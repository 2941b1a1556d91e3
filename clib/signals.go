//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"fmt"
	"strings"
)

// offStack lists the handlers that would run on the interrupted code's stack. A goroutine's stack
// has no room for one: it would overwrite the memory below. Go's runtime has given the flag to
// those that were there when the library was loaded. With repair the others get it here, in place,
// and those that took it are not listed.
func offStack(repair bool) (found []string) {
	mend := C.int(0)
	if repair {
		mend = 1
	}
	for n := C.int(1); n <= C.LIBWEFT_SIGNALS; n++ {
		var h C.libweft_handler
		if C.libweft_off_stack(n, mend, &h) == 0 {
			continue
		}
		name := fmt.Sprintf("signal %d", n)
		if h.signal != nil {
			name = C.GoString(h.signal)
		}
		var where string
		switch {
		case h.symbol != nil:
			where = fmt.Sprintf("%s in %s", C.GoString(h.symbol), C.GoString(h.file))
		case h.file != nil:
			where = fmt.Sprintf("%#x, which is %#x in %s", uintptr(h.address), uint64(h.offset), C.GoString(h.file))
		default:
			where = fmt.Sprintf("%#x", uintptr(h.address))
		}
		found = append(found, fmt.Sprintf("%s (%s)", name, where))
	}
	return found
}

//export goweft_signal_check
func goweft_signal_check(repair C.int) C.int {
	return local(func() error {
		if found := offStack(repair != 0); len(found) > 0 {
			return invalidf("handlers of signals lack SA_ONSTACK, and would overwrite memory where they "+
				"interrupt Go: %s; install them with it, or call weft_signal_check(1)",
				strings.Join(found, ", "))
		}
		return nil
	})
}

// warnOfSignals logs handlers that can crash the process.
func (l *logger) warnOfSignals() {
	if l == nil {
		return
	}
	if found := offStack(false); len(found) > 0 {
		l.slog().Warn("handlers of signals lack SA_ONSTACK, and would overwrite memory where they interrupt "+
			"Go; install them with it, or call weft_signal_check(1)",
			"handlers", strings.Join(found, ", "))
	}
}
