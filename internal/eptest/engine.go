package eptest

import (
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// Engine is something that package ep runs on. The suite reaches ranks and memory only through it.
type Engine interface {
	// Name appears in the names of tests.
	Name() string

	// Kind says which of package ep's engines moves the rows, and so what it refuses.
	Kind() ep.Engine

	// Recycles reports whether the memory that rows of the layout are received in comes round from
	// earlier dispatches. Rows that hold no token are then undefined. Where it does not, the suite
	// makes sure that dispatch leaves them alone.
	Recycles(l ep.Layout) bool

	// Sizes lists the numbers of ranks that the engine can run, ascending. The suite takes its
	// shapes from them.
	Sizes() []int

	// Ranks runs body for each of n ranks, side by side, and returns when all have; the error joins
	// theirs. An engine whose ranks are processes runs the body of its own rank, and is for
	// [Sample]. The engine may keep communicators for later calls; one of whose bodies failed is
	// not used again.
	Ranks(n int, body func(c *weft.Comm) error) error

	// Alloc gives memory of the rank's device, in a window of its communicator or not. Allocations
	// are collective, and of the same size on every rank; so is giving them up.
	Alloc(c *weft.Comm, size int, window bool) (Memory, error)

	// Stream is where the suite puts the operations of a rank.
	Stream(c *weft.Comm) *weft.Stream

	// Sync waits until everything in the rank's stream is done.
	Sync(c *weft.Comm) error

	// Upload and Download copy between the host and the rank's device.
	Upload(c *weft.Comm, dst unsafe.Pointer, src []byte) error
	Download(c *weft.Comm, dst []byte, src unsafe.Pointer) error
}

// Memory is what Alloc gives.
type Memory struct {
	Data unsafe.Pointer
	Free func() error
}
