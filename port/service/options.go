package service

import (
	"context"
	"fmt"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/port"
)

// Options of a service. The zero value is ready. Channels, Spread, the number of rails and Shared are the same on every
// rank.
type Options struct {
	// Provider is libfabric's, by name; empty takes the first of [fabric.Providers] that the machine has.
	Provider string
	// Sources are the addresses of the network interfaces to use, one a rail. None: one rail, by the interface by which
	// ranks of different hosts have met, WEFT_INTERFACE if that is set.
	Sources []string
	// Channels is the most channels between two ranks: 64 if 0. A channel is never given up.
	Channels int
	// Depth, Spin and Spread are those of [port.Options].
	Depth  int
	Spin   time.Duration
	Spread int
	// Open makes the domain of a rail: one of the kind that the communicator has, if nil. Package fabrictest has
	// others, for tests.
	Open func(ctx context.Context, rail int, o fabric.Options) (*fabric.Domain, error)
	// Shared has the service use the domain, and the goroutine that posts, of the communicator's other services with
	// Shared. All other options but Channels are then 0. The service is made anew after a SetMask. One that is closed with
	// something underway ends the others, too.
	Shared bool
}

// maxChannels is one less than the most signals of a domain.
const maxChannels = 1<<16 - 1

func (o *Options) normalize(ops weft.Operations) error {
	switch {
	case o.Shared && (o.Provider != "" || len(o.Sources) > 0 || o.Depth != 0 || o.Spin != 0 || o.Spread != 0 ||
		o.Open != nil):
		return weft.Invalidf("Shared, and other options than Channels: the services that share would differ")
	case o.Channels < 0 || o.Channels > maxChannels:
		return weft.Invalidf("Channels: %d, want 1 to %d, or 0 for 64", o.Channels, maxChannels)
	case len(o.Sources) > port.MaxRails:
		return weft.Invalidf("Sources: %d, want at most %d", len(o.Sources), port.MaxRails)
	case o.Depth < 0 || o.Spread < 0 || o.Spin < 0 || o.Depth&(o.Depth-1) != 0 || o.Depth == 1 || o.Depth > 1<<20:
		return weft.Invalidf("Depth: %d, Spread: %d, Spin: %v; want a power of two from 2 to %d, and no negative numbers",
			o.Depth, o.Spread, o.Spin, 1<<20)
	}
	if o.Channels == 0 {
		o.Channels = 64
	}
	if len(o.Sources) == 0 {
		o.Sources = []string{""}
	}
	if o.Open == nil {
		o.Open = func(ctx context.Context, rail int, f fabric.Options) (*fabric.Domain, error) {
			f.Provider, f.Source = o.Provider, o.Sources[rail]
			return ops.OpenFabric(ctx, f)
		}
	}
	return nil
}

// said is what all ranks must say alike.
func (o *Options) said() string {
	return fmt.Sprintf("Channels: %d, Spread: %d, rails: %d, Shared: %t", o.Channels, o.Spread, len(o.Sources), o.Shared)
}
