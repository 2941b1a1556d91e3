//go:build cgo && linux

package main

// #include "internal.h"
// #include <stdlib.h>
import "C"

import (
	"bytes"
	"log/slog"
	"sync"
	"unsafe"
)

// logger hands lines to a function of the caller's until it is stopped.
type logger struct {
	mu      sync.Mutex
	log     C.weft_log_fn
	context unsafe.Pointer
}

func (l *logger) slog() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey { // the caller has a clock
				return slog.Attr{}
			}
			return a
		},
	}))
}

func (l *logger) Write(line []byte) (int, error) {
	text := C.CString(string(bytes.TrimSuffix(line, []byte("\n"))))
	defer C.free(unsafe.Pointer(text))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.log != nil {
		C.libweft_log(l.log, l.context, text)
	}
	return len(line), nil
}

// stop returns when no line is being handed over, and none will be.
func (l *logger) stop() {
	if l != nil {
		l.mu.Lock()
		l.log = nil
		l.mu.Unlock()
	}
}
