package spec

import (
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/rankset"
)

// A Fingerprint is what ranks' calls must have in common, in one word. Nothing is lost but the counts
// of V forms: equal words are equal calls.
//
//	63      0: see package engine/host
//	59..62  collective
//	54..58  element type
//	51..53  reduction, or 7: a sum with a Norm
//	41..50  root, or a Norm's quantisation, or 1: with Words
//	0..40   elements of a part, or the digest of a V form's counts, or a Norm's rows (24 bits) and columns
type Fingerprint uint64

const (
	countBits  = 41
	maxElems   = 1<<countBits - 1
	rootShift  = countBits
	rootBits   = 10
	opShift    = rootShift + rootBits
	dtypeShift = opShift + 3
	kindShift  = dtypeShift + 5
)

// Fingerprint is the call's.
func (c *Call) Fingerprint() Fingerprint {
	if c.Whole != 0 {
		return c.Whole
	}
	if c.Norm != nil {
		return Fingerprint(c.Collective)<<kindShift | Fingerprint(c.DType)<<dtypeShift | c.Norm.fingerprint()
	}
	f := Fingerprint(c.Collective)<<kindShift | Fingerprint(c.DType)<<dtypeShift | Fingerprint(c.Count)
	if c.Collective.Reduces() {
		f |= Fingerprint(c.Op) << opShift
	}
	if c.Words.Given() {
		f |= 1 << rootShift
	}
	if c.Collective.Rooted() {
		f |= Fingerprint(c.Root) << rootShift
	}
	return f
}

// Differ says how ranks' calls differ.
func Differ(calls rankset.Camps[uint64]) string {
	first, same := calls[0].Value, true
	for _, c := range calls {
		same = same && DifferInCounts(first, c.Value)
	}
	if same {
		return fmt.Sprintf("%v with other counts on %s than on %s", Fingerprint(first).collective(),
			rankset.Names(calls[0].Ranks), rankset.Names(calls[len(calls)-1].Ranks))
	}
	return calls.Calling("calls", func(call uint64) string { return Fingerprint(call).String() })
}

// DifferInCounts reports whether calls are of one V form, and differ in nothing but their counts if in anything.
func DifferInCounts(a, b uint64) bool {
	return Fingerprint(a).collective().Varies() && a>>rootShift == b>>rootShift
}

func (f Fingerprint) collective() Collective { return Collective(f >> kindShift & 15) }

// String says the call in words: "all-reduce sum of 12 fp32".
func (f Fingerprint) String() string {
	k := f.collective()
	text := k.String()
	if k == Barrier {
		return text
	}
	if k == AllReduce && f>>opShift&7 == opNorm {
		return fmt.Sprintf("all-reduce-norm of %d rows of %d %v, quantisation %d", f&maxElems>>hiddenBits,
			f&(1<<hiddenBits-1), weft.DType(f>>dtypeShift&31), f>>rootShift&(1<<rootBits-1))
	}
	if k.Reduces() {
		text += fmt.Sprintf(" %v", weft.Op(f>>opShift&7))
	}
	if dtype := weft.DType(f >> dtypeShift & 31); k.Varies() {
		text += fmt.Sprintf(" of %v", dtype)
	} else {
		text += fmt.Sprintf(" of %d %v", uint64(f&maxElems), dtype)
	}
	root := f >> rootShift & (1<<rootBits - 1)
	switch k {
	case Broadcast, Scatter:
		text += fmt.Sprintf(" from rank %d", root)
	case Reduce, Gather:
		text += fmt.Sprintf(" to rank %d", root)
	case AllGather, ReduceScatter:
		if root != 0 {
			text += " with words"
		}
	default:
	}
	return text
}
