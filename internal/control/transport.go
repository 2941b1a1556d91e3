package control

import "github.com/weftgo/weft/channel"

// Transport carries what a rank does beyond its own page. Its methods do not wait for peers, and may
// take effect later; the package's documentation says in which order. They are called by several
// goroutines.
type Transport interface {
	// Publish shows the peers a part of the rank's page as it is now.
	Publish(part Part)
	// Abort sets the abort word of a peer that the rank has a view of, unless a fault of the same
	// generation is there already.
	Abort(peer int, f channel.Fault)
	// Decide replaces the decision of that generation, if it is still the last one.
	Decide(last uint64, next Decision)
	// Decision is the last decision that the rank can know of.
	Decision() Decision
}

// Part is what a rank publishes at once.
type Part int

// The parts of a page.
const (
	Notes Part = iota
	Intent
)
