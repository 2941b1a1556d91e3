package relay

import (
	"errors"
	"testing"

	"github.com/weftgo/weft/channel"
)

// blamed checks that an error names a rank and wraps a cause.
func blamed(t testing.TB, who int, err error, rank int, cause error) {
	t.Helper()
	peer, ok := errors.AsType[*channel.PeerError](err)
	if !ok || peer.Rank != rank || !errors.Is(err, cause) {
		t.Errorf("rank %d: %v, want one that names rank %d and says %q", who, err, rank, cause)
	}
}
