package ep

import (
	"math"
	"math/rand/v2"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/floats"
	"github.com/weftgo/weft/ep"
)

// pattern is where the contents of rows come from: a row is a window on one long random sequence,
// times a power of two. Any rank can therefore write or check any row of any rank with a copy or a
// comparison, whatever its type. Values are e4m3 numbers, hence exact in every floating-point type,
// times a power of two for each block of 128. Each block has the largest e4m3 number in it, so that
// quantising a row gives back exactly its codes, and as every scale exactly its power of two. Rows
// begin where blocks do, so the scales of a row differ, and one at the index of another is
// noticed.
type pattern struct {
	hidden int
	codes  []byte // e4m3
	values []float32
	small  []int // of each block: it is divided by 2^small
	// encoded by type, then by exponent - minShift
	encoded map[weft.DType][][]byte
}

const (
	offsets  = 128           // starting points of rows: few enough for their source to stay in a cache
	offset   = ep.ScaleBlock // elements between them
	crest    = 16            // elements between the largest numbers
	smalls   = 4             // a block is divided by 2^0 to 2^3
	shifts   = 4             // a row is multiplied by 2^0 to 2^3, an expert divides by as much
	minShift = -(shifts - 1)
	maxCode  = 0x7e // 448
)

func newPattern(hidden int, types ...weft.DType) (*pattern, error) {
	n := hidden + offsets*offset
	blocks := (n + offset - 1) / offset
	p := &pattern{
		hidden: hidden, codes: make([]byte, n), values: make([]float32, n),
		small: make([]int, blocks), encoded: map[weft.DType][][]byte{},
	}
	rng := rand.New(rand.NewPCG(7, 168))
	for i := range p.small {
		p.small[i] = rng.IntN(smalls)
	}
	for i := range p.codes {
		// Exponents of -2 to 3: a sum of 32 rows of such numbers stays in fp16's range.
		p.codes[i] = byte(rng.IntN(2)<<7 | (5+rng.IntN(6))<<3 | rng.IntN(8))
		if i%crest == 0 {
			p.codes[i] = maxCode
		}
		p.values[i] = decodeE4M3(p.codes[i]) * pow2(-p.small[i/offset])
	}
	for _, d := range types {
		for shift := minShift; shift < shifts; shift++ {
			enc := make([]byte, 0, n*d.Size())
			for i, v := range p.values {
				if d == weft.Float8E4M3 {
					enc = append(enc, p.codes[i])
					continue
				}
				var err error
				if enc, err = floats.Append(enc, d, v*pow2(shift)); err != nil {
					return nil, err
				}
			}
			p.encoded[d] = append(p.encoded[d], enc)
		}
	}
	return p, nil
}

// pick chooses the row of a rank's token: where it starts and its exponent.
func (p *pattern) pick(rank, token int) (start, shift int) {
	h := (uint64(rank)<<32 | uint64(token)) * 0x9e3779b97f4a7c15
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	return int(h>>40%offsets) * offset, int(h >> 60 % shifts)
}

// row returns the bytes of a token's row, divided by 2^down; do not change them.
func (p *pattern) row(d weft.DType, rank, token, down int) []byte {
	start, shift := p.pick(rank, token)
	return p.encoded[d][shift-down-minShift][start*d.Size():][:p.hidden*d.Size()]
}

// floats returns a token's row as numbers to be multiplied by 2^shift.
func (p *pattern) floats(rank, token int) (row []float32, shift int) {
	start, shift := p.pick(rank, token)
	return p.values[start:][:p.hidden], shift
}

// scales returns the exponents of a token's scales.
func (p *pattern) scales(rank, token int) func(block int) int {
	start, shift := p.pick(rank, token)
	return func(block int) int { return shift - p.small[start/offset+block] }
}

func pow2(e int) float32 { return float32(math.Ldexp(1, e)) }

func decodeE4M3(c byte) float32 {
	sign := float32(1)
	if c&0x80 != 0 {
		sign = -1
	}
	exp, man := int(c>>3&15), float32(c&7)
	if exp == 0 {
		return sign * man * pow2(-9)
	}
	return sign * (8 + man) * pow2(exp-10)
}
