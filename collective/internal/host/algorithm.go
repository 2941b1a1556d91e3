package host

import (
	"context"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
)

// algorithm is one way to run a collective. Each stands in a file of its own and is listed in
// algorithms; the table in tuning.go says when it is chosen.
type algorithm struct {
	spec.Algorithm

	run func(ctx context.Context, c *call) error
}

// algorithms is the registry.
var algorithms = []*algorithm{
	&barrierEager,
	&allReduceEager, &allReducePipeline, &allReduceTwoShot, &allReduceWindow, &allReducePull,
	&allGatherEager, &allGatherPipeline, &allGatherWindow,
	&broadcastEager, &broadcastPipeline, &broadcastWindow,
}

// Algorithms lists all algorithms.
func Algorithms() []spec.Algorithm {
	all := make([]spec.Algorithm, len(algorithms))
	for i, a := range algorithms {
		all[i] = a.Algorithm
	}
	return all
}

func algorithmNamed(name string) *algorithm {
	for _, a := range algorithms {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// call is an operation in progress. An engine has one, used again and again.
type call struct {
	*enginehost.Rounds
	spec.Request
	given *spec.Call
	name  string

	// What the caller passed. AllReduce and AllGather read in and write out; Broadcast uses out
	// alone.
	out, in []byte
	inPlace bool

	rows   [][]byte // one source a rank, for reductions
	pieces [][]byte // parts of them
	ins    [][]byte // operands of all ranks in windows
	outs   [][]byte
	bounce []byte // a result on its way to memory past the caches
	stream bool   // the output is too large to stay in a cache

	staging, sharing pace // of copies and of reductions that others read

	inputs, outputs []enginehost.OperandRef // by index among the live ranks, once they have been exchanged
}

// open publishes the round that opens the operation, with data of this rank in it, and waits for
// the others'. It fails on every rank alike unless all of them make the same call.
func (c *call) open(ctx context.Context, data []byte) error {
	c.stage(c.Fill(len(data)), data)
	return c.opened(ctx, c.Open(uint64(c.given.Fingerprint())), nil)
}

func (c *call) opened(ctx context.Context, round uint64, own error) error {
	return c.AwaitCalls(ctx, c.name, round, own, nil)
}

// inPlace is the stride of an output that is the input. Operands are single rows, without a stride.
const inPlace = 1

// exchangeOperands opens an operation by telling where this rank's operands are, and learns where
// the others' are. Those that some peer cannot reach have no window.
func (c *call) exchangeOperands(ctx context.Context) error {
	in, _ := c.Find(pointer(c.in), len(c.in), 0)
	out, _ := c.Find(pointer(c.out), len(c.out), 0)
	if c.inPlace {
		out.Stride = inPlace
	}
	c.PutOperands(in, out)
	round := c.Open(uint64(c.given.Fingerprint()))
	if err := c.opened(ctx, round, nil); err != nil {
		return err
	}
	c.Windows = spec.Inputs | spec.Outputs
	for i, r := range c.Live {
		in, out := c.Operand(r, round, 0), c.Operand(r, round, 1)
		c.inputs[i], c.outputs[i] = in, out
		if in.Window == 0 && (c.Collective != spec.Broadcast || r == c.Root) {
			c.Windows &^= spec.Inputs
		}
		if out.Window == 0 {
			c.Windows &^= spec.Outputs
		}
		if out.Stride == inPlace {
			c.Windows |= spec.InPlace
		}
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

// input is the whole input of the i-th live rank, read where it lies.
func (c *call) input(i int) ([]byte, error) {
	if i == c.Self {
		return c.in, nil
	}
	return c.peer(i, c.inputs[i], c.Bytes)
}

// output is the first n bytes of the output of the i-th live rank, read where they lie.
func (c *call) output(i, n int) ([]byte, error) {
	if i == c.Self {
		return c.out[:n], nil
	}
	return c.peer(i, c.outputs[i], n)
}

// close is the round after which a caller may change what peers have read in place.
func (c *call) close(ctx context.Context) error { return c.Await(ctx, c.name, c.Publish()) }

// step is the number of input bytes that a pipelined algorithm stages at a time: at most limit, and
// what a round can carry.
func (c *call) step(limit int) int {
	n := min(limit, c.Slot)
	return max(n&^63, 64)
}

// chunk is the share of the i-th live rank of n bytes: they are cut at cache lines.
func (c *call) chunk(i, n int) (from, to int) {
	size := (n + c.Ranks - 1) / c.Ranks
	size = (size + 63) &^ 63
	return min(i*size, n), min((i+1)*size, n)
}
