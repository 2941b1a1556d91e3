package spec

import "github.com/weftgo/weft"

// Norm makes an all-reduce go on with the sums, row by row:
//
//	y = the sum, rounded to the input's type: what the all-reduce alone gives
//	r = y + residual, an fp32 sum that is rounded to the input's type; without a residual, y
//	x = r / sqrt(mean of r*r + Eps) * gamma, in fp32, rounded to the input's type
//	q = x as e4m3 numbers with scales, if the output is of that type
//
// Each line is an operation of its own elsewhere, and the bits are those of that operation: a caller
// that has fused nothing gets the same. [simd.SumOfSquares] says in which order squares are added.
type Norm struct {
	// Residual and ResidualOut are rows of the input's type: what is added, and where r goes. Both are optional,
	// and may be the same memory. Ranks may have different residuals.
	Residual, ResidualOut weft.Tensor

	Gamma weft.Tensor // one number a column, of the input's type
	Eps   float32

	// An output of e4m3 numbers has one of these two. Scales are an output: a scale for each 128 columns of a
	// row, as fp32 numbers or as UE8M0 exponents, by the rules of package ep's dispatch. Scale is one fp32 number
	// by which x is divided: x times the reciprocal, rounded, and saturated at 448.
	Scales, Scale weft.Tensor

	// PowerOfTwoScales rounds fp32 Scales up to powers of two. UE8M0 scales always are.
	PowerOfTwoScales bool

	Tokens, Hidden int // rows and columns; Check derives them, as what follows
	Quant          Quant
}

// Quant is how the output is quantised.
type Quant uint8

// The ways to quantise: not at all; a scale a group of columns as fp32, as fp32 that is a power of two, as an
// exponent; one scale that is given.
const (
	QuantNone Quant = iota
	QuantFP32
	QuantPow2
	QuantUE8M0
	QuantStatic
)

// QuantGroup is how many columns share a scale.
const QuantGroup = 128

// Bounds of a Norm, from its place in a [Fingerprint].
const (
	hiddenBits = 17
	tokenBits  = countBits - hiddenBits
)

// opNorm stands in a fingerprint's place of the reduction for a sum with a Norm.
const opNorm = 7

// checkNorm is Check of an all-reduce with a Norm.
func (c *Call) checkNorm() error {
	n, name := c.Norm, c.Name()
	if c.Collective != AllReduce || c.Op != weft.Sum || c.Words.Given() {
		return weft.Invalidf("%v %v: a norm goes with an all-reduce sum, and with no words", c.Collective, c.Op)
	}
	elems, err := checkTensor(name, "input", &c.In)
	if err != nil {
		return err
	}
	c.DType = c.In.DType
	if c.DType != weft.BFloat16 && c.DType != weft.Float16 && c.DType != weft.Float32 {
		return weft.Unsupportedf("%s: rows of %v; they may be bf16, fp16 or fp32", name, c.DType)
	}
	n.Hidden = n.Gamma.Elems()
	if n.Hidden < 1 || n.Hidden >= 1<<hiddenBits || elems%n.Hidden != 0 || elems/n.Hidden >= 1<<tokenBits {
		return weft.Invalidf("%s: input of %d elements is no rows of %d, of which gamma has one each", name, elems,
			n.Hidden)
	}
	n.Tokens, c.Count, c.Bytes = elems/n.Hidden, elems, elems*c.DType.Size()
	out := c.DType
	if c.Out.DType == weft.Float8E4M3 {
		out = weft.Float8E4M3
	}
	for _, t := range [...]struct {
		what     string
		tensor   *weft.Tensor
		dtype    weft.DType
		elems    int
		optional bool
	}{
		{"output", &c.Out, out, elems, false},
		{"gamma", &n.Gamma, c.DType, n.Hidden, false},
		{"residual", &n.Residual, c.DType, elems, true},
		{"residual output", &n.ResidualOut, c.DType, elems, true},
		{"scale", &n.Scale, weft.Float32, 1, true},
	} {
		if t.optional && t.tensor.IsZero() {
			continue
		}
		if k, err := checkTensor(name, t.what, t.tensor); err != nil {
			return err
		} else if t.tensor.DType != t.dtype || k != t.elems {
			return weft.Invalidf("%s: %s of %d %v; it takes %d %v", name, t.what, k, t.tensor.DType, t.elems, t.dtype)
		}
	}
	return firstError(c.checkQuant(), c.checkNormOverlap())
}

