package spec

import (
	"fmt"
	"strings"

	"github.com/weftgo/weft"
)

// Call is what one rank asks for. The caller sets the first part; Check derives the second.
type Call struct {
	Collective Collective
	Out, In    weft.Tensor // rows of elements; shapes play no part; a broadcast of one tensor may have it as In alone
	Op         weft.Op     // of a reduction
	Scalar     weft.Tensor // of a pre-multiplied sum: one number of [ScalarType], the same on all ranks
	Root       int
	Counts     Counts // of a V form
	// DeviceCounts replace the Counts of an all-to-all-v on GPUs.
	DeviceCounts DeviceCounts
	Algorithm    string // by name; empty: the fastest is chosen
	// Transfers are the messages of a [PointToPoint] call, which has no other operands.
	Transfers []Transfer

	// Symmetric says that operands that lie in windows lie at the same place of the same window on every
	// rank, but for those that a root alone has, and those that are a rank's own part of the other operand: all
	// ranks of the call are in place then. Without it GPUs, which do not meet before they enqueue, read and write
	// no operand of a peer. A rank that does not make the call finds its operands as they were, but for algorithms
	// named engine: copy engines write into its output all the same.
	Symmetric bool

	// Blocks and Threads, on GPUs, are the most of a launch; 0: as the algorithm does. The library's own
	// algorithms always have the same threads. All ranks give the same.
	Blocks, Threads int
	// Extras are device pointers for a user's algorithm, by the names that its Kernel has.
	Extras map[string]uintptr

	// ScalarOnDevice says that the scalar lies in the GPU's memory, where the kernel reads it.
	ScalarOnDevice bool

	// Words let an all-gather or a reduce-scatter run beside what uses its output or makes its input.
	Words Words

	// Norm makes an all-reduce normalise the rows of the sum. Check writes what it derives into it.
	Norm *Norm

	// Whole is of an engine's own call, a piece of another one: that one's Fingerprint, by which ranks compare it.
	Whole Fingerprint

	DType   weft.DType
	Count   int  // elements of a part; of a V form, the digest of its counts, or 0
	Bytes   int  // the bytes of a part; of a V form, of the longest one that this rank knows of
	InPlace bool // the input is part of the output, or the other way round
}

// Check says what is wrong with a call on a rank of so many, and derives what engines go by.
func (c *Call) Check(rank, ranks int) error {
	k := c.Collective
	if k == PointToPoint {
		return c.checkTransfers(rank, ranks)
	}
	if k >= Collectives {
		return weft.Invalidf("there is no %v", k)
	}
	if c.Blocks < 0 || c.Threads < 0 {
		return weft.Invalidf("%v: %d blocks, %d threads", k, c.Blocks, c.Threads)
	}
	c.DType, c.Count, c.Bytes, c.InPlace = weft.InvalidDType, 0, 0, false
	switch {
	case c.Norm != nil:
		return c.checkNorm()
	case k == Barrier && c.Words.Given():
		return c.checkWords(ranks)
	case k == Barrier:
		if why := c.Out.Absence(); why != "" { // it has no operands, but a layer above may refuse the call
			return weft.Invalidf("%v: %s", k, why)
		}
		return nil
	}
	if k.Rooted() && (c.Root < 0 || c.Root >= ranks) {
		return weft.Invalidf("%v: root %d of %d ranks", k, c.Root, ranks)
	}
	in, out := k.HasInput(rank, c.Root), k.HasOutput(rank, c.Root)
	if k == Broadcast && c.Out.IsZero() { // of one tensor
		c.Out = c.In
	}
	ins, outs, err := c.checkTensors(in, out)
	if err != nil {
		return err
	}
	if err := c.checkCounts(rank, ranks, in, out, ins, outs); err != nil {
		return err
	}
	if c.Words.Given() {
		if err := c.checkWords(ranks); err != nil {
			return err
		}
	}
	if k.Reduces() {
		if err := Reducible(k, c.Op, c.DType); err != nil {
			return err
		}
		if err := c.checkScalar(); err != nil {
			return err
		}
	}
	if !in || !out || ins == 0 || outs == 0 {
		return nil
	}
	return c.checkOverlap(rank, ins, outs)
}

// checkTensors returns how many elements the operands have.
func (c *Call) checkTensors(in, out bool) (ins, outs int, err error) {
	if in {
		if ins, err = c.checkTensor("input", &c.In); err != nil {
			return 0, 0, err
		}
	}
	if out {
		if outs, err = c.checkTensor("output", &c.Out); err != nil {
			return 0, 0, err
		}
	}
	if in && out && c.In.DType != c.Out.DType {
		err = weft.Invalidf("%v: input of %v, output of %v", c.Collective, c.In.DType, c.Out.DType)
	}
	return ins, outs, err
}

