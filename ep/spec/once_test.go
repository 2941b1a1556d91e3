package spec

import (
	"errors"
	"testing"

	"github.com/weftgo/weft"
)

// TestOncePerHost: rows go once to each host where that spares enough, whichever hosts are numbered first.
func TestOncePerHost(t *testing.T) {
	s := Spec{Layout: ExpertMajor, Payload: FP8, Hidden: 7168, Experts: 256, TopK: 8}
	for _, c := range []struct {
		hosts  []int
		tokens int
		want   bool
	}{
		{[]int{0, 0, 1, 1}, 43, false},
		{[]int{0, 0, 1, 1}, 44, true},
		{[]int{0, 1, 0, 1}, 44, true},
		{[]int{0, 0, 0, 0, 1, 1, 1, 1}, 21, false},
		{[]int{0, 0, 0, 0, 1, 1, 1, 1}, 22, true},
		{[]int{0, 1, 2, 3}, 512, false}, // nothing is spared
		{[]int{0, 0, 0, 1}, 128, true},
		{[]int{0, 0}, 512, false}, // no other host
	} {
		s.MaxTokens = c.tokens
		if got := s.OncePerHost(c.hosts); got != c.want {
			t.Errorf("%v with %d tokens: %v, want %v", c.hosts, c.tokens, got, c.want)
		}
	}
}

func TestCopiesByHost(t *testing.T) {
	for text, want := range map[string]bool{"": false, "rank": false, "host": true} {
		t.Setenv(CopiesVariable, text)
		if got, err := CopiesByHost(); got != want || err != nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	t.Setenv(CopiesVariable, "hosts")
	if _, err := CopiesByHost(); !errors.Is(err, weft.ErrInvalid) {
		t.Error(err)
	}
}
