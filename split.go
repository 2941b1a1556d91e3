package weft

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weftgo/weft/bootstrap"
)

// NoColor is the color of a rank that joins none of the communicators that [Comm.Split] makes.
const NoColor = -1

// Split makes a communicator of each color: of the ranks that gave it, numbered by their keys and, where those
// are equal, in the order that they have here. Colors are from 0 on. A rank that gives [NoColor] gets nil.
//
// It is collective over the unmasked ranks. A new communicator has the options of this one, and is on the same
// GPUs. It has a failure, a mask and windows of its own, and lives as long as its own Close says. Ranks may be in
// any number of communicators, and call those that overlap in an order without cycles: see the guide to Go.
//
// If a rank's color is refused, all ranks get the error. If a rank fails later, the ranks of its color do, and the
// error names the rank by its number here. Split ends at the deadline, like every wait.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	return c.derive(ctx, "split", color, key)
}

// Duplicate makes a communicator of the same ranks, in the same order: [Comm.Split] with one color. While ranks
// are masked it is refused on all ranks; Shrink leaves them out.
func (c *Comm) Duplicate(ctx context.Context) (*Comm, error) {
	return c.derive(ctx, "duplicate", 0, c.rank)
}

// Shrink makes a communicator of the ranks that are not masked, numbered anew in their order. After a rank has
// died the others call [Comm.SetMask], and then Shrink if they want numbers without gaps or operations that
// take no masks. This communicator stays as it is.
func (c *Comm) Shrink(ctx context.Context) (*Comm, error) {
	return c.derive(ctx, "shrink", 0, c.rank)
}

// derive makes the communicators of all colors.
func (c *Comm) derive(ctx context.Context, op string, color, key int) (*Comm, error) {
	if err := c.gate.Enter(op); err != nil {
		return nil, err
	}
	defer c.gate.Leave()
	var own error
	if color < NoColor {
		own = Invalidf("%s: color %d; colors are from 0 on, and %d is none", op, color, NoColor)
	}
	if op == "duplicate" && !c.Mask().Empty() {
		own = Unsupportedf("%s: ranks %v are masked; Shrink makes a communicator without them", op, c.Mask())
	}
	place := binary.LittleEndian.AppendUint64(nil, uint64(color))
	places, err := c.verifyWith(ctx, op, op, binary.LittleEndian.AppendUint64(place, uint64(key)), own)
	if err != nil {
		return nil, err
	}
	order, err := members(op, places, color)
	if err != nil {
		return nil, err
	}
	// The first rank of each color opens the meeting. What it tells holds the secret of the new job.
	var id bootstrap.ID
	var text []byte
	first := color != NoColor && order[0] == c.rank
	if first {
		if id, own = bootstrap.NewID(c.meetingPlace()...); own == nil {
			text, own = id.MarshalText()
		}
	}
	texts, err := c.verifyWith(ctx, op, op+" meets", text, own)
	if err == nil && color != NoColor && !first {
		err = id.UnmarshalText(texts[order[0]])
	}
	if err != nil {
		return nil, errors.Join(err, id.Release())
	}
	if color == NoColor {
		return nil, nil
	}
	return c.meet(ctx, op, order, id)
}

// meetingPlace says where ranks of this communicator can meet.
func (c *Comm) meetingPlace() []bootstrap.IDOption {
	switch name := os.Getenv("WEFT_INTERFACE"); {
	case c.remote < 0:
		return []bootstrap.IDOption{bootstrap.OnLoopback()}
	case name != "":
		return []bootstrap.IDOption{bootstrap.OnInterface(name)}
	case c.met.IsValid():
		return []bootstrap.IDOption{bootstrap.OnInterface(c.met.String())}
	}
	return nil
}

// members are the ranks of a color, by their new numbers.
func members(op string, places [][]byte, color int) ([]int, error) {
	const size = 16
	var order []int
	for r, p := range places {
		switch {
		case p == nil: // masked
		case len(p) != size:
			return nil, &PeerError{Rank: r, Op: op, Err: fmt.Errorf("%w: %d bytes of color and key", ErrMismatch, len(p))}
		case int(int64(binary.LittleEndian.Uint64(p))) == color:
			order = append(order, r)
		}
	}
	key := func(r int) int64 { return int64(binary.LittleEndian.Uint64(places[r][8:])) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(key(a), key(b)) })
	return order, nil
}

// meet joins the communicator of ranks that have numbers by their order.
func (c *Comm) meet(ctx context.Context, op string, order []int, id bootstrap.ID) (*Comm, error) {
	ctx, stop := c.whileSound(ctx, op)
	defer stop()
	o := c.options
	o.bootstrap = nil
	o.dial = func(ctx context.Context) (bootstrap.Bootstrap, error) {
		return id.Dial(ctx, slices.Index(order, c.rank), len(order))
	}
	o.foreign = c.ends.foreign || !slices.IsSorted(order) || len(order) != c.size
	made, err := joinAs(ctx, o)
	if err == nil {
		made.met = cmp.Or(c.met, made.met) // the same hosts as here
		return made, nil
	}
	err = errors.Join(err, id.Release())
	if fault := context.Cause(ctx); fault != nil {
		if _, ok := errors.AsType[*PeerError](fault); ok { // this communicator knows what happened
			return nil, fault
		}
	}
	if peer, ok := errors.AsType[*PeerError](err); ok && peer.Rank >= 0 && peer.Rank < len(order) {
		return nil, &PeerError{
			Rank: order[peer.Rank], Op: op,
			Err: fmt.Errorf("rank %d of the new communicator: %w", peer.Rank, peer.Err),
		}
	}
	return nil, fmt.Errorf("%s: %w", op, err)
}

// whileSound is a context that ends when the communicator fails, and at its deadline.
func (c *Comm) whileSound(ctx context.Context, op string) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ctx, expire := awake(ctx, c.Deadline())
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(c.control.Pace(5 * time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := c.begin(op); err != nil {
					cancel(err)
					return
				}
			}
		}
	})
	return ctx, func() {
		expire()
		cancel(nil)
		watching.Wait()
	}
}
