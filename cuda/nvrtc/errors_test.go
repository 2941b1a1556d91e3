package nvrtc

import (
	"fmt"
	"strings"
	"testing"
)

func TestCompileErrorText(t *testing.T) {
	for log, want := range map[string]string{
		"k.cu(2): warning #177-D: declared but never referenced\n\nk.cu(3): error: undefined\nk.cu(9): " +
			"error: another\n": "k.cu(3): error: undefined",
		"nvrtc: refused\nfor a reason": "nvrtc: refused",
		"":                             "NVRTC gives no reason",
		"\n\n  ptxas input, line 43; error   : no modifier  ": "ptxas input, line 43; error   : no modifier",
	} {
		err := &CompileError{Program: "k.cu", Architecture: "sm_90a", Log: log}
		want = "compile k.cu for sm_90a: " + want
		if got := err.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		for verb, want := range map[string]string{
			"%v": want, "%s": want, "%q": fmt.Sprintf("%q", want),
			"%+v": "compile k.cu for sm_90a:\n" + log,
		} {
			if got := fmt.Sprintf(verb, err); got != want {
				t.Errorf("%s: %q, want %q", verb, got, want)
			}
		}
	}
}

func TestErrorText(t *testing.T) {
	if err := check("nvrtcVersion", success); err != nil {
		t.Errorf("success is %v", err)
	}
	for code, want := range map[result]string{
		3:  "nvrtcX: NVRTC error 3: invalid input",
		7:  "nvrtcX: NVRTC error 7: builtin operation failure; is libnvrtc-builtins",
		99: "nvrtcX: NVRTC error 99",
	} {
		if got := check("nvrtcX", code).Error(); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
