package bootstrap

import (
	"context"
	"fmt"
	"time"
)

// MaxMessage is the most bytes that one Send or one rank's share of an AllGather may carry.
const MaxMessage = 16 << 20

// MaxSize is the most ranks that a job may have.
const MaxSize = 1 << 16

// DefaultJoinTimeout bounds a join whose context has no deadline.
const DefaultJoinTimeout = 2 * time.Minute

// Bootstrap is how ranks find each other and exchange the few kilobytes that everything else is set
// up from: addresses, capabilities, tuning tables. It carries control traffic only.
//
// All methods may be called from several goroutines. Collective calls (AllGather, Barrier) are made
// by every rank in the same order; calls of one rank that overlap are made one after the other.
//
// A failure is reported by rank and at once. When a rank dies, or leaves while others still need
// it, every pending and later call that needs it returns a [*PeerError]. The error names that rank,
// or the rank whose earlier death made it leave. Send and Recv between other ranks keep working, so
// that survivors can agree on how to continue.
type Bootstrap interface {
	// Rank is this rank, from 0.
	Rank() int

	// Size is the number of ranks.
	Size() int

	// Send gives data, of at most [MaxMessage] bytes, to peer, which takes it with Recv. Messages
	// of a pair arrive in the order they were sent. Send does not wait for the Recv; data may be
	// reused when it returns. Peer may be the rank itself.
	Send(ctx context.Context, peer int, data []byte) error

	// Recv returns the next message from peer. The caller owns the result. It ends with peer, even
	// where rank 0 ended before.
	Recv(ctx context.Context, peer int) ([]byte, error)

	// AllGather gives every rank's data, of any length up to [MaxMessage] per rank, to every rank.
	// The result is indexed by rank and owned by the caller. When the context's deadline passes,
	// the error names the rank that was missing; finding that out may take a quarter of a second
	// more. A collective that has failed is not resumed: later ones return the same error.
	AllGather(ctx context.Context, data []byte) ([][]byte, error)

	// Barrier returns once every rank has entered it. Contexts are treated as in AllGather.
	Barrier(ctx context.Context) error

	// Close leaves. Messages already sent are delivered, and peers see [ErrLeft] where they would
	// otherwise see [ErrDied]. Later calls return [ErrClosed], except Close itself, which returns
	// nil.
	Close() error
}

// checkRank checks a rank and a size that a caller gave, before anything is made for that many
// ranks.
func checkRank(rank, size int) error {
	if size < 1 || size > MaxSize {
		return fmt.Errorf("join: size %d: a job has 1 to %d ranks", size, MaxSize)
	}
	if rank < 0 || rank >= size {
		return fmt.Errorf("join: rank %d does not exist among %d", rank, size)
	}
	return nil
}
