package eptest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// Case is one batch on an engine.
type Case struct {
	Ranks   int
	Spec    ep.Spec
	TopK    [][]int32 // by rank: [tokens, k], -1 for none
	Given   [][]int32 // what the engine is given instead, if it takes more than distinct experts and -1; nil: TopK
	Wide    bool      // experts are given as int64
	Weights bool      // weights are given; without, they count as 1
	Later   bool      // not before the second dispatch, with its rows; [Steps] and rounds give them at once
	Split   bool      // operations are cut in two: send, then receive
	// routing travels with the first rows: PrepareDispatch instead of Prepare, then Dispatch;
	// [Steps] take them one by one
	Fused   bool
	Operand Operand
	Skew    int  // elements by which operands stand beside multiples of 16 bytes
	Even    bool // operands that are rows do not
	Biases  int
	InPlace bool // combine backward writes the gradients of rows over the rows, if it reads them
	Wild    bool // contents include NaN, infinities, denormals and zeros of both signs
	Ones    bool // contents include words of ones, which are NaNs
	Seed    uint64
	Hosts   []int // by rank; nil: all are of one
}

// Operand says where the operands of operations stand.
type Operand uint8

// Where operands lie.
const (
	PlainOperand    Operand = iota // in memory that no peer can see
	WindowOperand                  // in a window
	ReceivedOperand                // rows that combine takes in the memory that dispatch returned, where types allow
	operands
)

// String describes the case so that it can be told from others; the seed and the shapes give the
// rest.
func (c Case) String() string {
	tokens := make([]int, c.Ranks)
	for r, k := range c.TopK {
		tokens[r] = len(k) / c.Spec.TopK
	}
	return fmt.Sprintf("ranks %d, tokens %v, wide %v, weights %v (later %v), split %v, fused %v, operand "+
		"%d, skew %d (even rows %v), biases %d, in place %v, "+
		"wild %v, ones %v, seed %#x, %+v\ntop-k %v",
		c.Ranks, tokens, c.Wide, c.Weights, c.Later, c.Split, c.Fused, c.Operand,
		c.Skew, c.Even, c.Biases, c.InPlace, c.Wild, c.Ones, c.Seed, c.Spec, c.TopK)
}

// details lists the ways in which one payload can be asked for.
func details(cell ep.Cell) []func(*ep.Spec) {
	var all []func(*ep.Spec)
	add := func(f func(*ep.Spec)) { all = append(all, f) }
	outputs := []weft.DType{weft.BFloat16, weft.Float16, weft.Float32}
	orders := []ep.ScaleOrder{ep.RowMajorScales, ep.ColumnMajorScales}
	switch cell.Payload {
	case ep.FP8, ep.FP8UE8M0:
		for _, order := range orders {
			add(func(s *ep.Spec) { s.ScaleOrder = order })
			for i, from := range outputs {
				add(func(s *ep.Spec) { s.ScaleOrder, s.Quantize, s.Output = order, from, outputs[(i+1)%3] })
				if cell.Payload == ep.FP8 {
					add(func(s *ep.Spec) { s.ScaleOrder, s.Quantize, s.PowerOfTwoScales, s.Output = order, from, true, from })
				}
			}
		}
	case ep.Opaque:
		for _, scales := range []int{0, 32} {
			for _, out := range append(outputs, weft.InvalidDType) {
				add(func(s *ep.Spec) {
					if s.ScaleBytes, s.Output = scales, out; out == weft.InvalidDType {
						s.Hidden = 0
					}
				})
			}
		}
	default:
		add(func(*ep.Spec) {})
	}
	return all
}

// Fixed makes a case of the Spec whose routing and contents follow from the seed.
func Fixed(s ep.Spec, ranks int, seed uint64) Case {
	c := Case{Ranks: ranks, Spec: s, Weights: true, Seed: seed}
	c.route(uniform)
	return c
}

// Full is [Fixed] with MaxTokens tokens on every rank, all of whose selections are experts.
func Full(s ep.Spec, ranks int, seed uint64) Case {
	c := Case{Ranks: ranks, Spec: s, Weights: true, Seed: seed}
	c.route(full)
	return c
}

// pattern is a shape of routing.
type pattern uint8

const (
	uniform    pattern = iota
	sparse             // many -1
	oneRank            // everything to one rank
	spareRank          // nothing to one rank
	oneExpert          // every token selects one expert, and nothing else
	nothing            // all -1
	zeroTokens         // no tokens anywhere
	full               // as many tokens and experts as there can be
	patterns
)

