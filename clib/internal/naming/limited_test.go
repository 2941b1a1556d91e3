package naming_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/clib/internal/naming"
)

// TestLimited: an error's type decides whether it says what bounded the call, not its words, which may be a user's.
func TestLimited(t *testing.T) {
	const told = ": the 50 ms that weft_timeout_set gives this thread's calls are over"
	over := context.DeadlineExceeded
	for _, c := range []struct {
		name string
		err  error
		told bool
	}{
		{"none", nil, false},
		{"another error", errors.New("which the context sets"), false},
		{"a deadline", fmt.Errorf("barrier: %w", over), true},
		{"a user's words", fmt.Errorf("plan %q: %w", "which the context sets", over), true},
		{"says it", fmt.Errorf("join: %w", &bootstrap.LimitError{Err: fmt.Errorf("%w in 1 s", over)}), false},
	} {
		got := naming.Limited(c.err, 50)
		if !errors.Is(got, c.err) {
			t.Errorf("%s: %v does not wrap %v", c.name, got, c.err)
		}
		if want := fmt.Sprint(c.err) + told; c.told && fmt.Sprint(got) != want || !c.told && got != c.err {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
