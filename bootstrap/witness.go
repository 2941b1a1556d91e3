package bootstrap

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// Witness is an optional interface of a [Bootstrap]; the ranks of this package implement it. Ranks
// that set up something beyond the bootstrap fail because of one of them. Ranks that fail as a
// consequence must not be taken for the cause.
type Witness interface {
	// Blame reports to the other ranks that this one fails because of rank, which may be itself,
	// and why. It returns when the report is on its way: no other rank sees this rank's next action
	// before it, if both go through the bootstrap.
	Blame(rank int, why error)

	// Blamed returns the first failure that this rank has seen or was sent, under the name op; a
	// rank that left is no failure. If there is none it waits for one until the context ends, and
	// then returns nil.
	Blamed(ctx context.Context, op string) *PeerError
}

// Blame implements [Witness].
func (m *mesh) Blame(rank int, why error) {
	if m.checkPeer(rank) != nil {
		return
	}
	f := fault{rank: uint32(rank), reason: reasonAborted, text: strings.TrimPrefix(why.Error(), ErrAborted.Error()+": ")}
	for _, r := range []reason{reasonDied, reasonLeft, reasonTimeout, reasonMismatch} {
		if errors.Is(why, sentinels[r]) {
			f.reason, f.text = r, ""
		}
	}
	m.observe(m.rank, f)
}

// Blamed implements [Witness].
func (m *mesh) Blamed(ctx context.Context, op string) *PeerError {
	var first *PeerError
	_ = m.wait(ctx, func() (bool, error) {
		i := slices.IndexFunc(m.faults, func(f fault) bool { return f.reason != reasonLeft })
		if i >= 0 {
			first = m.faults[i].peerError(op)
		}
		return i >= 0, nil
	})
	return first
}
