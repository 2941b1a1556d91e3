package spec

import (
	"errors"
	"testing"

	"github.com/weftgo/weft"
)

// TestIdleRoutings: what a graph writes serves graphs only, which take others, too, but make none.
func TestIdleRoutings(t *testing.T) {
	var s IdleRoutings[string]
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

// TestIdleRoutingsFill: what is in store outside graphs comes from the function, up to its first error.
func TestIdleRoutingsFill(t *testing.T) {
	var s IdleRoutings[int]
	made, full := 0, errors.New("full")
	fresh := func() (int, error) {
		if made == 2 {
			return 0, full
		}
		made++
		return made, nil
	}
	if err := s.Fill(2, fresh); err != nil || len(s.Plain) != 2 || len(s.Graphed) != 0 {
		t.Errorf("two: %v and %v, %v", s.Plain, s.Graphed, err)
	}
	if err := s.Fill(1, fresh); !errors.Is(err, full) || len(s.Plain) != 2 {
		t.Errorf("one too many: %v, %v", s.Plain, err)
	}
}
