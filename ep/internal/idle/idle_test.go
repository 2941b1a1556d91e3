package idle

import (
	"errors"
	"testing"

	"github.com/weftgo/weft"
)

// TestRoutings: what a graph writes serves graphs only, which take others, too, but make none.
func TestRoutings(t *testing.T) {
	var s Routings[string]
	made := func() (string, error) { return "made", nil }
	if r, err := s.Take(true, made); !errors.Is(err, weft.ErrUnsupported) {
		t.Errorf("a capture takes %q of none: %v", r, err)
	}
	s.Put("graph's", true)
	if r, err := s.Take(false, made); err != nil || r != "made" {
		t.Errorf("outside graphs it gives %q: %v", r, err)
	}
	s.Put("plain", false)
	for _, want := range []string{"graph's", "plain"} {
		if r, err := s.Take(true, made); err != nil || r != want {
			t.Errorf("to a graph it gives %q (%v), want %q", r, err, want)
		}
	}
}