// checkQuant derives how the output is quantised.
func (c *Call) checkQuant() error {
	n, name := c.Norm, c.Name()
	scales, scale := !n.Scales.IsZero(), !n.Scale.IsZero()
	switch quantised := c.Out.DType == weft.Float8E4M3; {
	case !quantised && (scales || scale):
		return weft.Invalidf("%s: an output of %v has no scales", name, c.Out.DType)
	case !quantised:
		n.Quant = QuantNone
		return nil
	case scales == scale:
		return weft.Invalidf("%s: an output of e4m3 has scales, or one scale", name)
	case scale:
		n.Quant = QuantStatic
		return nil
	}
	groups := n.Hidden / QuantGroup
	k, err := checkTensor(name, "scales", &n.Scales)
	switch d := n.Scales.DType; {
	case err != nil:
		return err
	case n.Hidden%QuantGroup != 0:
		return weft.Unsupportedf("%s: rows of %d columns, of which %d share a scale; pad them, or give one scale", name,
			n.Hidden, QuantGroup)
	case k != n.Tokens*groups:
		return weft.Invalidf("%s: %d scales; %d rows take %d each", name, k, n.Tokens, groups)
	case d == weft.UE8M0:
		n.Quant = QuantUE8M0
	case d != weft.Float32:
		return weft.Invalidf("%s: scales of %v; they may be fp32 or UE8M0", name, d)
	case n.PowerOfTwoScales:
		n.Quant = QuantPow2
	default:
		n.Quant = QuantFP32
	}
	return nil
}

// checkNormOverlap finds out whether the call is in place, and refuses other operands that overlap.
func (c *Call) checkNormOverlap() error {
	n := c.Norm
	all := [...]struct {
		what   string
		tensor *weft.Tensor
		writes bool
	}{
		{"output", &c.Out, true},
		{"residual output", &n.ResidualOut, true},
		{"scales", &n.Scales, true},
		{"input", &c.In, false},
		{"residual", &n.Residual, false},
		{"gamma", &n.Gamma, false},
		{"scale", &n.Scale, false},
	}
	c.InPlace = n.Tokens > 0 && c.Out.Data == c.In.Data && c.Out.DType == c.DType
	for i := range all {
		for j := range i {
			a, b := all[j].tensor, all[i].tensor
			pair := a == &c.Out && b == &c.In && c.InPlace ||
				a == &n.ResidualOut && b == &n.Residual && a.Data == b.Data
			if !all[j].writes || pair || !overlap(a, b) {
				continue
			}
			return weft.Invalidf("%s: %s and %s overlap; the output may be the input, and the residual output the residual",
				c.Name(), all[j].what, all[i].what)
		}
	}
	return nil
}

// overlap says whether two tensors have memory in common.
func overlap(a, b *weft.Tensor) bool {
	if a.IsZero() || b.IsZero() || a.Bytes() == 0 || b.Bytes() == 0 {
		return false
	}
	from, at := uintptr(a.Data), uintptr(b.Data)
	return from < at+uintptr(b.Bytes()) && at < from+uintptr(a.Bytes())
}

// fingerprint is what ranks' norms must have in common: it takes the places of the reduction, the root and
// the count.
func (n *Norm) fingerprint() Fingerprint {
	return opNorm<<opShift | Fingerprint(n.Quant)<<rootShift | Fingerprint(n.Tokens)<<hiddenBits | Fingerprint(n.Hidden)
}
