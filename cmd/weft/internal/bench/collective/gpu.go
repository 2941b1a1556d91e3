package collective

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/closer"
)

// GPUs measures collectives between ranks on GPUs.
type GPUs struct {
	timing.GPUs
	Graph    bool // time graphs of many operations, and not calls
	Loopback bool // one rank, whose peers are regions of its own GPU
	SMs      int  // these are of [collective.Options]
	Staging  int
}

// Measure measures the sizes of a sweep one after the other, and calls each with every row, from one
// goroutine. Whether the outputs were right is in the row.
func (g GPUs) Measure(ctx context.Context, s Sweep, each func(measure.Record) error) error {
	ranks := g.Ranks
	if g.Loopback {
		g.Ranks = 1
	}
	if g.Ways = timing.Eager; g.Graph {
		g.Ways = timing.InGraph
	}
	var err error
	if g.GPUs, err = g.WithDefaults(); err != nil {
		return err
	}
	if ranks == 0 {
		ranks = g.Ranks
	}
	return g.Run(ctx, func(ctx context.Context, t *timing.GPU) (err error) {
		m := &gpuRank{GPU: t, of: &g, ranks: ranks}
		var c closer.Stack
		defer func() { err = errors.Join(err, c.Close()) }()
		if err := m.open(ctx, &s, &c); err != nil {
			return err
		}
		for _, n := range s.sizes() {
			row, err := m.measure(ctx, &s, n)
			if err == nil && t.Me == 0 {
				err = each(row)
			}
			if err := errors.Join(err, t.Meet(nil)); err != nil {
				return err
			}
		}
		return nil
	})
}

// gpuRank measures on one rank.
type gpuRank struct {
	*timing.GPU
	of      *GPUs
	ranks   int // also those of a loopback
	group   *collective.Group
	in, out cuda.Pointer
	windows bool   // operands lie in windows, and calls are symmetric
	piece   []byte // of an operand, on its way
	norm    *normed

	empty, dependent timing.Figures // of kernels that do nothing
}

// pieceBytes is how much of an operand is made and compared at a time.
const pieceBytes = 8 << 20

// open makes all that exchanges use. Memory is allocated here alone, for to allocate waits for kernels
// of ranks on the same GPU.
func (m *gpuRank) open(ctx context.Context, s *Sweep, c *closer.Stack) (err error) {
	dtype, err := weft.ParseDType(s.DType)
	if err != nil {
		return err
	}
	least := int64(m.ranks * dtype.Size()) // sizes below are rounded up
	most := int(max(least, slices.Max(s.sizes()), int64(s.Hidden*dtype.Size())))
	m.windows = !s.Heap && s.Hidden == 0
	for _, operand := range []*cuda.Pointer{&m.in, &m.out} {
		if *operand, err = m.alloc(ctx, most, !m.windows, c); err != nil {
			return err
		}
	}
	m.piece = make([]byte, min(pieceBytes, most))
	o, err := s.Options()
	if err != nil {
		return err
	}
	o.SMs, o.Staging = m.of.SMs, m.of.Staging
	if m.of.Loopback {
		o.Loopback = m.ranks
	}
	if m.group, err = collective.New(ctx, m.Comm, o); err != nil {
		return err
	}
	c.Add(m.group.Close)
	if s.Hidden > 0 {
		if err := m.openNorm(ctx, s, most, c); err != nil {
			return err
		}
	}
	if m.empty, err = m.nothing(ctx, false); err != nil {
		return err
	}
	if major, _, err := m.Context.Device().ComputeCapability(); err != nil || major < 9 {
		return err
	}
	m.dependent, err = m.nothing(ctx, true)
	return err
}

// alloc allocates memory for an operand, in a window unless it is to be outside of any. That of a loopback has
// the peers' operands behind this rank's, which are zeros.
func (m *gpuRank) alloc(ctx context.Context, size int, heap bool, c *closer.Stack) (cuda.Pointer, error) {
	if heap {
		memory, err := m.Context.Alloc(size)
		if err != nil {
			return 0, err
		}
		c.Add(memory.Close)
		return memory.Pointer(), nil
	}
	if m.of.Loopback {
		const aligned = 256
		size = (size + aligned - 1) / aligned * aligned * m.ranks
	}
	w, err := m.Comm.Alloc(ctx, size)
	if err != nil {
		return 0, err
	}
	c.Add(w.Close)
	return w.Pointer(), errors.Join(m.Stream.Memset(w.Pointer(), 0, size), m.Stream.Synchronize())
}

// nothing times a kernel that does nothing.
func (m *gpuRank) nothing(ctx context.Context, dependent bool) (f timing.Figures, err error) {
	l, err := m.Empty(cuda.LaunchConfig{Dependent: dependent})
	if err != nil {
		return f, err
	}
	return m.GPU.Measure(ctx, timing.Operation{Run: func(bool) error { return l.Start(m.Stream) }})
}

func (m *gpuRank) measure(ctx context.Context, s *Sweep, n int64) (row measure.Record, err error) {
	x, err := s.newExchange(n, m.Me, m.ranks, m.of.Loopback)
	if err != nil {
		return row, err
	}
	if m.norm != nil {
		m.norm.attach(x)
		x.in.units = [][]byte{m.norm.in}
	}
	o := m.operation(ctx, x)
	// The first call loads kernels, and a capture cannot wait for that.
	if err := errors.Join(o.Renew(true), m.Meet(nil), o.Run(false), m.Comm.Wait(ctx, m.Work)); err != nil {
		return row, err
	}
	f, err := m.GPU.Measure(ctx, o)
	if err != nil {
		return row, err
	}
	return m.row(x, o, f)
}

