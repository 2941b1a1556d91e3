package control

import (
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

// Transport carries what a rank does beyond its own page. Its methods do not wait for peers, and may
// take effect later; the package's documentation says in which order. They are called by several
// goroutines.
type Transport interface {
	// Publish shows the peers a part of the rank's page as it is now.
	Publish(part Part)
	// Abort sets the abort words of peers that the rank has views of, unless a fault of the same
	// generation is there already.
	Abort(peers rankset.Set, f channel.Fault)
	// Decide replaces the decision of that generation, if it is still the last one.
	Decide(last uint64, next Decision)
	// Decision is the last decision that the rank can know of.
	Decision() Decision
	// Decides reports whether a decision after the last one that leaves these ranks out can be made with the ranks that
	// this one reaches. If not, the others may go on without them.
	Decides(out rankset.Set) bool
}

// Part is what a rank publishes at once.
type Part int

// The parts of a page.
const (
	Notes Part = iota
	Intent
	partCount
)
