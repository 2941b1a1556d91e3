package ep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/closer"
)

// gpuRank is one rank on a GPU.
type gpuRank struct {
	*timing.GPU
	expected
	phases, gradients bool    // see GPUs
	nothing           float64 // microseconds of a kernel that does nothing

	handle   *ep.Handle
	batch    batch
	x        ep.Rows
	y, out   weft.Tensor
	known    *ep.Routing
	wantRows []wantRow
	host     []byte // where rows are compared
	scales   []byte // and their scales

	gradOut              weft.Tensor // the operands of CombineBackward
	gradRows             weft.Tensor // the results of CombineBackward for this rank's rows
	numbers, gradWeights weft.Tensor // gradients of weights: of this rank's rows, and of its selections
	checks               int
}

// wantRow is a row that a dispatch must deliver, and where.
type wantRow struct{ row, source, token, expert int }

// each does body for one shape after the other.
func (m *gpuRank) each(ctx context.Context, shapes []Shape, body func(ctx context.Context) error) error {
	for _, s := range shapes {
		m.cfg = s
		if err := body(ctx); err != nil {
			return fmt.Errorf("%s, %d tokens: %w", s.Contract(), s.Tokens, err)
		}
	}
	return nil
}

// shape measures all operations of one shape.
func (m *gpuRank) shape(ctx context.Context, each func(GPURow) error) (err error) {
	var c closer.Stack
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := m.setUp(ctx, &c); err != nil {
		return err
	}
	there, back := m.moves(&m.batch)
	operations := []timing.Operation{m.dispatches(ctx, there)}
	if m.phases {
		operations = append(operations, m.prepares(ctx), m.knownDispatches(ctx, there))
	}
	operations = append(operations, m.combines(ctx, back))
	if m.gradients {
		operations = append(operations, m.combinesBackward(ctx), m.dispatchesBackward(ctx, back))
	}
	for _, o := range operations {
		f, err := m.Measure(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Name, err)
		}
		if m.me == 0 {
			if err := each(m.gpuRow(o, f)); err != nil {
				return err
			}
		}
	}
	return m.Meet(nil)
}

// setUp makes the handle, the routing and the tensors of a shape.
func (m *gpuRank) setUp(ctx context.Context, c *closer.Stack) (err error) {
	cfg := m.cfg
	if m.spec, err = cfg.DeviceSpec(m.ranks); err != nil {
		return err
	}
	if err := m.makeRows(); err != nil {
		return err
	}
	gen, err := routing.New(routing.Config{
		Kind: cfg.Routing, Seed: cfg.Seed, Ranks: m.ranks,
		Experts: cfg.Experts, TopK: cfg.TopK,
	})
	if err != nil {
		return err
	}
	m.batch = batch{ids: make([][]int32, m.ranks)}
	for r := range m.ranks {
		ids, weights := gen.Route(r, cfg.Tokens)
		m.batch.ids[r] = ids
		m.batch.all = append(m.batch.all, weights)
	}
	m.batch.weights = m.batch.all[m.me]
	m.wantRows = m.wantRows[:0]
	m.eachRow(&m.batch, func(row, source, token,
		expert int,
	) {
		m.wantRows = append(m.wantRows, wantRow{row, source, token, expert})
	})
	slices.SortFunc(m.wantRows, func(a, b wantRow) int { return cmp.Compare(a.row, b.row) })
	if m.handle, err = ep.NewHandle(ctx, m.Comm, m.spec); err != nil {
		return err
	}
	c.Add(m.handle.Close)
	if m.batch.topk, err = m.tensor(c, weft.Int32, cfg.Tokens, cfg.TopK); err != nil {
		return err
	}
	if m.batch.weight, err = m.tensor(c, weft.Float32, cfg.Tokens, cfg.TopK); err != nil {
		return err
	}
	if err := m.makeTokens(c); err != nil {
		return err
	}
	if m.out, err = m.tensor(c, m.spec.Output, cfg.Tokens, cfg.Hidden); err != nil {
		return err
	}
	ids, weights := m.batch.ids[m.me], m.batch.weights
	if err := m.Context.Upload(m.batch.topk.Pointer(),
		unsafe.Slice((*byte)(unsafe.Pointer(&ids[0])), 4*len(ids))); err != nil {
		return err
	}
	if err := m.Context.Upload(m.batch.weight.Pointer(),
		unsafe.Slice((*byte)(unsafe.Pointer(&weights[0])), 4*len(weights))); err != nil {
		return err
	}
	// The routing of combines. Also the first operation, which nothing is learnt from.
	received, err := m.handle.Dispatch(ctx, m.Work, ep.DispatchArgs{
		TopK: m.batch.topk, Weights: m.batch.weight, Rows: m.x,
	})
	if err != nil {
		return err
	}
	c.Add(func() error { received.Routing.Release(); return nil })
	m.known = received.Routing
	if m.spec.Layout == ep.TokenMajor && received.Data.DType == m.spec.Output {
		m.y = received.Data // which others read where it is
		c.Add(func() error { received.Release(); return nil })
	} else {
		shape := slices.Clone(received.Data.Shape)
		received.Release()
		if buffer := m.handle.CombineBuffer(); !buffer.IsZero() {
			m.y = weft.Tensor{Data: buffer.Data, DType: buffer.DType, Shape: shape}
		} else if m.y, err = m.tensor(c, m.spec.Output, shape...); err != nil {
			return err
		}
	}
	if m.gradients {
		if err := m.makeGradients(c); err != nil {
			return err
		}
	}
	return m.Comm.Wait(ctx, m.Work)
}

