package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
)

var dtypes = []weft.DType{
	weft.Float32, weft.BFloat16, weft.Float16, weft.Float64, weft.Float8E4M3, weft.Float8E5M2,
	weft.Int8, weft.Int16, weft.Int32, weft.Int64, weft.Uint8, weft.Uint16, weft.Uint32, weft.Uint64, weft.Bool,
}

// shape is what the operands of one case look like.
type shape struct {
	kind   Collective
	dtype  weft.DType
	op     weft.Op
	root   int
	seed   uint64
	noise  bool // operands are random bits, and not numbers of moderate size
	scalar []byte

	hosts []int // by rank; nil: all share memory
	exact bool  // partials of hosts are not rounded

	// By rank: where operands start within a cache line, whether they lie in windows, whether the
	// operation is in place.
	align   []int
	window  []bool
	inPlace []bool

	// The parts of operands, by rank and peer: of those without parts one.
	in, out []parts
}

// parts are lengths and positions, in elements.
type parts struct {
	counts, at []int
	gaps       bool // positions are told
}

func (p *parts) end() (end int) {
	for i, n := range p.counts {
		end = max(end, p.at[i]+n)
	}
	return end
}

// place finds positions: one part after the other, or in another order and with gaps.
func place(r *rand.Rand, counts []int, gaps bool) parts {
	p := parts{counts, make([]int, len(counts)), gaps}
	order := make([]int, len(counts))
	for i := range order {
		order[i] = i
	}
	if gaps {
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	end := 0
	for _, i := range order {
		if gaps {
			end += r.IntN(5)
		}
		p.at[i] = end
		end += counts[i]
	}
	return p
}

func drawShape(t *rapid.T, kind Collective, ranks, most int) *shape {
	s := &shape{
		kind:  kind,
		dtype: rapid.SampledFrom(dtypes).Draw(t, "dtype"),
		op:    weft.Op(rapid.IntRange(0, int(weft.PreMulSum)).Draw(t, "op")),
		root:  rapid.IntRange(0, ranks-1).Draw(t, "root"),
		seed:  rapid.Uint64().Draw(t, "seed"),
		noise: rapid.Bool().Draw(t, "noise"),
	}
	if spec.Reducible(kind, s.op, s.dtype) != nil {
		s.op = weft.Max
	}
	windows := rapid.IntRange(0, 2).Draw(t, "windows")
	places := rapid.IntRange(0, 2).Draw(t, "in place")
	for range ranks {
		s.align = append(s.align, rapid.IntRange(0, 63).Draw(t, "align"))
		s.window = append(s.window, windows == 1 || windows == 2 && rapid.Bool().Draw(t, "window"))
		s.inPlace = append(s.inPlace, kind != AllToAllV && (places == 1 || places == 2 && rapid.Bool().Draw(t, "in place")))
	}
	length := rapid.OneOf(rapid.IntRange(0, 70), rapid.SampledFrom([]int{0, 1, 127, 1024, 1021, 3001}),
		rapid.IntRange(0, most))
	lengths := make([][]int, ranks) // by sender and receiver
	count := length.Draw(t, "count")
	few := rapid.IntRange(0, 3).Draw(t, "zeros")
	for i := range lengths {
		for range ranks {
			n := count
			if kind.Varies() {
				if n = length.Draw(t, "count"); few == 0 || few == 1 && rapid.Bool().Draw(t, "zero") {
					n = 0
				}
			}
			lengths[i] = append(lengths[i], n)
		}
	}
	if few == 0 && kind.Varies() { // all but one pair
		lengths[rapid.IntRange(0, ranks-1).Draw(t, "from")][rapid.IntRange(0, ranks-1).Draw(t, "to")] = count
	}
	s.lay(lengths, rapid.Bool().Draw(t, "gaps"))
	return s
}

// lay lays operands out: element i, j of lengths is what rank i sends rank j.
func (s *shape) lay(lengths [][]int, gaps bool) {
	ranks := len(lengths)
	r := rand.New(rand.NewPCG(s.seed, 99))
	s.scalar = s.content(-1, 8)
	if t := spec.ScalarType(s.dtype); t == weft.Float32 {
		s.scalar = (&shape{seed: s.seed, dtype: t, noise: s.noise}).content(-1, 8)
	}
	whole := lengths[0][0]
	alike := place(r, lengths[0], gaps && s.kind.Varies())
	uniform := place(r, slices.Repeat([]int{whole}, ranks), false)
	one := parts{counts: []int{whole}, at: []int{0}}
	s.in, s.out = nil, nil
	for q := range ranks {
		in, out := one, one
		own := parts{counts: []int{alike.counts[q]}, at: []int{0}}
		switch s.kind {
		case AllGather, Gather:
			out = uniform
		case ReduceScatter, Scatter:
			in = uniform
		case AllToAll:
			in, out = uniform, uniform
		case AllGatherV:
			in, out = own, alike
		case ReduceScatterV:
			in, out = alike, own
		case AllToAllV:
			var wanted []int
			for _, row := range lengths {
				wanted = append(wanted, row[q])
			}
			in, out = place(r, lengths[q], gaps), place(r, wanted, gaps)
		default:
		}
		s.in, s.out = append(s.in, in), append(s.out, out)
	}
}

// content makes n bytes of a rank.
func (s *shape) content(rank, n int) []byte {
	r := rand.New(rand.NewPCG(s.seed, uint64(rank)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	if !s.noise {
		// Clear the top of the exponent, or of the integer, so that little overflows.
		for at := 0; at < len(b); at += s.dtype.Size() {
			b[at+s.dtype.Size()-1] &^= 0x40
		}
	}
	if s.dtype == weft.Bool {
		for i := range b {
			b[i] &= b[i] >> 4 & b[i] << 4
		}
	}
	return b
}

// memory finds room for n bytes of a rank in its window or outside; second is the second operand.
func (s *shape) memory(w []byte, rank, n int, second bool) []byte {
	mem := w[:len(w)/2]
	if second {
		mem = w[len(w)/2:]
	}
	if !s.window[rank] {
		mem = make([]byte, n+64)
	}
	return mem[s.align[rank]:][:n:n]
}

// operands are those of one rank: its memory, and what was in it.
type operands struct {
	in, out           []byte // views of their operand, one in the other if the operation is in place
	wasIn, wasOut     []byte
	inPlace, has, put bool
}

func (s *shape) operands(rank int, window []byte) *operands {
	size := s.dtype.Size()
	o := &operands{has: s.kind.HasInput(rank, s.root), put: s.kind.HasOutput(rank, s.root)}
	ins, outs := size*s.in[rank].end(), size*s.out[rank].end()
	o.inPlace = s.inPlace[rank] && o.has && o.put
	if !o.inPlace {
		o.in, o.out = s.memory(window, rank, ins, false), s.memory(window, rank, outs, true)
	} else {
		o.in = s.memory(window, rank, max(ins, outs), false)
		o.out = o.in
		switch s.kind {
		case ReduceScatter, ReduceScatterV, Scatter:
			o.out = o.in[size*s.in[rank].at[rank]:][:outs:outs]
		case AllGather, AllGatherV, Gather:
			o.in = o.out[size*s.out[rank].at[rank]:][:ins:ins]
		default:
		}
	}
	copy(o.out, bytes.Repeat([]byte{0xA5}, outs))
	copy(o.in, s.content(rank, ins))
	o.wasIn, o.wasOut = bytes.Clone(o.in), bytes.Clone(o.out)
	return o
}

// want is the output of a rank, by plain loops over the live ranks.
func (s *shape) want(rank int, live []int, all []*operands) []byte {
	size := s.dtype.Size()
	part := func(mem []byte, p parts, r int) []byte {
		if len(p.counts) == 1 {
			r = 0
		}
		return mem[size*p.at[r]:][:size*p.counts[r]]
	}
	want := bytes.Clone(all[rank].wasOut)
	var rows [][]byte
	var hosts []int
	for _, q := range live {
		if s.hosts != nil {
			hosts = append(hosts, s.hosts[q])
		}
		if !s.kind.HasInput(q, s.root) {
			continue
		}
		row := part(all[q].wasIn, s.in[q], rank)
		rows = append(rows, row)
		if !s.kind.Reduces() {
			copy(part(want, s.out[rank], q), row)
		}
	}
	if s.kind.Reduces() {
		copy(want, byHost(s.op, s.dtype, s.scalar, rows, hosts, s.exact))
	}
	return want
}

// call is that of a rank.
func (s *shape) call(rank int, o *operands) Call {
	size := s.dtype.Size()
	c := Call{Collective: s.kind, Op: s.op, Root: s.root}
	if o.has {
		c.In = weft.TensorAt(o.in, s.dtype, len(o.in)/size)
	}
	if o.put {
		c.Out = weft.TensorAt(o.out, s.dtype, len(o.out)/size)
	}
	if s.op == weft.PreMulSum && s.kind.Reduces() {
		c.Scalar = weft.TensorAt(s.scalar, spec.ScalarType(s.dtype), 1)
	}
	told := func(p parts) (counts, at []int) {
		if p.gaps {
			return p.counts, p.at
		}
		return p.counts, nil
	}
	if s.kind == AllGatherV || s.kind == AllToAllV {
		c.Counts.Recv, c.Counts.RecvAt = told(s.out[rank])
	}
	if s.kind == ReduceScatterV || s.kind == AllToAllV {
		c.Counts.Send, c.Counts.SendAt = told(s.in[rank])
	}
	return c
}

// invoke calls the method of a collective, or Do for what no method says.
func invoke(ctx context.Context, g *Group, c Call) error {
	if c.Op == weft.PreMulSum && c.Collective.Reduces() || c.Collective == ReduceScatterV && c.Counts.SendAt != nil {
		return g.Do(ctx, nil, c)
	}
	switch c.Collective {
	case AllReduce:
		return g.AllReduce(ctx, nil, c.Out, c.In, c.Op)
	case ReduceScatter:
		return g.ReduceScatter(ctx, nil, c.Out, c.In, c.Op)
	case ReduceScatterV:
		return g.ReduceScatterV(ctx, nil, c.Out, c.In, c.Counts.Send, c.Op)
	case Reduce:
		return g.Reduce(ctx, nil, c.Out, c.In, c.Op, c.Root)
	case AllGather:
		return g.AllGather(ctx, nil, c.Out, c.In)
	case AllGatherV:
		return g.AllGatherV(ctx, nil, c.Out, c.In, c.Counts.Recv, c.Counts.RecvAt)
	case AllToAll:
		return g.AllToAll(ctx, nil, c.Out, c.In)
	case AllToAllV:
		return g.AllToAllV(ctx, nil, c.Out, c.In, c.Counts)
	case Gather:
		return g.Gather(ctx, nil, c.Out, c.In, c.Root)
	case Scatter:
		return g.Scatter(ctx, nil, c.Out, c.In, c.Root)
	case Broadcast:
		if c.Out.Data == c.In.Data || c.In.IsZero() {
			return g.Broadcast(ctx, nil, c.Out, c.Root)
		}
		return g.Do(ctx, nil, c)
	default:
		return g.Barrier(ctx, nil)
	}
}

// check runs one case on the live ranks and compares all their memory.
func (s *shape) check(t failer, j *job, windows []*weft.Window, live []int, v variant) {
	t.Helper()
	all := make([]*operands, len(j.comms))
	for _, r := range live {
		all[r] = s.operands(r, windows[r].Bytes())
	}
	eachRank(t, live, func(ctx context.Context, r int) error {
		return invoke(ctx, v.groups[r], s.call(r, all[r]))
	})
	s.compare(t, all, live, v)
}

// compare compares the memory of all ranks with what it should be.
func (s *shape) compare(t failer, all []*operands, live []int, v variant) {
	t.Helper()
	for _, r := range live {
		o := all[r]
		what := fmt.Sprintf("%s: %v, %v of %v on rank %d of %v", v.name, s.kind, s.op, s.dtype, r, live)
		if o.put {
			same(t, what, o.out, s.want(r, live, all), s.dtype.Size())
		}
		if o.has && !o.inPlace {
			same(t, what+": input", o.in, o.wasIn, s.dtype.Size())
		}
	}
}

// failer is what *testing.T and *rapid.T share.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// eachRank runs f as every live rank.
func eachRank(t failer, live []int, f func(ctx context.Context, rank int) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	errs := make(chan error, len(live))
	for _, r := range live {
		go func() { errs <- f(ctx, r) }()
	}
	var list []error
	for range live {
		list = append(list, <-errs)
	}
	if err := errors.Join(list...); err != nil {
		t.Fatal(err)
	}
}

func same(t failer, what string, got, want []byte, size int) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := 0; i < len(want); i += size {
		if !bytes.Equal(got[i:i+size], want[i:i+size]) {
			t.Fatalf("%s: element %d of %d is %x, want %x", what, i/size, len(want)/size, got[i:i+size], want[i:i+size])
		}
	}
}

// mostElements of a part: with little scratch an operation takes hundreds of rounds.
const mostElements = 40_000

// alloc gives every rank a window for the operands of any case.
func (j *job) alloc(t testing.TB) []*weft.Window {
	t.Helper()
	windows := make([]*weft.Window, len(j.comms))
	j.must(t, func(ctx context.Context, r int) (err error) {
		windows[r], err = j.comms[r].Alloc(ctx, 2*(8*(mostElements+(3001+8)*len(j.comms))+128))
		return err
	})
	return windows
}

func ranksUpTo(n int) (all []int) {
	for r := range n {
		all = append(all, r)
	}
	return all
}

// TestConformance compares every collective with plain loops, on 1 to 8 ranks. Of the larger numbers of ranks a
// collective has a power of two and another one; with WEFT_TEST_ALL=1 all.
func TestConformance(t *testing.T) {
	sizes := []int{1, 2, 3, 4, 5, 8}
	if testing.Short() {
		sizes = []int{1, 2, 5}
	}
	for _, ranks := range sizes {
		j := newJob(t, ranks)
		windows := j.alloc(t)
		for kind := AllReduce; kind < spec.Collectives; kind++ {
			if inTurn := kind%2 == 0; !emulate.Everything() && !testing.Short() && ranks > 2 &&
				inTurn != (ranks == 3 || ranks == 8) {
				continue
			}
			t.Run(fmt.Sprintf("%v ranks=%d", kind, ranks), func(t *testing.T) {
				variants := j.variants(t, kind)
				rapid.Check(t, func(t *rapid.T) {
					s := drawShape(t, kind, ranks, mostElements/ranks)
					s.check(t, j, windows, ranksUpTo(ranks), variants[rapid.IntRange(0, len(variants)-1).Draw(t, "variant")])
				})
				for _, v := range variants {
					for _, g := range v.groups {
						if err := g.Close(); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
		}
	}
}
