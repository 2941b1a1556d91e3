package host

import (
	"context"

	"github.com/weftgo/weft"
)

// Stage is a window for operands that peers read and that lie in no other window.
type Stage struct {
	Window *weft.Window
	rounds *Rounds
	round  uint64 // opened the operation that last used it
}

// NewStage makes a window a stage of operations that talk in these rounds.
func (r *Rounds) NewStage(w *weft.Window) *Stage { return &Stage{Window: w, rounds: r} }

// Claim waits until the stage may be written for the operation that opens in a round: until all peers
// have left the operation that last used it.
func (s *Stage) Claim(ctx context.Context, op string, round uint64) error {
	last := s.round
	s.round = round
	if !s.rounds.numbers.Covers(last) {
		return nil // no rank is inside an operation of another generation
	}
	return s.rounds.AwaitLeft(ctx, op, last)
}
