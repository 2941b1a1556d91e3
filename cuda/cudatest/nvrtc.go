package cudatest

import (
	"errors"
	"os"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/nvrtc"
)

// TB is the part of a test that NVRTC needs.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// NVRTC opens the compiler for a test that needs it. Where there is none the test is skipped, or
// fails if WEFT_REQUIRE_NVRTC is 1.
func NVRTC(t TB) *nvrtc.Compiler {
	t.Helper()
	c, err := nvrtc.Open()
	switch {
	case err == nil:
		return c
	case errors.Is(err, cuda.ErrUnsupported) && os.Getenv("WEFT_REQUIRE_NVRTC") != "1":
		t.Skipf("needs NVRTC: %v", err)
	default:
		t.Fatalf("needs NVRTC: %v", err)
	}
	return nil
}
