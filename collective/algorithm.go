package collective

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft/engine/host"

	"github.com/weftgo/weft"
)

// Algorithm is one way to run a collective. Each stands in a file of its own and is listed in
// [Algorithms]; the table in tuning.go says when it is chosen.
type Algorithm struct {
	// Name is unique among all algorithms: "all-reduce/pipeline".
	Name       string
	Collective Collective

	// Supports says whether the algorithm can do what is asked. Like the choice itself it must
	// depend on the request alone.
	Supports func(Request) bool

	// eager algorithms send their data in the round that opens the operation, before anybody knows
	// what the others' operands look like.
	eager bool

	run func(ctx context.Context, c *call) error
}

// algorithms is the registry.
var algorithms = []*Algorithm{
	&barrierEager,
	&allReduceEager, &allReducePipeline, &allReduceTwoShot, &allReduceWindow, &allReducePull,
	&allGatherEager, &allGatherPipeline, &allGatherWindow,
	&broadcastEager, &broadcastPipeline, &broadcastWindow,
}

// Algorithms lists all algorithms.
func Algorithms() []Algorithm {
	all := make([]Algorithm, len(algorithms))
	for i, a := range algorithms {
		all[i] = *a
	}
	return all
}

func algorithmNamed(name string) (*Algorithm, error) {
	for _, a := range algorithms {
		if a.Name == name {
			return a, nil
		}
	}
	return nil, weft.Invalidf("there is no algorithm %q", name)
}

// call is an operation in progress. A group has one, used again and again.
type call struct {
	*host.Rounds
	Request
	name string

	// What the caller passed. AllReduce and AllGather read in and write out; Broadcast uses out
	// alone.
	out, in []byte
	inPlace bool

	rows   [][]byte // one source a rank, for reductions
	pieces [][]byte // parts of them
	ins    [][]byte // everyone's operands in windows
	outs   [][]byte
	bounce []byte // a result on its way to memory past the caches
	stream bool   // the output is too large to stay in a cache

	staging, sharing pace    // of copies and of reductions that others read
	places           []place // by place among the live ranks, once they have been exchanged
}

// open publishes the round that begins the operation, with data of this rank in it, and waits for
// the others'. It fails on every rank alike unless all of them make the same call.
func (c *call) open(ctx context.Context, data []byte) error {
	s := c.Next()
	*s.Call = uint64(c.fingerprint())
	c.stage(c.Fill(len(data)), data)
	return c.opened(ctx, c.Publish(), nil)
}

func (c *call) opened(ctx context.Context, round uint64, own error) error {
	if err := c.Await(ctx, c.name, round); err != nil {
		return err
	}
	return c.Compare(c.name, round, own)
}

// exchangePlaces opens an operation by telling where this rank's operands are, and learns where the
// others' are.
func (c *call) exchangePlaces(ctx context.Context) error {
	s := c.Next()
	*s.Call = uint64(c.fingerprint())
	p := placeIn(s)
	*p = place{}
	p.input, p.inputAt = c.standing(c.in)
	p.output, p.outputAt = c.standing(c.out)
	if c.inPlace {
		p.inPlace = 1
	}
	round := c.Publish()
	if err := c.opened(ctx, round, nil); err != nil {
		return err
	}
	c.Windows = Inputs | Outputs
	c.places = c.places[:0]
	for _, r := range c.Live {
		p := *placeIn(c.At(r, round))
		c.places = append(c.places, p)
		if p.input == 0 && (c.Collective != Broadcast || r == c.Root) {
			c.Windows &^= Inputs
		}
		if p.output == 0 {
			c.Windows &^= Outputs
		}
		if p.inPlace != 0 {
			c.Windows |= InPlace
		}
	}
	return nil
}

// standing is where peers find memory of this rank: in which window, at which offset. Window 0
// means that some of them cannot.
func (c *call) standing(mem []byte) (window, offset uint64) {
	w, at, ok := c.Comm.Operations().Find(pointer(mem), len(mem))
	if !ok {
		return 0, 0
	}
	for i, r := range c.Live {
		if i != c.Own && w.Peer(r) == nil {
			return 0, 0 // that rank was masked when the window was made
		}
	}
	return w.ID(), uint64(at)
}

// peer is the memory of the i-th live rank at an offset of one of its windows. A window that was
// closed here is this rank's failure, and not a refusal: that ranks agree takes a round, and
// others, who have everything they need, may be half-way through already.
func (c *call) peer(i int, window, offset uint64, n int) ([]byte, error) {
	rank := c.Live[i]
	w, open := c.Comm.Operations().Window(window)
	if open {
		if mem := w.Peer(rank); offset <= uint64(len(mem)) && uint64(n) <= uint64(len(mem))-offset {
			return mem[offset:][:n:n], nil
		}
	}
	// A rank that was left out while it stood still may be looking at later rounds of the others.
	if err := c.Comm.Operations().Begin(c.name); err != nil {
		return nil, err
	}
	if !open {
		return nil, c.Comm.Operations().Fail(fmt.Errorf("%s: an operand of rank %d lies in window %d, which this "+
			"rank has %w", c.name, rank, window, weft.ErrClosed))
	}
	return nil, c.Comm.Operations().Fail(fmt.Errorf("%s: rank %d has an operand of %d bytes at %d of window %d, which "+
		"ends before", c.name, rank, n, offset, window))
}

// input is the whole input of the i-th live rank, read where it stands.
func (c *call) input(i int) ([]byte, error) {
	if i == c.Own {
		return c.in, nil
	}
	p := &c.places[i]
	return c.peer(i, p.input, p.inputAt, c.Bytes)
}

// output is the first n bytes of the output of the i-th live rank, read where they stand.
func (c *call) output(i, n int) ([]byte, error) {
	if i == c.Own {
		return c.out[:n], nil
	}
	p := &c.places[i]
	return c.peer(i, p.output, p.outputAt, n)
}

// close is the round after which a caller may change what peers have read in place.
func (c *call) close(ctx context.Context) error { return c.Await(ctx, c.name, c.Publish()) }

// chunk is the number of input bytes that a pipelined algorithm handles in one round: at most
// limit, and what a slot can carry.
func (c *call) chunk(limit int) int {
	n := min(limit, c.Slot)
	return max(n&^63, 64)
}

// part is the share of the i-th live rank of n bytes: they are cut at cache lines.
func (c *call) part(i, n int) (from, to int) {
	size := (n + c.Ranks - 1) / c.Ranks
	size = (size + 63) &^ 63
	return min(i*size, n), min((i+1)*size, n)
}

// place is where a rank's operands stand, if peers can reach them. It fits the near payload of a
// slot.
type place struct {
	input, inputAt   uint64 // window and offset; window 0 = none
	output, outputAt uint64
	inPlace          uint64
}

var _ [host.NearBytes - int(unsafe.Sizeof(place{}))]struct{}

// placeIn is the place in a slot.
func placeIn(s *host.Slot) *place {
	return (*place)(unsafe.Pointer(unsafe.SliceData(s.InLine(int(unsafe.Sizeof(place{}))))))
}
