//go:build cgo && linux

package main

// #include "internal.h"
// #include <string.h>
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan/lowering"
)

//export goweft_plan_lower
func goweft_plan_lower(recording *C.char, compact C.int, text **C.char) C.int {
	if text != nil {
		*text = nil
	}
	return local(func() error {
		if recording == nil || text == nil {
			return invalidf("the recording or the text is NULL")
		}
		length := C.strlen(recording)
		program, err := lowering.Decode(unsafe.Slice((*byte)(unsafe.Pointer(recording)), int(length)))
		if err != nil {
			return fmt.Errorf("%w: %w", weft.ErrInvalid, err)
		}
		file, err := program.File()
		if err != nil {
			return fmt.Errorf("%w: %w", weft.ErrInvalid, err)
		}
		if compact != 0 {
			*text = C.CString(string(file.Compact()))
		} else {
			*text = C.CString(string(file.Text()))
		}
		return nil
	})
}
