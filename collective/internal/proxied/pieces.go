package proxied

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/engine/gpu/proxy"
)

// pieces are how a call is cut: of each part, so many bytes at a time.
type pieces struct {
	call              *spec.Call
	ranks             int
	inParts, outParts bool
	in, out           bool // this rank has these operands
	step              int  // bytes of a part
	count             int
}

// cut cuts a call on this rank, in areas of so many bytes. Step and count are the same on all ranks.
func cut(c *spec.Call, rank, ranks, area int) pieces {
	p := pieces{
		call: c, ranks: ranks, inParts: c.Collective.InParts(), outParts: c.Collective.OutParts(),
		in: c.Collective.HasInput(rank, c.Root), out: c.Collective.HasOutput(rank, c.Root), step: area, count: 1,
	}
	if p.inParts || p.outParts {
		p.step = area / ranks &^ 63
	}
	if c.Bytes > p.step {
		p.count = (c.Bytes + p.step - 1) / p.step
	}
	return p
}

// part is the range of a part of n bytes that the i-th piece has.
func (p *pieces) part(i, n int) (from, size int) {
	from = min(i*p.step, n)
	return from, min(p.step, n-from)
}

// inPieces makes a call piece by piece: the next one comes, and the last one goes, while the host engine has one.
func (x *errand) inPieces(c *spec.Call, p pieces, perform func(*spec.Call) error) error {
	rank, size := x.comm.Rank(), x.comm.Size()
	whole := c.Fingerprint()
	area := func(i, side int) int { return (2*(i%2) + side) * x.area }
	var came, gone [2]proxy.Mark
	fetch := func(i int) (err error) {
		in := packing{memory: x.memory, at: area(i, 0)}
		for r := range p.parts(p.in, p.inParts) {
			at, n := c.InputPart(r)
			from, n := p.part(i, n)
			in.add(c.In.Pointer().Add(at+from), n)
		}
		came[i%2], err = in.begin(x.hand, true)
		return err
	}
	if err := fetch(0); err != nil {
		return err
	}
	for i := range p.count {
		if err := x.hand.Await(came[i%2]); err != nil {
			return err
		}
		if i+1 < p.count {
			if err := fetch(i + 1); err != nil {
				return err
			}
		}
		if err := x.hand.Await(gone[i%2]); err != nil { // the output of the piece before the last
			return err
		}
		piece := p.piece(i, x.memory.Bytes()[area(i, 0):], x.memory.Bytes()[area(i, 1):])
		if err := piece.Check(rank, size); err != nil {
			return err
		}
		piece.Whole = whole
		if err := perform(&piece); err != nil {
			return err
		}
		out := packing{memory: x.memory, at: area(i, 1)}
		for r := range p.parts(p.out && (c.Collective != spec.Broadcast || !c.InPlace), p.outParts) {
			at, n := c.OutputPart(r)
			from, n := p.part(i, n)
			if p.outParts && x.comm.Masked(r) { // it stays as it is
				out.skip(n)
				continue
			}
			out.add(c.Out.Pointer().Add(at+from), n)
		}
		var err error
		if gone[i%2], err = out.begin(x.hand, false); err != nil {
			return err
		}
	}
	return nil
}

// parts is how many parts an operand has on this rank.
func (p *pieces) parts(has, divided bool) int {
	switch {
	case !has:
		return 0
	case divided:
		return p.ranks
	}
	return 1
}

// piece is the i-th piece, of operands that are packed in memory.
func (p *pieces) piece(i int, in, out []byte) spec.Call {
	c := p.call
	d := spec.Call{
		Collective: c.Collective, Op: c.Op, Scalar: c.Scalar, Root: c.Root, Algorithm: c.Algorithm,
	}
	z := max(c.DType.Size(), 1)
	lengths := func(counts []int) []int {
		if counts == nil {
			return nil
		}
		some := make([]int, len(counts))
		for r, k := range counts {
			_, n := p.part(i, k*z)
			some[r] = n / z
		}
		return some
	}
	if c.Collective.Varies() {
		d.Counts = spec.Counts{Send: lengths(c.Counts.Send), Recv: lengths(c.Counts.Recv)}
	}
	if p.in {
		d.In = p.operand(i, c.InputPart, p.parts(true, p.inParts), in)
	}
	if p.out {
		d.Out = p.operand(i, c.OutputPart, p.parts(true, p.outParts), out)
	}
	return d
}

func (p *pieces) operand(i int, part func(int) (from, n int), parts int, mem []byte) weft.Tensor {
	bytes := 0
	for r := range parts {
		_, n := part(r)
		_, n = p.part(i, n)
		bytes += n
	}
	return tensor(mem, p.call.DType, bytes/max(p.call.DType.Size(), 1))
}
