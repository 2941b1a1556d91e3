package host

import (
	"errors"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/refusal"
)

// RefusedCall marks the call of a rank that refuses: the rest is what PutRefusal returns.
const RefusedCall = 1 << 63

// RefusalBytes bounds the text with which a rank refuses a call.
const RefusalBytes = 256

// unsupportedRefusal marks the length of a text whose error was a [weft.ErrUnsupported]; others are
// [weft.ErrInvalid].
const unsupportedRefusal = 1 << 16

// PutRefusal writes an error's text for peers to read, as far as there is room, and returns its
// length and kind.
func PutRefusal(text []byte, err error) uint32 {
	k := uint32(copy(text, err.Error()))
	if errors.Is(err, weft.ErrUnsupported) {
		k |= unsupportedRefusal
	}
	return k
}

// TakeRefusal is the error with which a rank answers the refusal of another: no row has moved, and the communicator is
// whole.
func TakeRefusal(rank int, op string, refused uint32, text []byte) error {
	kind := weft.ErrInvalid
	if refused&unsupportedRefusal != 0 {
		kind = weft.ErrUnsupported
	}
	words := string(text[:min(int(refused&^unsupportedRefusal), len(text))])
	return &weft.PeerError{Rank: rank, Op: op, Err: refusal.There(kind, op, words)}
}
