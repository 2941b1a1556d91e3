package collective

import (
	"context"
	"fmt"
	"strings"

	"github.com/weftgo/weft/engine/host"

	"github.com/weftgo/weft"
)

// DefaultScratch is the staging memory of a rank unless [Options] say otherwise, and MaxScratch the
// most they may ask for.
const (
	DefaultScratch = 4 << 20
	MaxScratch     = 1 << 30
)

// Options configures [New]. All ranks pass the same.
type Options struct {
	// Scratch is about how many bytes of each rank's memory the group uses to stage operands that
	// lie in no window. An eighth of it is the most that one round carries. 0 means
	// [DefaultScratch]; more than [MaxScratch] is refused.
	Scratch int

	// Force names algorithms that are used wherever they support the request, in this order,
	// instead of those that the tuning table prefers. Results do not depend on it.
	Force []string
}

// Group runs the collectives of one communicator. Several groups may live at once; they share
// nothing.
//
// The methods of a group are collective: every unmasked rank calls them in the same order with
// agreeing arguments, from one goroutine at a time. Masked ranks take no part: a sum leaves them
// out, an average counts only the others, and their blocks of a gathered tensor are left alone.
//
// A method returns when the rank's result is complete and its operands are the caller's again. An
// error that wraps [weft.ErrMismatch], [weft.ErrInvalid] or [weft.ErrUnsupported] is returned by
// every rank in the same call, with nothing moved, and the group goes on; any other is the
// communicator's failure, and leaves outputs undefined.
//
// Peers may read operands in windows where they lie. Such a window stays open on every
// rank until the operation has returned there: a rank that needs one which it has closed returns
// [weft.ErrClosed], and that is the communicator's failure.
type Group struct {
	forced []*Algorithm
	call   call
	closed bool
}

// New makes a group. It is collective, and the only place where the group allocates memory.
func New(ctx context.Context, comm *weft.Comm, opts Options) (*Group, error) {
	const op = "new group"
	var forced []*Algorithm
	var err error
	if comm.Device() != nil {
		err = weft.Unsupportedf("%s: collectives are between ranks on the host, and this rank is on a GPU; "+
			"join a communicator of the host's for them", op)
	}
	if opts.Scratch < 0 || opts.Scratch > MaxScratch {
		err = weft.Invalidf("%s: scratch memory of %d bytes; it may be 0 to %d", op, opts.Scratch, MaxScratch)
	}
	for _, name := range opts.Force {
		a, unknown := algorithmNamed(name)
		if unknown != nil {
			err = fmt.Errorf("%s: %w", op, unknown)
			break
		}
		forced = append(forced, a)
	}
	if opts.Scratch == 0 {
		opts.Scratch = DefaultScratch
	}
	if err := comm.Operations().VerifySame(ctx, op, fmt.Sprintf("scratch %d, algorithms %s", opts.Scratch,
		strings.Join(opts.Force, " ")), err); err != nil {
		return nil, err
	}
	rounds, err := host.New(ctx, comm, host.Config{Kind: "group", Ring: opts.Scratch, Differs: differs})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	g := &Group{forced: forced}
	g.call.Rounds = rounds
	g.call.rows = make([][]byte, comm.Size())
	g.call.ins, g.call.outs = make([][]byte, comm.Size()), make([][]byte, comm.Size())
	g.call.staging.enough, g.call.sharing.enough = tuning.Staging, tuning.Sharing
	g.call.pieces = make([][]byte, comm.Size())
	g.call.bounce = make([]byte, bounceBytes)
	g.call.inputs, g.call.outputs = make([]host.OperandRef, comm.Size()), make([]host.OperandRef, comm.Size())
	return g, nil
}

// Close gives the group's memory up on this rank. Peers that are still in an operation that this
// rank has finished may go on reading it.
func (g *Group) Close() error {
	if g.closed {
		return nil
	}
	g.closed = true
	return g.call.Window.Close()
}

// Barrier returns when every rank has entered it.
func (g *Group) Barrier(ctx context.Context, s *weft.Stream) error {
	const op = "barrier"
	c, err := g.begin(op)
	if err != nil {
		return err
	}
	return g.run(ctx, c, onHost(op, s))
}

// AllReduce reduces the inputs of all ranks elementwise, in rank order, and gives every rank the
// result. Inputs and outputs have the same type and number of elements on all ranks, any number, of
// any alignment; shapes play no part. out may be the same memory as in, on any of the ranks, but
// must not otherwise overlap it. All ranks get the same bits, in every run and by every algorithm.
//
// BF16, FP16 and fp8 sum in fp32 and round once; F32 and F64 sum in their own type; integers wrap.
// Min and Max order -0 below +0 and give NaN if any input is NaN. Avg divides the sum by the number
// of ranks before the one rounding; integers truncate toward zero.
func (g *Group) AllReduce(ctx context.Context, s *weft.Stream, out, in weft.Tensor, op weft.Op) error {
	const name = "all-reduce"
	c, err := g.begin(name)
	if err != nil {
		return err
	}
	n := in.Elems()
	c.Collective, c.Op, c.DType, c.Count, c.Bytes = AllReduce, op, in.DType, n, n*in.DType.Size()
	if err = checkAllReduce(s, out, in, op); err == nil {
		c.in, c.out = in.Raw(), out.Raw()
		c.inPlace = in.Data == out.Data
		if !c.inPlace && overlap(c.in, c.out) {
			err = weft.Invalidf("%s: input and output overlap; they may be the same memory or disjoint", name)
		}
	}
	return g.run(ctx, c, err)
}

