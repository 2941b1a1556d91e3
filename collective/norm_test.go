package collective

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/simd"
)

// normCase is one AllReduceNorm of a test, the same on every rank.
type normCase struct {
	tokens, hidden        int
	dtype                 weft.DType
	quant                 spec.Quant
	residual, residualOut bool
	inPlace               bool
	shift                 int // elements by which operands are off their alignment
	name                  string
	number                int
}

func (c *normCase) String() string {
	return fmt.Sprintf("%d rows of %d %v, quantisation %d, residual %t, out %t, in place %t, shift %d, %s", c.tokens,
		c.hidden, c.dtype, c.quant, c.residual, c.residualOut, c.inPlace, c.shift, c.name)
}

// normOperands are where operands lie in one piece of memory, in bytes; -1: nowhere.
type normOperands struct {
	in, out, residual, residualOut, gamma, scales, scale, end int

	elems, rowBytes, outBytes, scaleBytes int
}

func (c *normCase) lay() (o normOperands) {
	size := c.dtype.Size()
	o.elems = c.tokens * c.hidden
	o.rowBytes, o.outBytes = c.hidden*size, o.elems*size
	bytes := o.outBytes
	at := 0
	place := func(here bool, n, shift int) int {
		if !here {
			return -1
		}
		const around = 64
		from := (at+around+15)&^15 + shift
		at = from + n
		return from
	}
	o.in = place(true, bytes, c.shift*size)
	o.residual = place(c.residual, bytes, c.shift*size)
	o.gamma = place(true, c.hidden*size, 0)
	switch c.quant {
	case spec.QuantNone:
	case spec.QuantUE8M0:
		o.scaleBytes = o.elems / spec.QuantGroup
	case spec.QuantStatic:
	default:
		o.scaleBytes = o.elems / spec.QuantGroup * 4
	}
	switch {
	case c.quant != spec.QuantNone:
		o.outBytes = o.elems
		o.out = place(true, o.outBytes, c.shift)
	case c.inPlace:
		o.out = o.in
	default:
		o.out = place(true, bytes, c.shift*size)
	}
	over := c.residualOut && c.inPlace && c.residual
	if o.residualOut = place(c.residualOut && !over, bytes, 0); over {
		o.residualOut = o.residual
	}
	o.scales = place(o.scaleBytes > 0 || c.quant != spec.QuantNone && c.quant != spec.QuantStatic, o.scaleBytes, 0)
	o.scale = place(c.quant == spec.QuantStatic, 4, 0)
	o.end = at + 64
	return o
}

const normEps = 1e-5

// call is a rank's call on operands that tensor makes.
func (c *normCase) call(o *normOperands, tensor func(at int, d weft.DType, n int) weft.Tensor) Call {
	n := &Norm{Gamma: tensor(o.gamma, c.dtype, c.hidden), Eps: normEps, PowerOfTwoScales: c.quant == spec.QuantPow2}
	call := Call{Collective: AllReduce, In: tensor(o.in, c.dtype, o.elems), Norm: n, Algorithm: c.name}
	if o.residual >= 0 {
		n.Residual = tensor(o.residual, c.dtype, o.elems)
	}
	if o.residualOut >= 0 {
		n.ResidualOut = tensor(o.residualOut, c.dtype, o.elems)
	}
	out := c.dtype
	if c.quant != spec.QuantNone {
		out = weft.Float8E4M3
	}
	call.Out = tensor(o.out, out, o.elems)
	switch c.quant {
	case spec.QuantNone:
	case spec.QuantStatic:
		n.Scale = tensor(o.scale, weft.Float32, 1)
	case spec.QuantUE8M0:
		n.Scales = tensor(o.scales, weft.UE8M0, o.scaleBytes)
	default:
		n.Scales = tensor(o.scales, weft.Float32, o.scaleBytes/4)
	}
	return call
}

// content are a rank's operands. Residuals differ by rank, which is allowed.
func (c *normCase) content(o *normOperands, rank int) []byte {
	mem := bytes.Repeat([]byte{0xA5}, o.end)
	fill := func(seed uint64, at, n int) {
		r := rand.New(rand.NewPCG(seed, uint64(c.number)))
		for i := range n {
			x := r.NormFloat64() * math.Exp2(float64(r.IntN(9)-4))
			if c.number%7 == 6 && r.IntN(50) == 0 {
				x = []float64{math.Inf(1), math.NaN(), 1e38, -1e-42, 0}[r.IntN(5)]
			}
			store32(c.dtype, mem[at+i*c.dtype.Size():], float32(x))
		}
	}
	fill(uint64(rank), o.in, o.elems)
	fill(99, o.gamma, c.hidden)
	if o.residual >= 0 {
		fill(uint64(100+rank), o.residual, o.elems)
	}
	if o.scale >= 0 {
		binary.LittleEndian.PutUint32(mem[o.scale:], math.Float32bits(0.0173))
	}
	return mem
}

