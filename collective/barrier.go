package collective

import "context"

// barrierEager is the round that opens every operation, and nothing else.
var barrierEager = Algorithm{
	Name:       "barrier/eager",
	Collective: Barrier,
	Supports:   func(Request) bool { return true },
	eager:      true,
	run:        func(ctx context.Context, c *call) error { return c.open(ctx, nil) },
}