func (c *Call) checkTensor(what string, t *weft.Tensor) (n int, err error) {
	if n, err = checkTensor(c.Collective.String(), what, t); err == nil {
		c.DType = t.DType
	}
	return n, err
}

func checkTensor(name, what string, t *weft.Tensor) (n int, err error) {
	if why := t.Absence(); why != "" {
		return 0, weft.Invalidf("%s: %s", name, why)
	}
	if err := t.CheckShape(); err != nil {
		return 0, fmt.Errorf("%s: %s: %w", name, what, err)
	}
	n = t.Elems()
	switch {
	case n > maxElems:
		return 0, weft.Invalidf("%s: %s of %d elements", name, what, n)
	case t.IsZero():
		return 0, weft.Invalidf("%s: there is no %s", name, what)
	case t.DType != weft.InvalidDType && t.DType.Size() == 0: // an empty tensor may have none
		return 0, weft.Invalidf("%s: %s of type %v, which there is not; want one of %s", name, what, t.DType,
			strings.Join(weft.DTypeNames(), ", "))
	case n > 0 && t.DType == weft.InvalidDType:
		return 0, weft.Invalidf("%s: %s of %d elements without a type", name, what, n)
	case n > 0 && t.Data == nil:
		return 0, weft.Invalidf("%s: %s of %d elements of type %v without memory", name, what, n, t.DType)
	}
	return n, nil
}

// Name is the operation in errors: the collective's, or "send", "receive" or "batch".
func (c *Call) Name() string {
	switch {
	case c.Collective != PointToPoint && c.Norm != nil:
		return "all-reduce-norm"
	case c.Collective != PointToPoint:
		return c.Collective.String()
	case len(c.Transfers) == 1:
		return c.Transfers[0].Name()
	default:
		return "batch"
	}
}

// checkCounts compares the sizes of the operands.
func (c *Call) checkCounts(rank, ranks int, in, out bool, ins, outs int) error {
	k, n := c.Collective, &c.Counts
	switch k {
	case AllGatherV:
		if err := firstError(checkParts(k.String(), "output", n.Recv, n.RecvAt, ranks, outs),
			checkApart(k.String(), "output", n.Recv, n.RecvAt)); err != nil {
			return err
		}
		if ins != n.Recv[rank] {
			return weft.Invalidf("%v: input of %d elements, and the count of rank %d is %d", k, ins, rank, n.Recv[rank])
		}
		c.Count, c.Bytes = digest(n.Recv, n.RecvAt), longest(n.Recv)*c.DType.Size()
	case ReduceScatterV:
		if err := checkParts(k.String(), "input", n.Send, n.SendAt, ranks, ins); err != nil {
			return err
		}
		if outs != n.Send[rank] {
			return weft.Invalidf("%v: output of %d elements, and the count of rank %d is %d", k, outs, rank, n.Send[rank])
		}
		c.Count, c.Bytes = digest(n.Send, n.SendAt), longest(n.Send)*c.DType.Size()
	case AllToAllV:
		if c.DeviceCounts.given() {
			c.Bytes = max(ins, outs) * c.DType.Size()
			return c.DeviceCounts.check(k, ranks)
		}
		if err := firstError(checkParts(k.String(), "input", n.Send, n.SendAt, ranks, ins),
			checkParts(k.String(), "output", n.Recv, n.RecvAt, ranks, outs),
			checkApart(k.String(), "output", n.Recv, n.RecvAt)); err != nil {
			return err
		}
		if n.Send[rank] != n.Recv[rank] {
			return weft.Invalidf("%v: rank %d sends itself %d elements and receives %d", k, rank, n.Send[rank], n.Recv[rank])
		}
		c.Bytes = max(longest(n.Send), longest(n.Recv)) * c.DType.Size()
	default:
		switch {
		case in && k.InParts():
			c.Count = ins / ranks
		case in:
			c.Count = ins
		case k.OutParts():
			c.Count = outs / ranks
		default:
			c.Count = outs
		}
		wantIn, wantOut := c.Count, c.Count
		if k.InParts() {
			wantIn *= ranks
		}
		if k.OutParts() {
			wantOut *= ranks
		}
		if in && ins != wantIn {
			return weft.Invalidf("%v: input of %d elements is no part for each of %d ranks", k, ins, ranks)
		}
		if in && out && outs != wantOut && !k.InParts() && !k.OutParts() {
			return weft.Invalidf("%v: input of %d elements, output of %d", k, ins, outs)
		}
		if in && out && outs != wantOut {
			return weft.Invalidf("%v: input of %d elements on %d ranks, output of %d; it takes %d", k, ins, ranks, outs,
				wantOut)
		}
		if !in && outs != wantOut {
			return weft.Invalidf("%v: output of %d elements is no part for each of %d ranks", k, outs, ranks)
		}
		c.Bytes = c.Count * c.DType.Size()
	}
	return nil
}