// drawCase draws a batch for the cell that the engine does not refuse: the detail, phases and
// counts are given, everything else is drawn.
func drawCase(t *rapid.T, e Engine, sizes []int, cell ep.Cell, detail func(*ep.Spec), split bool,
	counts ep.Counts,
) Case {
	n := rapid.SampledFrom(sizes).Draw(t, "ranks")
	local := rapid.OneOf(rapid.IntRange(1, 5), rapid.IntRange(1, 12)).Draw(t, "experts per rank")
	experts := n * local
	s := ep.Spec{
		Experts: experts, TopK: rapid.OneOf(rapid.IntRange(1, min(4, experts)),
			rapid.IntRange(1, min(ep.MaxTopK, experts))).Draw(t, "top-k"),
		MaxTokens: rapid.OneOf(rapid.IntRange(1, 4), rapid.IntRange(1, 24)).Draw(t, "max tokens"),
		Layout:    cell.Layout, Reduction: cell.Reduction, Weighting: cell.Weighting,
		Payload: cell.Payload, Counts: counts,
	}
	rowUnit := map[ep.Payload]int{
		ep.BF16: 8, ep.FP16: 8, ep.FP32: 4, ep.FP8: 128, ep.FP8UE8M0: 512,
		ep.Opaque: 8,
	}[cell.Payload]
	most := 33
	if rowUnit >= 128 {
		most = 512 / rowUnit * 2
	}
	s.Hidden = rowUnit * rapid.OneOf(rapid.IntRange(1, 3), rapid.IntRange(1, most)).Draw(t, "hidden units")
	if cell.Payload == ep.Opaque {
		s.RowBytes = 16 * rapid.IntRange(1, 17).Draw(t, "row units")
	}
	detail(&s)
	if large := rapid.SampledFrom([]int{0, 0, 0, 0, 64, 300}).Draw(t, "large"); large > 0 {
		grow(&s, n, large)
	}
	if s.Layout == ep.ExpertPacked {
		s.Alignment = rapid.SampledFrom([]int{0, 1, 2, 8, 16, 128}).Draw(t, "alignment")
	}
	if s.Layout != ep.RankMajor && rapid.IntRange(0, 3).Draw(t, "capped") == 0 {
		s.Capacity = rapid.IntRange(1, 2*n*s.MaxTokens).Draw(t, "capacity")
		s.Overflow = rapid.SampledFrom([]ep.Overflow{ep.OverflowDrop, ep.OverflowRefuse}).Draw(t, "overflow")
		if refused(e, s, n) != nil {
			s.Capacity = 0 // the one thing here that an engine may refuse
		}
	}
	c := Case{
		Ranks: n, Spec: s, Split: split,
		Fused:   rapid.Bool().Draw(t, "fused"),
		Wide:    rapid.Bool().Draw(t, "int64"),
		Weights: s.Weighting == ep.Weighted || rapid.Bool().Draw(t, "weights"),
		Operand: Operand(rapid.IntRange(0, int(operands)-1).Draw(t, "operand")),
		Skew:    rapid.SampledFrom([]int{0, 0, 0, 1, 3, 7}).Draw(t, "skew"),
		Even:    e.Kind() == ep.GPUEngine, // which takes no others
		Biases:  rapid.IntRange(0, 2).Draw(t, "biases"),
		InPlace: rapid.IntRange(0, 3).Draw(t, "in place") == 0,
		Wild:    rapid.IntRange(0, 2).Draw(t, "wild") == 0,
		Seed:    rapid.Uint64().Draw(t, "seed"),
	}
	if e.Kind() == ep.HostEngine {
		c.Spec.Tuning.HostCopy = rapid.SampledFrom([]ep.HostCopy{ep.FanOut, ep.CopyEach}).Draw(t, "copy")
	}
	c.route(pattern(rapid.IntRange(0, int(patterns)-1).Draw(t, "pattern")))
	c.Ones = rapid.IntRange(0, 3).Draw(t, "ones") == 0
	c.Later = c.Weights && rapid.Bool().Draw(t, "later")
	return c
}

