package eptest

import (
	"errors"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestDeviceForgets: what a body that failed has not freed goes with its communicators, so a test that fails
// says why and nothing else.
func TestDeviceForgets(t *testing.T) {
	g := ranktest.Fake(t, cudatest.Config{})
	d := NewDevice(g.Contexts)
	failure := errors.New("the body fails")
	for _, window := range []bool{false, true} {
		if err := d.Ranks(2, func(c *weft.Comm) error {
			if _, err := d.Alloc(c, 100, window); err != nil {
				return err
			}
			d.Stream(c)
			return failure
		}); !errors.Is(err, failure) {
			t.Errorf("%v, want %v", err, failure)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