// want is a rank's memory after the call: each step alone.
func (c *normCase) want(rank int, live []int) []byte {
	o := c.lay()
	mem := c.content(&o, rank)
	var ins [][]byte
	for _, r := range live {
		ins = append(ins, c.content(&o, r)[o.in:][:o.elems*c.dtype.Size()])
	}
	if o.elems == 0 {
		return mem
	}
	sum := reference(weft.Sum, c.dtype, nil, ins)
	if o.residual >= 0 {
		sum = reference(weft.Sum, c.dtype, nil, [][]byte{sum, bytes.Clone(mem[o.residual:][:len(sum)])})
	}
	if o.residualOut >= 0 {
		copy(mem[o.residualOut:], sum)
	}
	gamma, size := mem[o.gamma:], c.dtype.Size()
	for t := range c.tokens {
		row := sum[t*o.rowBytes:][:o.rowBytes]
		mean := plainSquares(c.dtype, row) / float32(c.hidden)
		k := 1 / float32(math.Sqrt(float64(mean+normEps)))
		for i := range c.hidden {
			x := float32(float32(load32(c.dtype, row[i*size:])) * k)
			store32(c.dtype, row[i*size:], x*float32(load32(c.dtype, gamma[i*size:])))
		}
	}
	kind := map[spec.Quant]simd.ScaleKind{
		spec.QuantFP32: simd.ScaleF32, spec.QuantPow2: simd.ScaleF32Pow2, spec.QuantUE8M0: simd.ScaleUE8M0,
	}
	t := map[weft.DType]simd.Type{weft.BFloat16: simd.BF16, weft.Float16: simd.F16, weft.Float32: simd.F32}[c.dtype]
	switch c.quant {
	case spec.QuantNone:
		copy(mem[o.out:], sum)
	case spec.QuantStatic:
		k := 1 / math.Float32frombits(binary.LittleEndian.Uint32(mem[o.scale:]))
		for i := range o.elems {
			mem[o.out+i] = simd.E4M3FromF32(float32(load32(c.dtype, sum[i*size:])) * k)
		}
	default:
		simd.QuantizeE4M3(t, unsafe.Pointer(&mem[o.out]), unsafe.Pointer(&mem[o.scales]), unsafe.Pointer(&sum[0]),
			o.elems, kind[c.quant])
	}
	return mem
}

// plainSquares is the definition of simd.SumOfSquares, element by element.
func plainSquares(d weft.DType, row []byte) float32 {
	tree := func(s []float32) float32 {
		for h := len(s) / 2; h > 0; h /= 2 {
			for i := range h {
				s[i] += s[i+h]
			}
		}
		return s[0]
	}
	var lanes [512]float32
	for v := 0; v*16 < len(row); v++ {
		s := make([]float32, 16/d.Size())
		for i := range s {
			if at := v*16 + i*d.Size(); at < len(row) {
				x := float32(load32(d, row[at:]))
				s[i] = float32(x * x)
			}
		}
		lanes[v%512] += tree(s)
	}
	var warps [16]float32
	for w := range warps {
		warps[w] = tree(lanes[32*w:][:32])
	}
	return tree(warps[:])
}

// differs says where memory is not as it should be.
func (c *normCase) differs(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	end := min(i+8, len(got))
	return fmt.Errorf("byte %d of %+v is %x, want %x", i, c.lay(), got[i:end], want[i:end])
}

// normCases are calls of all kinds, as many as asked for.
func normCases(seed uint64, n int, names ...string) []normCase {
	r := rand.New(rand.NewPCG(seed, 0))
	all := make([]normCase, n)
	for i := range all {
		c := normCase{
			tokens: []int{1, 2, 3, 5, 7, 13}[r.IntN(6)], hidden: []int{1, 7, 128, 257, 640, 1024, 4104, 5120}[r.IntN(8)],
			dtype: []weft.DType{weft.BFloat16, weft.Float16, weft.Float32}[i%3], quant: spec.Quant(r.IntN(5)),
			residual: r.IntN(3) > 0, residualOut: r.IntN(3) > 0, inPlace: r.IntN(2) == 0, number: i,
		}
		if c.quant != spec.QuantNone && c.quant != spec.QuantStatic {
			c.hidden = []int{128, 384, 512, 5120}[r.IntN(4)]
		}
		if r.IntN(3) == 0 {
			c.shift = r.IntN(5)
		}
		if len(names) > 0 {
			c.name = names[r.IntN(len(names))]
		}
		if i == 3 {
			c.tokens = 0
		}
		all[i] = c
	}
	return append(all,
		normCase{tokens: 2, hidden: 16384, dtype: weft.BFloat16, residual: true, residualOut: true, number: n},
		normCase{tokens: 1, hidden: 16384, dtype: weft.Float32, quant: spec.QuantUE8M0, residual: true, number: n + 1},
		normCase{
			tokens: 40, hidden: 1536, dtype: weft.Float16, residual: true, inPlace: true, residualOut: true, number: n + 2,
		})
}

