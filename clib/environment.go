//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"os"
	"strings"
	"sync"
)

var adopting sync.Mutex

// adoptEnvironment makes Go see the environment that C has now. Go copies it when the library is
// loaded, which in a program that opens the library is before the program says which rank it is.
func adoptEnvironment() {
	adopting.Lock()
	defer adopting.Unlock()
	now := map[string]bool{}
	var changed [][2]string
	for i := C.size_t(0); ; i++ {
		entry := C.libweft_environment(i)
		if entry == nil {
			break
		}
		name, value, ok := strings.Cut(C.GoString(entry), "=")
		if !ok || name == "" {
			continue
		}
		now[name] = true
		if had, ok := os.LookupEnv(name); !ok || had != value {
			changed = append(changed, [2]string{strings.Clone(name), strings.Clone(value)})
		}
	}
	// Setting a variable in Go sets it in C too, so this changes only what differs.
	for _, c := range changed {
		os.Setenv(c[0], c[1])
	}
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); name != "" && !now[name] {
			os.Unsetenv(name)
		}
	}
}
