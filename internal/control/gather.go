package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
)

// Gather gives every unmasked rank's note, of at most [NoteSize] bytes, to every unmasked rank; the
// entries of masked ranks are nil. If the others go on without this rank meanwhile, the notes may be
// those of a later round: the caller looks for a fault before it uses them. A rank that aborts after it has
// read the notes of all takes none away: they are whole then.
func (r *Rank) Gather(ctx context.Context, op string, note []byte) ([][]byte, error) {
	r.gather.Lock()
	defer r.gather.Unlock()

	r.gather.rounds.Begin(r.generation.Load())
	round := r.gather.rounds.Next()

	own := &r.own.notes
	own.half[round&1].set(note)
	own.round.Publish(round)
	r.transport.Publish(Notes)

	all := make([][]byte, r.size)
	for p, v := range r.views {
		if r.Masked(p) {
			continue
		}
		err := r.Waiter.Wait(ctx, &v.notes.round, round, op, p)
		if err != nil && !(errors.Is(err, channel.ErrAborted) && v.notes.round.Load() >= round) {
			return nil, err
		}
		note, ok := v.notes.half[round&1].get()
		if !ok {
			err := fmt.Errorf("%w: a note of more than %d bytes", bootstrap.ErrMismatch, NoteSize)
			return nil, &channel.PeerError{Rank: p, Op: op, Err: err}
		}
		all[p] = note
	}
	return all, nil
}
