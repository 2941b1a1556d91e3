package eptest

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestHost runs the suite on goroutine ranks.
func TestHost(t *testing.T) {
	h := NewHost()
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	Run(t, h)
}
