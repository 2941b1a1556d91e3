package collective

import (
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// PointToPoint is a call of messages between pairs of ranks: see [Group.Batch].
const PointToPoint = spec.PointToPoint

// Batch collects the messages of [Group.Batch].
type Batch struct {
	transfers []Transfer
	open      bool // its function has not returned
}

// Send adds a message to a rank.
func (b *Batch) Send(t weft.Tensor, to int) {
	b.transfers = append(b.transfers, Transfer{Tensor: t, Peer: to})
}

// Recv adds a message from a rank.
func (b *Batch) Recv(t weft.Tensor, from int) {
	b.transfers = append(b.transfers, Transfer{Tensor: t, Peer: from, Receive: true})
}

// begin takes the last messages out.
func (b *Batch) begin(op string) error {
	if b.open {
		return weft.Invalidf("%s: it is inside a batch's function, whose messages would be lost; add it to that batch, "+
			"or call it after", op)
	}
	clear(b.transfers)
	b.transfers = b.transfers[:0]
	return nil
}

// Batch sends and receives messages together: those that add gives to its Batch are launched when it
// returns. They go on side by side, so ranks may exchange messages in any pattern, and a rank may send
// to itself. Messages between two ranks are matched in their order. Tensors that are received into
// overlap no other tensor of the batch. If add fails nothing is launched, and its error is returned. Within add
// other messages of the group than those of its Batch are refused.
//
// Only the ranks that messages name take part. Batches of different ranks need not be alike: one rank's
// batch may meet several calls of another, as long as the messages of each pair are in the same order.
//
// The receive of a message has its type and its number of elements, also if that is 0. Where they
// differ, both sides return an error that wraps [weft.ErrMismatch] and says both, and nothing of that
// message has moved. Other messages of the batch have, and the group goes on. On GPUs that error is the
// communicator's failure. A batch there has two thousand messages at most, and one warp for each rank and
// direction at least: more than the group's SMs have room for are refused.
func (g *Group) Batch(ctx context.Context, s *weft.Stream, add func(*Batch) error) error {
	if err := g.batch.begin("batch"); err != nil {
		return err
	}
	g.batch.open = true
	err := add(&g.batch)
	g.batch.open = false
	if err != nil {
		return err
	}
	return g.exchange(ctx, s)
}

// Send sends a message to another rank, which receives it. It returns when the rank has taken the
// message, whatever its size: two ranks that both send first wait for each other.
func (g *Group) Send(ctx context.Context, s *weft.Stream, t weft.Tensor, to int) error {
	if err := g.batch.begin("send"); err != nil {
		return err
	}
	g.batch.Send(t, to)
	return g.exchange(ctx, s)
}

// Recv receives a message from another rank. It has the type and the number of elements that the rank
// sends: see [Group.Batch].
func (g *Group) Recv(ctx context.Context, s *weft.Stream, t weft.Tensor, from int) error {
	if err := g.batch.begin("receive"); err != nil {
		return err
	}
	g.batch.Recv(t, from)
	return g.exchange(ctx, s)
}

func (g *Group) exchange(ctx context.Context, s *weft.Stream) error {
	g.messages.Collective, g.messages.Transfers = spec.PointToPoint, g.batch.transfers
	return g.run(ctx, s, &g.messages)
}
