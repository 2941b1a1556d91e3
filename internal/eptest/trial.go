package eptest

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// trial is a case with all its inputs, the same on whichever rank they are computed.
type trial struct {
	Case
	batch
	p *prepared

	x       [2][]rows // by rank: what is dispatched, first and second time
	wire    [2][]rows // the same as receivers see it
	y       [][]byte  // by rank: what its experts return
	bias    [][][]byte
	grad    [][]byte // by rank: gradients of received rows
	gradOut [][]byte // by rank: gradients of combined rows
	scalars [][]float32
	size    int // of the arena
}

// newTrial computes the inputs of a case among the ranks that are not masked.
func newTrial(c Case, masked ...int) *trial {
	t := &trial{Case: c}
	n := c.Ranks
	t.batch = batch{spec: c.Spec, ranks: n, topk: c.TopK, weights: make([][]float32, n), masked: make([]bool, n)}
	t.batch.hosts = c.Hosts
	for _, r := range masked {
		t.masked[r] = true
	}
	for r := range n {
		m := len(c.TopK[r])
		t.batch.weights[r] = c.singles(streamWeights, r, m)
		if !c.Weights {
			for i := range m {
				t.batch.weights[r][i] = 1
			}
		}
	}
	t.p = t.prepare()
	for i, stream := range []int{streamRows0, streamRows1} {
		t.x[i], t.wire[i] = make([]rows, n), make([]rows, n)
		for r := range n {
			t.x[i][r] = t.tokenRows(stream, r)
			t.wire[i][r] = t.batch.wire(t.x[i][r])
		}
	}
	t.y, t.bias, t.grad, t.gradOut, t.scalars = make([][]byte, n), make([][][]byte, n), make([][]byte,
		n), make([][]byte, n), make([][]float32, n)
	for r := range n {
		if t.combines() {
			here, home := len(t.p.at[r].rows)*c.Spec.Hidden, t.tokens(r)*c.Spec.Hidden
			t.y[r] = c.numbers(streamExpertRows, r, t.output(), here)
			t.grad[r] = c.numbers(streamGradRows, r, t.output(), here)
			t.gradOut[r] = c.numbers(streamGradOut, r, t.output(), home)
			t.scalars[r] = c.singles(streamScalars, r, len(t.p.at[r].rows)*t.perRow())
			for i := range c.Biases {
				t.bias[r] = append(t.bias[r], c.numbers(streamBias0+i, r, t.output(), home))
			}
		}
		a := &arena{}
		t.layOut(a, r)
		t.size = max(t.size, a.used)
	}
	return t
}

// perRow is how many gradients of weights a row has.
func (t *trial) perRow() int {
	if t.byExpert() {
		return 1
	}
	return t.spec.TopK
}

func (t *trial) tokenRows(stream, rank int) rows {
	n := t.tokens(rank)
	if from := t.spec.Quantize; from != weft.InvalidDType {
		return rows{data: t.numbers(stream, rank, from, n*t.spec.Hidden)}
	}
	return rows{data: t.bytes(stream, rank, n*t.rowBytes()), scales: t.bytes(stream+100, rank, n*t.scaleBytes())}
}

// arena cuts one piece of memory into operands, with a guard band before each.
type arena struct {
	used   int
	pieces []piece
}

// piece is n bytes at an offset.
type piece struct{ at, n int }

// guardBytes is the least that stands between two operands, and belongs to none.
const guardBytes = 32

// take returns the offset of n bytes. Pieces are on multiples of 16 bytes, of which every other is
// no multiple of 64, or beside them by a number of elements.
func (a *arena) take(n, beside int) int {
	at := (a.used + guardBytes + 63) &^ 63
	if at/64%2 == 1 {
		at += 16
	}
	at += beside
	a.used = at + n
	a.pieces = append(a.pieces, piece{at, n})
	return at
}

// layout says where the operands of a rank stand.
type layout struct {
	topk, weights         int
	data, scales          int
	y, out, grad, gradOut int
	bias                  [2]int
	scalars, gradWeights  int
	gradRows              int
	gradX, scalarsHome    int // of a round, where out and gradWeights hold other results
	copies                copied
	pieces                []piece // all of them, ascending
}

func (t *trial) layOut(a *arena, r int) layout {
	var l layout
	x := &t.x[0][r]
	received := len(t.y[r])
	home := t.tokens(r) * t.outputBytes()
	of := func(d weft.DType) int { return t.Skew * d.Size() }
	ofRows := func(d weft.DType) int {
		if t.Even {
			return 0
		}
		return of(d)
	}
	l.topk, l.weights = a.take(8*len(t.TopK[r]), of(weft.Int64)), a.take(4*len(t.TopK[r]), of(weft.Float32))
	l.data, l.scales = a.take(len(x.data), ofRows(t.operand())), a.take(len(x.scales), ofRows(t.scale()))
	rows := func(n int) int { return a.take(n, ofRows(t.output())) }
	l.y, l.out, l.grad, l.gradOut = rows(received), rows(home), rows(received), rows(home)
	l.bias = [2]int{rows(home), rows(home)}
	l.scalars, l.gradWeights = a.take(4*len(t.scalars[r]), of(weft.Float32)), a.take(4*len(t.TopK[r]), of(weft.Float32))
	l.gradRows = rows(received)
	l.gradX, l.scalarsHome = rows(home), a.take(4*len(t.TopK[r]), of(weft.Float32))
	l.copies = t.layOutCopies(a, r)
	l.pieces = a.pieces
	return l
}

// operand is the type of the rows that are dispatched, scale of the scales that come with them.
func (t *trial) operand() weft.DType {
	switch {
	case t.spec.Quantize != weft.InvalidDType:
		return t.spec.Quantize
	case t.spec.Payload == ep.Opaque:
		return weft.Uint8
	case t.spec.Payload == ep.FP8, t.spec.Payload == ep.FP8UE8M0:
		return weft.Float8E4M3
	default:
		return t.output()
	}
}

func (t *trial) scale() weft.DType {
	switch t.spec.Payload {
	case ep.FP8:
		return weft.Float32
	case ep.FP8UE8M0:
		return weft.UE8M0
	default:
		return weft.Uint8
	}
}