// onHost makes the call on memory of the host.
func (c *normCase) onHost(ctx context.Context, g *Group, rank int, live []int, start bool) error {
	o := c.lay()
	mem := c.content(&o, rank)
	call := c.call(&o, func(at int, d weft.DType, n int) weft.Tensor { return weft.TensorAt(mem[at:], d, n) })
	var err error
	if start {
		w, begun := g.Start(ctx, nil, call)
		if begun != nil {
			return begun
		}
		err = errors.Join(w.Wait(ctx), w.Close())
	} else {
		err = g.AllReduceNorm(ctx, nil, call.Out, call.In, *call.Norm)
	}
	return errors.Join(err, c.differs(mem, c.want(rank, live)))
}

// TestAllReduceNorm compares the host's with each step alone.
func TestAllReduceNorm(t *testing.T) {
	sizes, calls := []int{1, 2, 3, 5}, 60
	if testing.Short() {
		sizes, calls = []int{3}, 12
	}
	for _, ranks := range sizes {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			err := ranktest.Run(ranks, ranktest.OnHost, func(ctx context.Context, comm *weft.Comm) (err error) {
				g, err := New(ctx, comm, Options{Scratch: 128 << 10})
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, g.Close()) }()
				for i, c := range normCases(uint64(ranks), calls) {
					if err := c.onHost(ctx, g, comm.Rank(), ranksUpTo(ranks), i%4 == 3); err != nil {
						return fmt.Errorf("call %d, %v: %w", i, &c, err)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAllReduceNormRefused: what is wrong is an error on every rank, and the group goes on.
func TestAllReduceNormRefused(t *testing.T) {
	err := ranktest.Run(2, ranktest.OnHost, func(ctx context.Context, comm *weft.Comm) (err error) {
		g, err := New(ctx, comm, Options{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
		f, b := make([]float32, 4096), make([]weft.BF16, 1024)
		q := make([]weft.E4M3, 512)
		in, gamma := weft.TensorOf(f[:512]), weft.TensorOf(f[1024:1280])
		out := weft.TensorOf(f[512:1024])
		for _, c := range []struct {
			out  weft.Tensor
			norm Norm
			kind error
			word string
		}{
			{out, Norm{}, weft.ErrInvalid, "gamma"},
			{out, Norm{Gamma: weft.TensorOf(f[:7])}, weft.ErrInvalid, "no rows of 7"},
			{out, Norm{Gamma: weft.TensorOf(b[:256])}, weft.ErrInvalid, "gamma of 256 bf16"},
			{out, Norm{Gamma: gamma, Residual: gamma}, weft.ErrInvalid, "residual of 256"},
			{out, Norm{Gamma: gamma, Scales: gamma}, weft.ErrInvalid, "has no scales"},
			{weft.TensorOf(f[500:1012]), Norm{Gamma: gamma}, weft.ErrInvalid, "overlap"},
			{weft.TensorOf(q), Norm{Gamma: gamma}, weft.ErrInvalid, "has scales, or one scale"},
			{weft.TensorOf(q), Norm{Gamma: gamma, Scales: weft.TensorOf(f[2000:2003])}, weft.ErrInvalid, "3 scales"},
			{weft.TensorOf(q), Norm{Gamma: weft.TensorOf(f[1024:1088]), Scales: gamma}, weft.ErrUnsupported, "rows of 64"},
			{weft.TensorOf(b[:512]), Norm{Gamma: gamma}, weft.ErrInvalid, "output of 512 bf16"},
		} {
			refused := g.AllReduceNorm(ctx, nil, c.out, in, c.norm)
			if !errors.Is(refused, c.kind) || !strings.Contains(refused.Error(), c.word) {
				return fmt.Errorf("%q: %w", c.word, refused)
			}
		}
		norm := Norm{Gamma: gamma}
		if comm.Rank() == 1 {
			norm.Gamma = weft.TensorOf(f[1024:1152])
		}
		if err := g.AllReduceNorm(ctx, nil, out, in, norm); !errors.Is(err, weft.ErrMismatch) ||
			!strings.Contains(err.Error(), "all-reduce-norm of 4 rows of 128 fp32") {
			return fmt.Errorf("rows that differ: %w", err)
		}
		return g.AllReduceNorm(ctx, nil, out, in, Norm{Gamma: gamma})
	})
	if err != nil {
		t.Error(err)
	}
}
