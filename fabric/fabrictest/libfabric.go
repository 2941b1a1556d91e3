package fabrictest

import (
	"context"
	"errors"
	"os"

	"github.com/weftgo/weft/fabric"
)

// TB is the part of a test that libfabric needs.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Libfabric opens a domain on libfabric for a test that needs it. Where there is none the test is
// skipped, or fails if WEFT_REQUIRE_FABRIC is 1.
func Libfabric(ctx context.Context, t TB, o fabric.Options) *fabric.Domain {
	t.Helper()
	d, err := fabric.Open(ctx, o)
	switch {
	case err == nil:
		return d
	case errors.Is(err, fabric.ErrUnsupported) && os.Getenv("WEFT_REQUIRE_FABRIC") != "1":
		t.Skipf("needs libfabric: %v", err)
	default:
		t.Fatalf("needs libfabric: %v", err)
	}
	return nil
}
