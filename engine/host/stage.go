package host

import "github.com/weftgo/weft"

// Stage is a window for operands that peers read and that lie in no other window. It may be written
// again once all peers have finished the operation that last used it.
type Stage struct {
	Window *weft.Window
	last   uint64 // the operation that last used it; 0: none
}

// Claim takes the stage for an operation, and returns the number of the one that all peers must
// have finished before it is written, or 0.
func (s *Stage) Claim(operation uint64) (finished uint64) {
	finished, s.last = s.last, operation
	return finished
}

// Forget says that no peer is inside an older operation: ranks have agreed to go on after a
// failure. A nil stage has nothing to forget.
func (s *Stage) Forget() {
	if s != nil {
		s.last = 0
	}
}
