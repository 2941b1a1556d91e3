package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
)

// call is an operation in progress. An engine has one, used again and again.
type call struct {
	*enginehost.Rounds
	spec.Request
	given *spec.Call
	name  string

	out, in []byte // nil where this rank has none

	send, recv []piece  // by index among the live ranks, as all slices here
	rows       [][]byte // where this rank reads what the others send
	ins, outs  [][]byte // operands of all ranks in windows
	stream     bool     // the output is too large to stay in a cache

	moves enginehost.Moves
	hosts *hosts // nil where all ranks share memory

	inputs, outputs []enginehost.OperandRef // once they have been exchanged
}

func newCall(rounds *enginehost.Rounds) call {
	n := rounds.Comm.Size()
	return call{
		Rounds: rounds,
		send:   make([]piece, n), recv: make([]piece, n),
		rows: make([][]byte, n), ins: make([][]byte, n), outs: make([][]byte, n),
		moves:  enginehost.NewMoves(),
		inputs: make([]enginehost.OperandRef, n), outputs: make([]enginehost.OperandRef, n),
	}
}

// begin takes what a rank asks for.
func (c *call) begin(given *spec.Call) {
	c.Request = c.request(given)
	self := c.Comm.Rank()
	c.in, c.out = nil, nil
	if given.Collective.HasInput(self, c.Root) {
		c.in = given.In.Raw()
	}
	if given.Collective.HasOutput(self, c.Root) {
		c.out = given.Out.Raw()
	}
	c.stream = len(c.out) >= enginehost.StreamBytes
}

// request is what the choice of a call's algorithm depends on, as far as it is known before ranks meet. Every form
// serves calls with a norm or words, which are plain ones here.
func (c *call) request(given *spec.Call) spec.Request {
	return RequestOf(given, c.Live, c.hosts.count(), c.Room())
}

// RequestOf is the request of a checked call of the live ranks, on so many hosts that do not share memory, by rounds
// that carry so many bytes.
func RequestOf(given *spec.Call, live []int, hosts, room int) spec.Request {
	q := given.Request(len(live), room)
	q.Variant = spec.Plain
	q.Hosts = hosts
	if q.Collective == spec.ReduceScatterV { // all ranks have all counts
		q.Sent = 0
		for _, r := range live {
			q.Sent += given.Counts.Send[r] * q.DType.Size()
		}
	}
	return q
}

// open publishes the round that opens the operation and waits for the others'. It fails on every rank
// alike unless all of them make the same call.
func (c *call) open(ctx context.Context) error {
	return c.opened(ctx, c.Open(uint64(c.given.Fingerprint())), nil)
}

func (c *call) opened(ctx context.Context, round uint64, own error) error {
	err := c.AwaitCalls(ctx, c.name, round, own, nil)
	if own == nil && errors.Is(err, weft.ErrMismatch) && c.differInCounts(round) {
		return c.compareCounts(ctx)
	}
	return err
}

// Operands are single rows. In place of a stride an input says that it is empty, an output that it is
// in place.
const (
	empty   = 1
	inPlace = 1
)

// reference is where this rank's input lies for its peers. One that some peer cannot reach has no
// window.
func (c *call) reference() enginehost.OperandRef {
	if len(c.in) == 0 {
		return enginehost.OperandRef{Stride: empty}
	}
	in, _ := c.Find(pointer(c.in), len(c.in), 0)
	return in
}

// exchangeOperands opens an operation by telling where this rank's operands are, and learns where
// the others' are.
func (c *call) exchangeOperands(ctx context.Context) error {
	out, _ := c.Find(pointer(c.out), len(c.out), 0)
	if c.given.InPlace {
		out.Stride = inPlace
	}
	c.PutOperands(c.reference(), out)
	if err := c.open(ctx); err != nil {
		return err
	}
	c.Windows = spec.Inputs | spec.Outputs
	c.MixedPlace = false
	for i, r := range c.Live {
		in, out := c.Operand(r, c.Last(), 0), c.Operand(r, c.Last(), 1)
		c.inputs[i], c.outputs[i] = in, out
		if in.Window == 0 && in.Stride != empty && (c.Collective != spec.Gather || r != c.Root) {
			c.Windows &^= spec.Inputs
		}
		if out.Window == 0 && c.Collective.HasOutput(r, c.Root) {
			c.Windows &^= spec.Outputs
		}
		if out.Stride == inPlace {
			c.Windows |= spec.InPlace
		}
		c.MixedPlace = c.MixedPlace || (out.Stride == inPlace) != c.given.InPlace
	}
	return nil
}

// peer is n bytes of an operand of the i-th live rank, read where it lies.
func (c *call) peer(i int, ref enginehost.OperandRef, n int) ([]byte, error) {
	rank := c.Live[i]
	mem, err := c.Resolve(rank, ref, c.name)
	if err != nil {
		return nil, err
	}
	if n > len(mem) {
		return nil, c.Broken(&weft.PeerError{
			Rank: rank, Op: c.name,
			Err: fmt.Errorf("its operand of %d bytes at %d of window %d ends behind it", n, ref.Offset, ref.Window),
		})
	}
	return mem[:n:n], nil
}

// close is the round after which a caller may change what peers have read in place.
func (c *call) close(ctx context.Context) error { return c.Await(ctx, c.name, c.Publish()) }

// step is the number of bytes that a rank stages at a time: at most limit, and what a round can carry.
func (c *call) step(limit int) int {
	n := min(limit, c.Slot)
	return max(n&^63, 64)
}

// chunk is the share of the i-th live rank of n bytes: they are cut at cache lines.
func (c *call) chunk(i, n int) (from, to int) { return chunkOf(i, c.Ranks, n) }

// chunkOf is the i-th of so many chunks of n bytes.
func chunkOf(i, chunks, n int) (from, to int) {
	size := ((n+chunks-1)/chunks + 63) &^ 63
	return min(i*size, n), min((i+1)*size, n)
}