// makeTokens makes the tensors of this rank's tokens.
func (m *gpuRank) makeTokens(c *closer.Stack) (err error) {
	n, hidden := m.cfg.Tokens, m.cfg.Hidden
	m.x = ep.Rows{}
	if m.x.Data, err = m.tensor(c, m.input(), n, hidden); err != nil || !m.cfg.given() {
		return err
	}
	scale := weft.Float32
	if m.spec.Payload == ep.FP8UE8M0 {
		scale = weft.UE8M0
	}
	m.x.Scales, err = m.tensor(c, scale, n, hidden/ep.ScaleBlock)
	return err
}

// input is the type of the rows that this rank dispatches.
func (m *gpuRank) input() weft.DType {
	if m.cfg.given() {
		return m.payload
	}
	return m.spec.Output
}

// tensor allocates a tensor on the GPU.
func (m *gpuRank) tensor(c *closer.Stack, d weft.DType, shape ...int) (weft.Tensor, error) {
	t := weft.Tensor{DType: d, Shape: shape}
	memory, err := m.Context.Alloc(t.Bytes())
	if err != nil {
		return t, err
	}
	c.Add(memory.Close)
	return weft.DeviceTensor(memory.Pointer(), d, shape...), nil
}

// room is host memory for n bytes, until it is asked for again.
func (m *gpuRank) room(n int) []byte {
	if len(m.host) < n {
		m.host = make([]byte, n)
	}
	return m.host[:n]
}

// runs calls f with every sequence of rows that stand side by side, which are copied in one go.
func (m *gpuRank) runs(f func(run []wantRow) error) error {
	const longest = 256
	for rest := m.wantRows; len(rest) > 0; {
		n := 1
		for n < min(len(rest), longest) && rest[n].row == rest[0].row+n {
			n++
		}
		if err := f(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// writeTokens makes other rows of this rank's tokens than before.
func (m *gpuRank) writeTokens() error {
	m.salt += 1 << 16
	if err := m.uploadTokens(m.x.Data); err != nil || !m.cfg.given() {
		return err
	}
	n := m.scaleBytes()
	scales := m.room(m.cfg.Tokens * n)
	for t := range m.cfg.Tokens {
		m.putScales(scales[t*n:(t+1)*n], m.scalesFor(m.me, t))
	}
	return m.Context.Upload(m.x.Scales.Pointer(), scales)
}

// uploadTokens writes the rows of this rank's tokens into a tensor, in the tensor's type.
func (m *gpuRank) uploadTokens(to weft.Tensor) error {
	n := m.cfg.Hidden * to.DType.Size()
	rows := m.room(m.cfg.Tokens * n)
	for t := range m.cfg.Tokens {
		copy(rows[t*n:], m.row(to.DType, m.me, t, 0))
	}
	return m.Context.Upload(to.Pointer(), rows)
}

// writeExperts writes the experts' outputs for the tokens' rows, and spoils the old sums.
func (m *gpuRank) writeExperts() error { return cmp.Or(m.writeRows(), m.spoil(m.out)) }

// writeRows writes the experts' outputs for the tokens' rows.
func (m *gpuRank) writeRows() error {
	m.salt += 1 << 16
	n := m.cfg.Hidden * m.spec.Output.Size()
	return m.runs(func(run []wantRow) error {
		rows := m.room(len(run) * n)
		for i, p := range run {
			who := p.expert
			if who < 0 {
				who = m.me
			}
			copy(rows[i*n:], m.row(m.spec.Output, p.source, p.token, down(who)))
		}
		return m.Context.Upload(m.y.Pointer().Add(run[0].row*n), rows)
	})
}

// checkArrived compares every row that must have arrived.
func (m *gpuRank) checkArrived(received *ep.Received) error {
	if n := received.Received(); n != len(m.wantRows) {
		m.complain("dispatch: %d rows reported, %d sent", n, len(m.wantRows))
	}
	n := m.cfg.Hidden * m.payload.Size()
	if m.scaleBytes() > 0 {
		if err := m.download(&m.scales, received.Scales); err != nil {
			return err
		}
	}
	return m.runs(func(run []wantRow) error {
		rows := m.room(len(run) * n)
		if err := m.Context.Download(rows, received.Data.Pointer().Add(run[0].row*n)); err != nil {
			return err
		}
		for i, p := range run {
			m.checkRow(rows[i*n:(i+1)*n], m.scalesOf(m.scales, received.Scales, p.row), p.row, p.source, p.token, p.expert)
		}
		return nil
	})
}

// download brings a tensor to host memory, which it makes where there is too little.
func (m *gpuRank) download(to *[]byte, t weft.Tensor) error {
	n := t.Bytes()
	if cap(*to) < n {
		*to = make([]byte, n)
	}
	*to = (*to)[:n]
	return m.Context.Download(*to, t.Pointer())
}

// checkCounts compares a routing's counts with the expected ones.
func (m *gpuRank) checkCounts(r *ep.Routing) error {
	want := routing.Count(m.batch.ids[m.me], m.cfg.TopK, m.me, m.cfg.Experts/m.ranks)
	got := r.Traffic()
	if got.Received != len(m.wantRows) || got.Selections != want.Selections || got.Visits != want.RankRows ||
		got.RemoteRows != want.RemoteRankRows {
		m.complain("prepare: it counts %+v, but %d rows come here and %+v is sent", got, len(m.wantRows), want)
	}
	return m.Comm.Err()
}

// checkOut recomputes the sums of some tokens, which an operation has left.
func (m *gpuRank) checkOut(op string, weighted bool) error {
	out := m.room(m.out.Bytes())
	if err := m.Context.Download(out, m.out.Pointer()); err != nil {
		return err
	}
	m.checkSums(&m.batch, out, m.checks, op, weighted)
	m.checks++
	return nil
}
