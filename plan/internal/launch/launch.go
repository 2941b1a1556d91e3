package launch

import (
	"fmt"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan/spec"
)

// Launch is one run of a plan, on one rank.
type Launch struct {
	Out, In weft.Tensor // of one element type; one of them may be empty
	DType   weft.DType
	Chunk   int // bytes
}

// Check makes a launch of operands, or says what is wrong with them.
func (p *Plan) Check(rank int, out, in weft.Tensor) (l Launch, err error) {
	l = Launch{Out: out, In: in, DType: in.DType}
	if l.DType == weft.InvalidDType {
		l.DType = out.DType
	}
	for _, t := range []*weft.Tensor{&l.In, &l.Out} {
		if why := t.Absence(); why != "" {
			return l, weft.Invalidf("%s: %s", p.Name, why)
		}
		switch {
		case t.Elems() < 0 || t.Bytes() > 0 && t.Data == nil:
			return l, weft.Invalidf("%s: %d elements without memory", p.Name, t.Elems())
		case t.Elems() > 0 && t.DType != l.DType && !t.IsZero():
			return l, weft.Invalidf("%s: input of %v, output of %v", p.Name, in.DType, out.DType)
		}
	}
	if err := p.types(l.DType); err != nil {
		return l, err
	}
	if l.Chunk, err = p.chunk(rank, bytesOf(in), bytesOf(out)); err != nil {
		return l, err
	}
	return l, p.placed(rank, &l)
}

// Checked makes a launch of operands that were checked, and that fit: see [Plan.Fits].
func (p *Plan) Checked(rank int, t weft.DType, out, in weft.Tensor) Launch {
	l := Launch{Out: out, In: in, DType: t}
	if r := &p.File.Ranks[rank]; r.Input > 0 {
		l.Chunk = in.Bytes() / r.Input
	} else if r.Output > 0 {
		l.Chunk = out.Bytes() / r.Output
	}
	return l
}

// Fits says why the plan cannot run on operands of so many bytes on a rank.
func (p *Plan) Fits(rank int, t weft.DType, in, out int) error {
	if err := p.types(t); err != nil {
		return err
	}
	_, err := p.chunk(rank, in, out)
	return err
}

// Demands says in an error what calls of a group the plan fits: see [Plan.Fits].
func (p *Plan) Demands(rank int) string {
	f, r := p.File, &p.File.Ranks[rank]
	text := fmt.Sprintf("takes inputs of a multiple of %d bytes, %d for each chunk", f.Alignment*r.Input, f.Alignment)
	if f.Collective == spec.Broadcast {
		text += fmt.Sprintf(", of root %d", rank)
	}
	if f.MinBytes > 0 || f.MaxBytes < spec.DefaultMaxBytes {
		side := "inputs"
		if f.Collective == spec.AllGather {
			side = "outputs"
		}
		text += fmt.Sprintf(", %s of %d to %d bytes", side, f.MinBytes, f.MaxBytes)
	}
	if len(p.Reductions) > 0 {
		text += fmt.Sprintf(", and elements whose size divides %d", p.elements)
	}
	return text
}

// bytesOf is the size of a tensor, which may be none.
func bytesOf(t weft.Tensor) int {
	if t.IsZero() {
		return 0
	}
	return t.Bytes()
}

// types says why the plan cannot run on elements of a type.
func (p *Plan) types(t weft.DType) error {
	switch size := t.Size(); {
	case len(p.Reductions) == 0:
		return nil
	case t == weft.InvalidDType:
		return weft.Invalidf("%s: no operand says what it reduces elements of; give operands, of 0 elements for a message "+
			"of none", p.Name)
	case size == 0 || t == weft.UE8M0:
		return weft.Unsupportedf("%s: elements of type %v cannot be reduced; convert them first", p.Name, t)
	case p.elements%size != 0:
		return weft.Unsupportedf("%s: its alignment or its windows cut elements of type %v; make them multiples of %d bytes",
			p.Name, t, size)
	}
	return nil
}

// chunk is the bytes of a chunk of operands.
func (p *Plan) chunk(rank, in, out int) (int, error) {
	f, r := p.File, &p.File.Ranks[rank]
	if r.Input == 0 && r.Output == 0 {
		if in != 0 || out != 0 {
			return 0, weft.Invalidf("%s: it has no operands, and the launch has some", p.Name)
		}
		return f.Alignment, nil
	}
	chunk := -1
	for _, o := range []struct {
		name          string
		bytes, chunks int
	}{{"input", in, r.Input}, {"output", out, r.Output}} {
		switch {
		case o.chunks == 0 && o.bytes != 0:
			return 0, weft.Invalidf("%s: rank %d has no %s, and the launch has one", p.Name, rank, o.name)
		case o.chunks == 0:
		case o.bytes%(f.Alignment*o.chunks) != 0:
			return 0, weft.Invalidf("%s: %s of %d bytes; it takes a multiple of %d: %d chunks of %d", p.Name, o.name, o.bytes,
				f.Alignment*o.chunks, o.chunks, f.Alignment)
		case chunk >= 0 && chunk != o.bytes/o.chunks:
			return 0, weft.Invalidf("%s: input of %d bytes in %d chunks, output of %d in %d; chunks must be alike", p.Name, in,
				r.Input, out, r.Output)
		default:
			chunk = o.bytes / o.chunks
		}
	}
	// The same on all ranks, for these may have different operands.
	n := uint64(in)
	if f.Collective == spec.AllGather || r.Input == 0 {
		n = uint64(out)
	}
	if n < f.MinBytes || n > f.MaxBytes {
		return 0, weft.Invalidf("%s: a message of %d bytes; it is for %d to %d", p.Name, n, f.MinBytes, f.MaxBytes)
	}
	return chunk, nil
}

// placed compares where operands lie with what the plan was written for. Collectives without a definition place them
// as they like.
func (p *Plan) placed(rank int, l *Launch) error {
	f := p.File
	known := slices.Contains([]string{spec.AllReduce, spec.AllGather, spec.ReduceScatter, spec.AllToAll}, f.Collective)
	ins, outs := uintptr(bytesOf(l.In)), uintptr(bytesOf(l.Out))
	if !known || ins == 0 || outs == 0 {
		return nil
	}
	in, out := uintptr(l.In.Data), uintptr(l.Out.Data)
	a, b := in, out
	switch f.Collective {
	case spec.AllGather:
		b += uintptr(rank) * ins
	case spec.ReduceScatter:
		a += uintptr(rank) * outs
	}
	switch {
	case f.InPlace && a != b:
		return weft.Unsupportedf("%s: it is for operands in place; give an output that is the input, or that has it as "+
			"this rank's part", p.Name)
	case !f.InPlace && in < out+outs && out < in+ins:
		return weft.Unsupportedf("%s: it is for operands apart; give an output that does not overlap the input", p.Name)
	}
	return nil
}