// operation is the exchange on a GPU.
func (m *gpuRank) operation(ctx context.Context, x *exchange) timing.Operation {
	in, out := m.in.Add(x.inAt), m.out.Add(x.outAt)
	if x.inPlace {
		out = m.in.Add(x.outAt)
	}
	d := x.call.DType
	var from, to weft.Tensor
	if x.in != nil {
		from = weft.DeviceTensor(in, d, x.in.bytes()/d.Size())
	}
	if x.out != nil {
		to = weft.DeviceTensor(out, d, x.out.bytes()/d.Size())
	}
	x.operands(from, to)
	hasWindows := x.Collective != collective.Barrier && x.Collective != collective.PointToPoint
	if x.call.Symmetric = m.windows && hasWindows; x.call.Symmetric {
		x.Kind.run = do
	}
	o := timing.Operation{Name: x.Name, Bytes: x.bytes()}
	o.Run = func(bool) error { return x.run(ctx, m.group, m.Work) }
	o.Renew = func(bool) error {
		if x.out != nil {
			poison := byte(0xa5)
			if m.of.Loopback && x.call.Symmetric {
				poison = 0 // what others would store
			}
			if err := errors.Join(m.Stream.Memset(out, poison, x.out.bytes()), m.Stream.Synchronize()); err != nil {
				return err
			}
		}
		return m.pieces(x.in, func(at int, piece []byte) error {
			x.in.write(piece, at)
			return m.Context.Upload(in.Add(at), piece)
		})
	}
	o.Check = func() error {
		if x.inPlace { // one operation has read what the one before it wrote
			if err := errors.Join(o.Renew(true), m.Meet(nil), o.Run(true), m.Comm.Wait(ctx, m.Work)); err != nil {
				return err
			}
		}
		if m.norm != nil {
			return m.checkRows(x, out)
		}
		var wrong int64
		if err := m.pieces(x.out, func(at int, piece []byte) error {
			if err := m.Context.Download(piece, out.Add(at)); err != nil {
				return err
			}
			wrong += x.wrongElements(piece, at)
			return nil
		}); err != nil {
			return err
		}
		return x.verdict(wrong)
	}
	return o
}

// checkRows compares the rows of an output.
func (m *gpuRank) checkRows(x *exchange, out cuda.Pointer) error {
	wrong, piece := 0, m.piece[:len(m.piece)/m.norm.row*m.norm.row]
	for at := 0; at < x.size; at += len(piece) {
		rows := piece[:min(len(piece), x.size-at)]
		if err := m.Context.Download(rows, out.Add(at)); err != nil {
			return err
		}
		wrong += x.wrongRows(m.norm, rows)
	}
	if wrong > 0 && !(x.alone && m.norm.apart && wrong < x.ranks) {
		return x.verdict(int64(wrong) * int64(m.norm.row/x.call.DType.Size()))
	}
	return nil
}

// pieces calls f for each piece of an operand, if there is one.
func (m *gpuRank) pieces(c *content, f func(at int, piece []byte) error) error {
	if c == nil {
		return nil
	}
	for at, n := 0, c.bytes(); at < n; at += len(m.piece) {
		if err := f(at, m.piece[:min(len(m.piece), n-at)]); err != nil {
			return err
		}
	}
	return nil
}

// row is what was measured.
func (m *gpuRank) row(x *exchange, o timing.Operation, f timing.Figures) (row measure.Record, err error) {
	device, err := m.Context.Device().Name()
	us := measure.Micros
	row = measure.Record{
		Op: x.Name, Engine: "gpu", Ranks: m.ranks, DType: x.call.DType.String(), InPlace: x.inPlace,
		Mode: "eager", WireBytes: int64(o.Bytes.Wire), Collective: x.message(), Verified: f.Verified,
		GPU: &measure.GPU{
			GPUs: min(m.Ranks, len(m.Contexts)), Device: device, Loopback: m.of.Loopback, Operations: 1,
			Empty: us(m.empty.Eager.P50), Dependent: us(m.dependent.Eager.P50), Issue: us(f.Issue.P50),
			EmptyIssue: us(m.empty.Issue.P50),
		},
	}
	row.Wrong = f.Wrong
	if x.Collective.Reduces() {
		row.Reduction = x.call.Op.String()
	}
	if m.windows {
		row.Operand = "window"
	}
	sum := f.Eager
	if m.of.Graph {
		sum = each(f.Graph, m.Operations)
		sum.P99 = f.Tail.P99 / time.Duration(m.Operations)
		row.Mode, row.GPU.Operations = "graph", m.Operations
		row.GPU.Empty = us(each(m.empty.Graph, m.Operations).P50)
		row.GPU.Dependent = us(each(m.dependent.Graph, m.Operations).P50)
	}
	row.SetTimes(sum)
	return row, err
}

// each is the summary of one of n operations.
func each(s measure.Summary, n int) measure.Summary {
	for _, d := range []*time.Duration{&s.P50, &s.P99, &s.Min, &s.Max, &s.Mean} {
		*d /= time.Duration(n)
	}
	return s
}
