package collective

import (
	"context"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/collective/spec"
)

// Sweep is a collective over sizes.
type Sweep struct {
	Kind      string  // the name of one of Kinds
	Bytes     []int64 // as nccl-tests counts them; rounded down to whole elements of each rank
	DType, Op string
	Algorithm string // empty: the library's choice
	Plan      string // the file of a plan, which runs in its place
	Multiple  int    // of so many bytes are parts; 0: of one element
	InPlace   bool
	Hidden    int  // all-reduces go on to normalise rows of so many numbers; 0: they do not
	Apart     bool // with a kernel of its own

	Heap  bool // operands lie outside windows
	Fresh bool // on the host: a rank writes its input before each operation, as a program does
	timing.Effort
}

// root is that of collectives that have one.
const root = 0

// exchange is a collective of one size on one rank.
type exchange struct {
	*Kind
	call      collective.Call
	me, ranks int
	inPlace   bool
	fresh     bool
	alone     bool // the other ranks are a loopback

	in, out     *content // nil: this rank has no such operand
	size        int      // bytes of the operation
	inAt, outAt int      // where operands begin in memory of so many bytes
	algorithm   string   // that ran
	behind      string   // what ran behind it
	scalar      []byte
}

// newExchange makes an exchange of at most so many bytes.
func (s *Sweep) newExchange(bytes int64, me, ranks int, alone bool) (*exchange, error) {
	dtype, err := weft.ParseDType(s.DType)
	if err != nil {
		return nil, err
	}
	op, err := weft.ParseOp(s.Op)
	if err != nil {
		return nil, err
	}
	k := *Named(s.Kind)
	x := &exchange{Kind: &k, me: me, ranks: ranks, inPlace: s.InPlace, fresh: s.Fresh, alone: alone}
	x.call = collective.Call{Collective: k.Collective, Op: op, Root: root, DType: dtype}
	x.call.Count = k.count(bytes, dtype.Size(), ranks)
	if s.Hidden > 0 {
		x.call.Count = max(1, x.call.Count/s.Hidden) * s.Hidden
	}
	if s.Multiple > 0 {
		unit := max(1, s.Multiple/dtype.Size())
		x.call.Count = max(1, x.call.Count/unit) * unit
	}
	part := x.call.Count * dtype.Size()
	x.size = part
	if k.inParts || k.outParts {
		x.size *= ranks
	}
	if op == weft.PreMulSum && k.Collective.Reduces() {
		k.run = do
		if x.scalar, err = appendNumber(nil, spec.ScalarType(dtype), factor); err != nil {
			return nil, err
		}
		x.call.Scalar = weft.TensorAt(x.scalar, spec.ScalarType(dtype), 1)
	}
	if s.InPlace && k.inParts != k.outParts {
		x.inAt, x.outAt = me*part*b2i(k.outParts), me*part*b2i(k.inParts)
	}
	if k.Collective == collective.Barrier {
		return x, nil
	}
	if k.Collective.HasInput(me, root) {
		if x.in, err = x.content(part, k.inParts, x.input); err != nil {
			return nil, err
		}
	}
	if k.Collective.HasOutput(me, root) {
		x.out, err = x.content(part, k.outParts, x.output)
	}
	return x, err
}

func (x *exchange) content(part int, parts bool, unit func(of, part int) ([]byte, error)) (*content, error) {
	n := 1
	if parts {
		n = x.ranks
	}
	c := &content{part: part, units: make([][]byte, n)}
	for of := range c.units {
		var err error
		if c.units[of], err = unit(of, part); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (x *exchange) reduction() reduction {
	return reduction{x.call.DType, x.call.Op, x.ranks, x.alone}
}

// input is the part of this rank's input that goes to a rank.
func (x *exchange) input(to, part int) ([]byte, error) {
	if x.Collective.Reduces() {
		return x.reduction().unit(x.me, to, part)
	}
	return moved(x.me, to, part), nil
}

// output is the part of this rank's output that comes from a rank.
func (x *exchange) output(from, part int) ([]byte, error) {
	switch {
	case x.Collective == collective.ReduceScatter:
		return x.reduction().unit(-1, x.me, part)
	case x.Collective.Reduces():
		return x.reduction().unit(-1, 0, part)
	case x.alone && x.Collective == collective.PointToPoint: // the rank before sends what this one does
		return moved(x.me, 0, part), nil
	case x.alone && from != x.me:
		return make([]byte, longUnit), nil
	case x.Collective == collective.PointToPoint:
		return moved((x.me+x.ranks-1)%x.ranks, 0, part), nil
	case x.inParts: // from every rank, or from the root
		return moved(from, x.me, part), nil
	default:
		return moved(from, 0, part), nil
	}
}

// operands gives the call its tensors.
func (x *exchange) operands(in, out weft.Tensor) {
	if x.Collective == collective.PointToPoint {
		x.call.Transfers = []collective.Transfer{
			{Tensor: in, Peer: (x.me + 1) % x.ranks},
			{Tensor: out, Peer: (x.me + x.ranks - 1) % x.ranks, Receive: true},
		}
		return
	}
	x.call.In, x.call.Out = in, out
}

// bytes are those of an iteration on one rank.
func (x *exchange) bytes() timing.Bytes {
	return timing.Bytes{Wire: x.wire(float64(x.ranks)) * float64(x.size)}
}

// run makes the call.
func (x *exchange) run(ctx context.Context, g *collective.Group, s *weft.Stream) error {
	err := x.Kind.run(ctx, g, s, &x.call)
	x.algorithm = g.Algorithm() + x.behind
	return err
}

// wrongElements counts those of a piece of the output.
func (x *exchange) wrongElements(got []byte, at int) int64 {
	if x.out.holds(got, at) {
		return 0
	}
	size := x.call.DType.Size()
	if !x.alone || !x.Collective.Reduces() {
		return x.out.wrong(got, at, size, false)
	}
	n := x.out.wrong(got, at, size, true)
	if first := got[:min(len(got), size)]; n == 0 && at == 0 { // this rank's own
		n = x.out.wrong(first, 0, size, false)
	}
	return n
}

// verdict is an error if elements are wrong.
func (x *exchange) verdict(elements int64) error {
	if elements == 0 {
		return nil
	}
	return &timing.WrongError{Elements: elements, Text: fmt.Sprintf("%s of the result of %s of %s are wrong",
		measure.Count(int(elements), "element"), x.Name, measure.Size(int64(x.size)))}
}

// message is what rows say of the exchange.
func (x *exchange) message() *measure.Collective {
	return &measure.Collective{Bytes: int64(x.size), Algorithm: x.algorithm, Bus: x.bus(float64(x.ranks))}
}
