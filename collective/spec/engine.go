package spec

import (
	"context"

	"github.com/weftgo/weft"
)

// Engine runs the collectives of a group, on the host or on GPUs.
type Engine interface {
	// Begin is the first thing that a call does. It returns the communicator's failure, if there is
	// one, which no other rank hears of.
	Begin(op string) error
	// Request is what the choice of a checked call's algorithm depends on, as far as it is known before the
	// ranks meet.
	Request(c *Call) (Request, error)
	// Run runs a call that was checked, or enqueues it in a stream, and names the algorithm. With an
	// error in this rank's arguments it tells the other ranks why this one cannot take part, and
	// returns the error.
	Run(ctx context.Context, s *weft.Stream, c *Call, refused error) (algorithm string, err error)
	// Exchange sends and receives a call's messages, or enqueues that. Every rank named in the call makes
	// a call that names this one as often; the others do not take part. With an error in this rank's
	// arguments it is as Run.
	Exchange(ctx context.Context, s *weft.Stream, c *Call, refused error) error
	// Algorithms are the engine's.
	Algorithms() []Algorithm
	// Close gives the engine's memory up, unless work that uses it still runs: then nothing is released,
	// and the owner calls it again.
	Close() (released bool, err error)
}
