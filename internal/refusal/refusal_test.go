package refusal_test

import (
	"errors"
	"testing"

	"github.com/weftgo/weft/internal/refusal"
)

// TestThere: an answer says the operation and the kind of an error no second time.
func TestThere(t *testing.T) {
	kind := errors.New("invalid argument")
	for words, want := range map[string]string{
		"invalid argument: broadcast: broadcast: root 9 of 4 ranks": "refused there: root 9 of 4 ranks",
		"broadcast: invalid argument: root 9 of 4 ranks":            "refused there: root 9 of 4 ranks",
		"root 9: broadcast: of 4 ranks":                             "refused there: root 9: broadcast: of 4 ranks",
		"":                                                          "refused there: ",
	} {
		if err := refusal.There(kind, "broadcast", words); err.Error() != want || !errors.Is(err, kind) {
			t.Errorf("%q is answered by %q, want %q", words, err, want)
		}
	}
}
