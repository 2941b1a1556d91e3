package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// barrierEager is the round that opens every operation, and nothing else.
var barrierEager = algorithm{
	Algorithm: spec.Algorithm{
		Name: "barrier/eager", Collective: spec.Barrier,
		Supports: func(spec.Request) bool { return true },
		Eager:    true,
	},
	run: func(ctx context.Context, c *call) error { return c.open(ctx, nil) },
}
