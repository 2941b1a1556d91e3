package bootstrap

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// Witness is what a [Bootstrap] may be besides: the ranks of this package's are. Ranks that set
// something up beyond the bootstrap, and fail, do so because of one of them; those that give up
// because of it must not be taken for the cause by others.
type Witness interface {
	// Blame tells the other ranks that this one gives up because of rank, which may be itself, and
	// why. It returns when the news is on its way: what this rank does next is not seen before it,
	// as far as that goes through the bootstrap.
	Blame(rank int, why error)

	// Blamed returns the first failure that this rank has been told of, or has seen, in op's name;
	// that a rank left is none. If there is none it waits for one until the context ends, and then
	// returns nil.
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
