package host

import (
	"errors"

	"github.com/weftgo/weft"
)

// RefusalBytes bounds the text with which a rank refuses a call.
const RefusalBytes = 256

// UnsupportedRefusal marks the length of a text whose error was a [weft.ErrUnsupported]; others are
// [weft.ErrInvalid].
const UnsupportedRefusal = 1 << 16

// RefusalBits is how many bits PutRefusal's number has.
const RefusalBits = 17

// PutRefusal writes an error's text for peers to read, as far as there is room, and returns its
// length and kind: a number that is not 0.
func PutRefusal(text []byte, err error) uint32 {
	k := uint32(max(1, copy(text, err.Error())))
	if errors.Is(err, weft.ErrUnsupported) {
		k |= UnsupportedRefusal
	}
	return k
}

// TakeRefusal is the error with which a rank answers the refusal of another, which PutRefusal has
// written, or nil if that one did not refuse.
func TakeRefusal(rank int, op string, refused uint32, text []byte) error {
	if refused == 0 {
		return nil
	}
	e := &refusedError{kind: weft.ErrInvalid}
	if refused&UnsupportedRefusal != 0 {
		e.kind = weft.ErrUnsupported
	}
	e.text = string(text[:min(int(refused&^UnsupportedRefusal), len(text))])
	return &weft.PeerError{Rank: rank, Op: op, Err: e}
}

// refusedError carries another rank's words, and wraps the sentinel that its error did: nothing has
// moved, the communicator is whole.
type refusedError struct {
	text string
	kind error
}

func (e *refusedError) Error() string { return "refused there: " + e.text }
func (e *refusedError) Unwrap() error { return e.kind }
