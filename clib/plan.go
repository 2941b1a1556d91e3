//go:build cgo && linux

package main

// #include "internal.h"
// #include <string.h>
import "C"

import (
	"encoding/json"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/lowering"
	"github.com/weftgo/weft/plan/spec"
)

//export goweft_plan_lower
func goweft_plan_lower(recording *C.char, compact C.int, text **C.char) C.int {
	return texts(recording, text, func(in []byte) ([]byte, error) {
		program, err := lowering.Decode(in)
		if err != nil {
			return nil, err
		}
		file, err := program.File()
		switch {
		case err != nil:
			return nil, err
		case compact != 0:
			return file.Compact(), nil
		}
		return file.Text(), nil
	})
}

// finding is what C is told of one.
type finding struct {
	Class   plan.Class `json:"class"`
	Warning bool       `json:"warning"`
	Text    string     `json:"text"`
}

//export goweft_plan_check
func goweft_plan_check(text *C.char, findings **C.char) C.int {
	return texts(text, findings, func(in []byte) ([]byte, error) {
		verdict, err := verdictOf(in)
		if err != nil {
			return nil, err
		}
		all := []finding{}
		for _, f := range verdict.Findings {
			all = append(all, finding{f.Class, f.Warning, f.String()})
		}
		return json.Marshal(all)
	})
}

// verdictOf is that of a plan, or of a recording, which has keys that no plan has.
func verdictOf(text []byte) (*plan.Verdict, error) {
	if program, err := lowering.Decode(text); err == nil && len(program.Ranks) > 0 {
		return plan.VerifyProgram(program)
	}
	file, err := spec.Decode(text)
	if err != nil {
		return nil, err
	}
	return plan.Verify(file), nil
}

// texts makes a text of a text. What f finds wrong is the caller's to mend.
func texts(in *C.char, out **C.char, f func([]byte) ([]byte, error)) C.int {
	if out != nil {
		*out = nil
	}
	return local(func() error {
		if in == nil || out == nil {
			return invalidf("a text, or where one is to be written, is NULL")
		}
		made, err := f(unsafe.Slice((*byte)(unsafe.Pointer(in)), int(C.strlen(in))))
		if err != nil {
			return fmt.Errorf("%w: %w", weft.ErrInvalid, err)
		}
		*out = C.CString(string(made))
		return nil
	})
}
