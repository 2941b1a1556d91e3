package spec

import "github.com/weftgo/weft"

// Counts describes parts of different lengths, in elements, an entry a rank: Send and SendAt are
// lengths and positions of the parts of the input, Recv and RecvAt of the output. Positions are
// optional: without them parts lie one after the other. Parts of an output must not overlap.
//
//	all-gather-v       Recv, RecvAt: the same on all ranks
//	reduce-scatter-v   Send, SendAt: the same on all ranks
//	all-to-all-v       all four: what a rank sends to a peer is what that one receives from it
type Counts struct{ Send, SendAt, Recv, RecvAt []int }

// DeviceCounts are the Counts of an all-to-all-v that lie in the GPU's memory, where the kernel reads them: a
// 64-bit integer for each rank in each. All four are given.
type DeviceCounts struct{ Send, SendAt, Recv, RecvAt weft.Tensor }

func (d *DeviceCounts) given() bool { return !d.Send.IsZero() }

// check says what is wrong with the tensors. What they hold is for the kernel to check.
func (d *DeviceCounts) check(k Collective, ranks int) error {
	for _, t := range [...]weft.Tensor{d.Send, d.SendAt, d.Recv, d.RecvAt} {
		if t.DType != weft.Int64 || t.Data == nil || t.Elems() != ranks || uintptr(t.Data)%8 != 0 {
			return weft.Invalidf("%v: counts and positions on the GPU are tensors of %d aligned int64, not %v", k, ranks, t)
		}
	}
	return nil
}

// part is where rank's part lies, in elements.
func part(counts, at []int, rank int) (from, n int) {
	if at != nil {
		return at[rank], counts[rank]
	}
	for _, k := range counts[:rank] {
		from += k
	}
	return from, counts[rank]
}

// check says what is wrong with the parts of an operand of so many elements.
func checkParts(name, what string, counts, at []int, ranks, elems int) error {
	switch {
	case len(counts) != ranks:
		return weft.Invalidf("%s: %d %s counts for %d ranks", name, len(counts), what, ranks)
	case at != nil && len(at) != ranks:
		return weft.Invalidf("%s: %d %s positions for %d ranks", name, len(at), what, ranks)
	}
	end := 0
	for r, n := range counts {
		from := end
		if at != nil {
			from = at[r]
		}
		if n < 0 || from < 0 || n > elems-from {
			return weft.Invalidf("%s: the %s part of rank %d is %d elements at %d, and the tensor has %d", name, what,
				r, n, from, elems)
		}
		end = from + n
	}
	return nil
}

// apart says whether no two parts overlap.
func checkApart(name, what string, counts, at []int) error {
	if at == nil {
		return nil
	}
	for r, n := range counts {
		for q := range r {
			if n > 0 && counts[q] > 0 && at[r] < at[q]+counts[q] && at[q] < at[r]+n {
				return weft.Invalidf("%s: the %s parts of ranks %d and %d overlap", name, what, q, r)
			}
		}
	}
	return nil
}

// digest is a number for counts that all ranks must pass alike: FNV-1a of words.
func digest(counts, at []int) int {
	h, end := uint64(14695981039346656037), 0
	for r, n := range counts {
		from := end
		if at != nil {
			from = at[r]
		}
		end = from + n
		for _, x := range [...]int{from, n} {
			h = (h ^ uint64(x)) * 1099511628211
		}
	}
	return int((h ^ h>>32) >> (64 - countBits))
}