// Reducible says why elements of a type cannot be reduced so, if they cannot.
func Reducible(k Collective, op weft.Op, t weft.DType) error {
	switch {
	case !op.Valid():
		return weft.Invalidf("%v: no such reduction: %v; want one of %s", k, op, strings.Join(weft.OpNames(), ", "))
	case t == weft.UE8M0 || t.Size() == 0:
		return weft.Unsupportedf("%v: elements of type %v cannot be reduced; convert them first", k, t)
	case t == weft.Bool && (op == weft.Avg || op == weft.PreMulSum):
		return weft.Unsupportedf("%v: %v of bool is no bool; convert the elements to uint8", k, op)
	}
	return nil
}

func (c *Call) checkScalar() error {
	k, t := c.Collective, c.Scalar
	if c.Op != weft.PreMulSum {
		return nil
	}
	want := ScalarType(c.DType)
	if t.Data == nil || t.Elems() != 1 || t.DType != want {
		return weft.Invalidf("%v: a pre-multiplied sum of %v takes a scalar: one element of %v", k, c.DType, want)
	}
	return nil
}

// ScalarType is the type of the number by which a pre-multiplied sum multiplies elements of a type: that
// of the sum itself.
func ScalarType(t weft.DType) weft.DType {
	switch t {
	case weft.BFloat16, weft.Float16, weft.Float8E4M3, weft.Float8E5M2:
		return weft.Float32
	default:
		return t
	}
}

// checkOverlap finds operands that are in place, and refuses others that overlap. Neither is empty.
func (c *Call) checkOverlap(rank, ins, outs int) error {
	k, size := c.Collective, c.DType.Size()
	in, out := uintptr(c.In.Data), uintptr(c.Out.Data)
	inputPart, outputPart := in, out
	switch {
	case k.InParts() && !k.OutParts():
		from, _ := c.InputPart(rank)
		inputPart += uintptr(from)
	case k.OutParts() && !k.InParts():
		from, _ := c.OutputPart(rank)
		outputPart += uintptr(from)
	}
	c.InPlace = k != AllToAllV && inputPart == outputPart
	switch {
	case c.InPlace && k == ReduceScatterV:
		// Peers read the parts that this rank overwrites with its own.
		return checkApart(k.String(), "input", c.Counts.Send, c.Counts.SendAt)
	case c.InPlace || in >= out+uintptr(outs*size) || out >= in+uintptr(ins*size):
		return nil
	case k.InParts() == k.OutParts():
		return weft.Invalidf("%v: input and output overlap; they may be the same memory or disjoint", k)
	default:
		return weft.Invalidf("%v: input and output overlap; one may be this rank's part of the other, or apart "+
			"from it", k)
	}
}

// InputPart is where the part of the input lies that goes to a rank, in bytes: all of it where the
// input has no parts.
func (c *Call) InputPart(rank int) (from, n int) {
	return c.partOf(c.Collective.InParts(), &c.In, c.Counts.Send, c.Counts.SendAt, rank)
}

// OutputPart is where the part of the output lies that comes from a rank, in bytes: all of it where
// the output has no parts.
func (c *Call) OutputPart(rank int) (from, n int) {
	return c.partOf(c.Collective.OutParts(), &c.Out, c.Counts.Recv, c.Counts.RecvAt, rank)
}

func (c *Call) partOf(parts bool, t *weft.Tensor, counts, at []int, rank int) (from, n int) {
	switch {
	case !parts:
		return 0, t.Bytes()
	case c.Collective.Varies():
		from, n = part(counts, at, rank)
		size := c.DType.Size()
		return from * size, n * size
	default:
		return rank * c.Bytes, c.Bytes
	}
}

func longest(counts []int) (most int) {
	for _, n := range counts {
		most = max(most, n)
	}
	return most
}

// firstError is cmp.Or, which asks whether errors are comparable.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// String says the call in words, as errors about calls that differ do.
func (c *Call) String() string { return fmt.Sprint(c.Fingerprint()) }