func checkAllReduce(s *weft.Stream, out, in weft.Tensor, op weft.Op) error {
	const name = "all-reduce"
	if err := given(name, s, in, out); err != nil {
		return err
	}
	switch {
	case !op.Valid():
		return weft.Invalidf("%s: no such reduction: %v", name, op)
	case in.DType != out.DType:
		return weft.Invalidf("%s: input of %v, output of %v", name, in.DType, out.DType)
	case !reducible(in.DType):
		return weft.Unsupportedf("%s: elements of type %v cannot be reduced; convert them first", name, in.DType)
	case in.Elems() != out.Elems():
		return weft.Invalidf("%s: input of %d elements, output of %d", name, in.Elems(), out.Elems())
	}
	return checkTensors(name, in, out)
}

// AllGather gives every rank the inputs of all of them: out holds size of the communicator times
// the elements of in, rank r's at r*len(in). Inputs have the same type and number of elements on
// all ranks. in may be this rank's block of out, but must not otherwise overlap out.
func (g *Group) AllGather(ctx context.Context, s *weft.Stream, out, in weft.Tensor) error {
	const name = "all-gather"
	c, err := g.begin(name)
	if err != nil {
		return err
	}
	n := in.Elems()
	c.Collective, c.DType, c.Count, c.Bytes = AllGather, in.DType, n, n*in.DType.Size()
	switch err = given(name, s, in, out); {
	case err != nil:
	case in.DType != out.DType:
		err = weft.Invalidf("%s: input of %v, output of %v", name, in.DType, out.DType)
	case out.Elems() != n*c.Comm.Size():
		err = weft.Invalidf("%s: input of %d elements on %d ranks, output of %d", name, n, c.Comm.Size(), out.Elems())
	default:
		if err = checkTensors(name, in, out); err != nil {
			break
		}
		c.in, c.out = in.Raw(), out.Raw()
		block := c.block(c.Comm.Rank())
		c.inPlace = pointer(block) == in.Data
		if !c.inPlace && overlap(c.in, c.out) {
			err = weft.Invalidf("%s: input and output overlap; the input may be this rank's block of the "+
				"output, or apart from it", name)
		}
	}
	return g.run(ctx, c, err)
}

// Broadcast gives every rank the contents of root's tensor. Tensors have the same type and number
// of elements on all ranks.
func (g *Group) Broadcast(ctx context.Context, s *weft.Stream, t weft.Tensor, root int) error {
	const name = "broadcast"
	c, err := g.begin(name)
	if err != nil {
		return err
	}
	n := t.Elems()
	c.Collective, c.DType, c.Count, c.Bytes = Broadcast, t.DType, n, n*t.DType.Size()
	switch err = given(name, s, t); {
	case err != nil:
	case root < 0 || root >= c.Comm.Size():
		err = weft.Invalidf("%s: root %d of %d ranks", name, root, c.Comm.Size())
	case c.Comm.Masked(root):
		err = fmt.Errorf("%s: %w: root %d is %w", name, weft.ErrInvalid, root, weft.ErrMasked)
	default:
		if err = checkTensors(name, t, t); err == nil {
			c.Root = root
			c.out = t.Raw()
			c.in, c.inPlace = c.out, true
		}
	}
	return g.run(ctx, c, err)
}

// onHost refuses streams.
func onHost(name string, s *weft.Stream) error {
	if s != nil {
		return weft.Unsupportedf("%s: the host engine has no streams; pass nil", name)
	}
	return nil
}

// given refuses streams, and tensors that there are not.
func given(name string, s *weft.Stream, tensors ...weft.Tensor) error {
	for _, t := range tensors {
		if why := t.Absence(); why != "" {
			return weft.Invalidf("%s: %s", name, why)
		}
	}
	return onHost(name, s)
}

func checkTensors(name string, in, out weft.Tensor) error {
	for _, t := range [...]weft.Tensor{in, out} {
		n := t.Elems()
		if n < 0 || n > maxElems {
			return weft.Invalidf("%s: a tensor of %d elements", name, n)
		}
		if n > 0 && (t.Data == nil || t.DType.Size() == 0) {
			return weft.Invalidf("%s: a tensor of %d elements of type %v without memory", name, n, t.DType)
		}
	}
	return nil
}

func overlap(a, b []byte) bool {
	x, y := uintptr(pointer(a)), uintptr(pointer(b))
	return len(a) > 0 && len(b) > 0 && x < y+uintptr(len(b)) && y < x+uintptr(len(a))
}

// begin readies the group's call for an operation, or returns why this rank cannot even enter one.
func (g *Group) begin(op string) (*call, error) {
	c := &g.call
	if g.closed {
		return nil, fmt.Errorf("%s: group %w", op, weft.ErrClosed)
	}
	if err := c.Begin(op); err != nil {
		return nil, err
	}
	c.name = op
	c.Request = Request{Ranks: len(c.Live), Slot: c.Room()}
	c.in, c.out, c.inPlace = nil, nil, false
	return c, nil
}

// run enters the operation with the rest of the ranks. With an error in the arguments it tells them
// why this rank cannot take part.
func (g *Group) run(ctx context.Context, c *call, err error) error {
	if err != nil {
		return c.opened(ctx, c.Refuse(err), err)
	}
	c.stream = len(c.out) >= tuning.Stream
	a := eager(&c.Request, g.forced)
	if a == nil {
		if err := c.exchangeOperands(ctx); err != nil {
			return err
		}
		a = afterExchange(&c.Request, g.forced)
	}
	if err := a.run(ctx, c); err != nil {
		return err
	}
	// If this rank was told of a failure meanwhile the others may have gone on without it, and what
	// it has read may be what they wrote later.
	return c.Comm.Operations().Begin(c.name)
}
