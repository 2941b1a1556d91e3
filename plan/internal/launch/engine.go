package launch

import (
	"context"

	"github.com/weftgo/weft"
)

// Engine runs plans on the ranks of a communicator, on the host or on GPUs. All its methods but Begin are collective.
type Engine interface {
	// Begin is the first thing that a launch does. It returns the communicator's failure, if there is one, which no
	// other rank hears of.
	Begin(op string) error
	// Load makes a plan, which is the same on all ranks, ready to run: all memory that does not depend on a message. It
	// fails on all ranks or on none.
	Load(ctx context.Context, p *Plan) (Loaded, error)
	// Close gives the engine's memory up, with that of the plans that it loaded, unless work that uses it still runs:
	// then nothing is released, and the owner calls it again.
	Close() (released bool, err error)
}

// Loaded is a plan that an engine has made ready.
type Loaded interface {
	// Run runs a launch that was checked, or enqueues it in a stream; nil is the communicator's own, on the host the
	// only one. With an error in this rank's arguments it tells the other ranks, if they meet, and returns the error.
	Run(ctx context.Context, s *weft.Stream, l *Launch, refused error) error
	// Close gives up what Load made. No rank runs the plan any more.
	Close() error
}
