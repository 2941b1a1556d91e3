//go:build cgo && linux

package main

import (
	"fmt"
	"runtime"
	"strings"
)

// broken is an error of a call that has panicked: a defect of the library, or memory that is not mapped.
type broken struct {
	cause any
	at    string
}

// brokenBy describes what recover returned, from the function that has deferred it.
func brokenBy(cause any) *broken {
	if b, ok := cause.(*broken); ok { // of another goroutine, which a call waited for
		return b
	}
	if cause == nil {
		cause = "the goroutine has ended"
	}
	return &broken{cause: cause, at: place()}
}

func (b *broken) Error() string {
	what := fmt.Sprint(b.cause)
	if fault, ok := b.cause.(interface{ Addr() uintptr }); ok {
		what = fmt.Sprintf("address %#x is not mapped", fault.Addr())
	}
	return fmt.Sprintf("%v: %s, in %s; an operand's address may be wrong, else report this", errInternal, what, b.at)
}

func (*broken) Is(target error) bool { return target == errInternal }

// place is where the panic that is being recovered from began: the functions of this module and their lines,
// the innermost first.
func place() string {
	const module, most = "github.com/weftgo/weft/", 6
	var counters [64]uintptr
	frames := runtime.CallersFrames(counters[:runtime.Callers(1, counters[:])])
	var inside []string
	panicked := false
	for len(inside) < most {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			panicked = true
			inside = inside[:0] // of several panics the last one here is the first that was
		case panicked && strings.HasPrefix(f.Function, module):
			inside = append(inside, fmt.Sprintf("%s:%d", strings.TrimPrefix(f.Function, module), f.Line))
		case panicked && strings.HasPrefix(f.Function, "main."):
			inside = append(inside, fmt.Sprintf("clib.%s:%d", strings.TrimPrefix(f.Function, "main."), f.Line))
		}
		if !more {
			break
		}
	}
	return strings.Join(inside, " < ")
}