// grow makes it the Spec of larger batches, for which engines may have other ways, if what the
// suite holds of them stays small.
func grow(s *ep.Spec, ranks, tokens int) {
	const most = 1 << 20 // bytes of rows at one rank
	rows := ranks * tokens
	if s.Layout == ep.ExpertMajor || s.Layout == ep.ExpertPacked {
		rows *= s.Experts / ranks
	}
	if rows*max(4*s.Hidden, s.RowBytes) <= most {
		s.MaxTokens = tokens
	}
}

// route draws what tokens select, from the case's seed.
func (c *Case) route(p pattern) {
	s := &c.Spec
	c.TopK = make([][]int32, c.Ranks)
	local := s.Experts / c.Ranks
	rng := c.rng(streamRouting, 0)
	chosen := rng.IntN(c.Ranks)
	for r := range c.TopK {
		tokens := rng.IntN(s.MaxTokens + 1)
		switch {
		case p == zeroTokens:
			tokens = 0
		case p == full:
			tokens = s.MaxTokens
		case r == c.Ranks-1 && rng.IntN(2) == 0:
			tokens = s.MaxTokens
		}
		for range tokens {
			order := rng.Perm(s.Experts)
			picked := 0
			for k := range s.TopK {
				e := int32(-1)
				for picked < len(order) && e < 0 {
					candidate := order[picked]
					picked++
					switch owner := candidate / local; {
					case p == oneRank && owner != chosen, p == spareRank && owner == chosen, p == oneExpert &&
						candidate != chosen*local:
					default:
						e = int32(candidate)
					}
				}
				if p == nothing || p == sparse && rng.IntN(3) > 0 || p == uniform && rng.IntN(16) == 0 {
					e = -1
				}
				if p == oneExpert && k == 0 {
					e = int32(chosen * local)
				} else if p == oneExpert {
					e = -1
				}
				c.TopK[r] = append(c.TopK[r], e)
			}
		}
	}
}

// The independent streams of random numbers of a case.
const (
	streamRouting = iota
	streamWeights
	streamRows0
	streamRows1
	streamExpertRows
	streamBias0
	streamBias1
	streamGradRows
	streamGradOut
	streamScalars
)

func (c *Case) rng(stream, rank int) *rand.Rand {
	return rand.New(rand.NewPCG(c.Seed, uint64(stream)<<32|uint64(rank)))
}

// numbers makes n numbers of a type.
func (c *Case) numbers(stream, rank int, d weft.DType, n int) []byte {
	rng := c.rng(stream, rank)
	out := make([]byte, n*d.Size())
	defer func() { c.ones(stream, rank, out) }()
	for i := range n {
		if c.Wild && rng.IntN(48) == 0 {
			// Any bits at all, or bits in which exponents are extreme.
			v := rng.Uint64()
			switch rng.IntN(4) {
			case 0:
				v |= 0x7F807F807F807F80
			case 1:
				v &= 0x8080808080808080
			case 2:
				v &^= 0x7F807F807F807F80
			}
			copy(out[i*d.Size():(i+1)*d.Size()], binary.LittleEndian.AppendUint64(nil, v))
			continue
		}
		x := float32(rng.NormFloat64())
		switch d {
		case weft.BFloat16:
			binary.LittleEndian.PutUint16(out[2*i:], uint16(math.Float32bits(x)>>16))
		case weft.Float32:
			binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(x))
		default:
			putNumber(d, out, i, x)
		}
	}
	return out
}

// bytes makes n arbitrary bytes.
func (c *Case) bytes(stream, rank, n int) []byte {
	rng := c.rng(stream, rank)
	out := make([]byte, 0, n+8)
	for len(out) < n {
		out = binary.LittleEndian.AppendUint64(out, rng.Uint64())
	}
	c.ones(stream, rank, out[:n])
	return out[:n]
}

// ones puts words of ones where the case wants them: the last of 16 bytes, whole pieces of 16, and
// some anywhere.
func (c *Case) ones(stream, rank int, out []byte) {
	if !c.Ones {
		return
	}
	rng := c.rng(stream+1000, rank)
	for i := 0; i+4 <= len(out); i += 4 {
		if piece := i/16%5 == 0; piece && rng.IntN(2) == 0 || i%16 == 12 && rng.IntN(3) == 0 || rng.IntN(8) == 0 {
			copy(out[i:i+4], []byte{0xFF, 0xFF, 0xFF, 0xFF})
		}
	}
}

// singles makes n fp32 numbers.
func (c *Case) singles(stream, rank, n int) []float32 {
	raw := c.numbers(stream, rank, weft.Float32, n)
	out := make([]float32, n)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return out
}
