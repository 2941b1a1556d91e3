package pull

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	enginehost "github.com/weftgo/weft/engine/host"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

func (h *host) Combine(ctx context.Context, s *weft.Stream, a spec.SumArgs) error {
	if err := h.sendRowsHome(ctx, s, &a); err != nil {
		return err
	}
	return h.scratch.gather.receive(ctx)
}

func (h *host) SendCombine(ctx context.Context, s *weft.Stream, a spec.SumArgs) (*weft.Work, error) {
	if err := h.sendRowsHome(ctx, s, &a); err != nil {
		return nil, err
	}
	round := h.rounds.Last()
	return weft.NewWork(func(ctx context.Context) error {
		if err := h.Gate.Enter(spec.OpCombine); err != nil {
			return err
		}
		defer h.Gate.Leave()
		// The state of the second half is the host's; it is this one's only while nothing came
		// between.
		if err := h.resume(spec.OpCombine, round); err != nil {
			return err
		}
		return h.scratch.gather.receive(ctx)
	}), nil
}

func (h *host) sendRowsHome(ctx context.Context, s *weft.Stream, a *spec.SumArgs) error {
	const op = spec.OpCombine
	round, err := h.enter(op)
	if err != nil {
		return err
	}
	c := &h.scratch.gather
	*c = gather{
		h: h, op: op, round: round, call: newCall(callCombine, a.Batch, false),
		weighted: h.Spec.Weighting == spec.Weighted, SumArgs: *a,
	}
	own := cmp.Or(onHost(op, s), h.CheckSum(op, a))
	if own == nil {
		c.r = h.routingOf(a.Batch)
	}
	return c.send(ctx, own)
}

// gather brings rows home: combine, and the backward of dispatch. A handle has one at a time.
type gather struct {
	h        *host
	r        *hostRouting
	op       string
	round    uint64 // that opens it
	call     call
	weighted bool
	first    int // of the tokens that a job does
	spec.SumArgs

	borrowed bool
	bad      atomic.Int32 // 1 + a rank whose operand is too small
}

// operand is the memory of a rank whose rows are brought home.
type operand struct {
	base unsafe.Pointer
	rows int  // -1: the rank is masked
	far  bool // rows stand in the order of this rank's selections or tokens
}

// send makes this rank's rows readable and says so; or says that it refuses, and returns the error
// that all ranks return.
func (c *gather) send(ctx context.Context, own error) error {
	h := c.h
	if own != nil {
		return h.refuse(ctx, c.op, own)
	}
	rows, err := c.offer(ctx)
	if err != nil {
		return err
	}
	numbers, err := c.offerScalars(ctx)
	if err != nil {
		return err
	}
	h.rounds.PutOperands(rows, numbers)
	h.rounds.Moves(c.Rows.Bytes())
	h.sent.op, h.sent.round = c.op, h.rounds.Open(uint64(c.call))
	return c.ship(ctx)
}

// offer makes the rows, or this rank's partial sums of them, readable for their home ranks.
func (c *gather) offer(ctx context.Context) (enginehost.OperandRef, error) {
	h := c.h
	n := h.Spec.OutputSize()
	if h.partial != nil {
		if err := h.partial.Claim(ctx, c.op, c.round); err != nil {
			return enginehost.OperandRef{}, err
		}
		c.eachNear(len(c.r.recvRows)*n, (*sumHere)(c))
		return enginehost.In(h.partial.Window, 0, uint32(n)), nil
	}
	if rows, ok := h.rounds.FindHere(c.Rows.Data, c.Rows.Bytes(), uint32(n)); ok {
		c.borrowed = true
		return rows, nil
	}
	if c.Rows.Elems() == 0 {
		return enginehost.OperandRef{}, nil
	}
	if err := h.stage.Claim(ctx, c.op, c.round); err != nil {
		return enginehost.OperandRef{}, err
	}
	c.eachNear(c.r.kept*n, (*stageRows)(c))
	return enginehost.In(h.stage.Window, 0, uint32(n)), nil
}

// eachNear does j for the received tokens of this host's ranks.
func (c *gather) eachNear(bytes int, j job) {
	h, r := c.h, c.r
	if h.far == nil || h.byHost() { // sums for other hosts are formed of all rows
		h.each(len(r.recvTokens), bytes, j)
		return
	}
	for _, src := range h.rounds.Live {
		if from, to := int(r.firstToken[src]), int(r.firstToken[src+1]); !h.rounds.Far(src) && from < to {
			c.first = from
			h.each(to-from, bytes/len(r.recvTokens)*(to-from), j)
		}
	}
	c.first = 0
}

// stageRows copies received rows to the stage.
type stageRows gather

func (c *stageRows) rows(from, to int) {
	n := c.h.Spec.OutputSize()
	base := unsafe.Pointer(unsafe.SliceData(c.h.stage.Window.Bytes()))
	stream := c.r.kept*n >= streamBytes
	for i := c.first + from; i < c.first+to; i++ {
		for _, l := range c.r.rowsOf(int32(i)) {
			if l.row >= 0 {
				simd.Copy(unsafe.Add(base, int(l.row)*n), unsafe.Add(c.Rows.Data, int(l.row)*n), n, stream)
			}
		}
	}
	if stream {
		simd.StoreFence()
	}
}

// sumHere sums the rows of every received token into one row: fp32, k ascending, rounded once.
type sumHere gather

func (c *sumHere) rows(from, to int) {
	h := c.h
	n := h.Spec.OutputSize()
	t := element(h.Spec.Output)
	out := unsafe.Pointer(unsafe.SliceData(h.partial.Window.Bytes()))
	var rows [spec.MaxTopK]unsafe.Pointer
	var weights [spec.MaxTopK]float32
	for i := c.first + from; i < c.first+to; i++ {
		k := 0
		for _, l := range c.r.rowsOf(int32(i)) {
			if l.row >= 0 {
				rows[k], weights[k] = unsafe.Add(c.Rows.Data, int(l.row)*n), l.weight
				k++
			}
		}
		dst := unsafe.Add(out, i*n)
		if c.weighted {
			simd.WeightedSum(t, dst, h.Spec.Hidden, rows[:k], weights[:k], nil)
		} else {
			simd.PlainSum(t, dst, h.Spec.Hidden, rows[:k], nil)
		}
	}
}

func (c *gather) offerScalars(ctx context.Context) (enginehost.OperandRef, error) {
	h := c.h
	if c.Scalars.IsZero() {
		return enginehost.OperandRef{}, nil
	}
	if err := h.scalars.Claim(ctx, c.op, c.round); err != nil {
		return enginehost.OperandRef{}, err
	}
	copy(h.scalars.Window.Bytes(), c.Scalars.Raw())
	return enginehost.In(h.scalars.Window, 0, 4), nil
}

// receive sums at home.
func (c *gather) receive(ctx context.Context) error {
	h := c.h
	if err := h.resume(c.op, c.round); err != nil {
		return err
	}
	if err := h.awaitCalls(ctx, c.round, c.op, nil); err != nil {
		return err
	}
	if !c.Weights.IsZero() { // all ranks take part
		c.r.setWeights(c.Weights)
	}
	if err := c.home(ctx); err != nil {
		return err
	}
	if !c.OutScalars.IsZero() {
		if err := h.fetchScalars(ctx, c.r, c.round, c.OutScalars, c.op, 1); err != nil {
			return err
		}
	}
	if err := h.leave(ctx, c.op); err != nil {
		return err
	}
	if c.borrowed {
		return h.ended(h.rounds.AwaitLeft(ctx, c.op, c.round))
	}
	return h.ended(nil)
}

// home sums the rows of this rank's tokens.
func (c *gather) home(ctx context.Context) error {
	h := c.h
	n := h.Spec.OutputSize()
	for d := range h.scratch.operands {
		h.scratch.operands[d] = operand{rows: -1}
	}
	for _, d := range h.rounds.Live {
		if h.rounds.Far(d) {
			mem := h.far.sumsFrom(d)
			h.scratch.operands[d] = operand{pointer(mem), len(mem) / n, true}
			continue
		}
		mem, err := h.rounds.Resolve(d, h.operand(d, 0), c.op)
		if err != nil {
			return err
		}
		h.scratch.operands[d] = operand{pointer(mem), len(mem) / n, false}
	}
	if h.byHost() {
		if err := c.shipSums(ctx); err != nil {
			return err
		}
	}
	if h.far != nil {
		if err := c.homeByBlocks(ctx); err != nil {
			return err
		}
	} else {
		h.each(c.r.batch.Tokens, c.r.traffic.Selections*n, c.homeJob())
	}
	if d := c.bad.Load(); d != 0 {
		return h.rounds.Broken(outside(int(d)-1, c.op))
	}
	return nil
}

// homeJob sums tokens at home.
func (c *gather) homeJob() job {
	if c.h.byHost() {
		return (*hostHome)(c)
	}
	return (*sumHome)(c)
}

type sumHome gather

func (c *sumHome) rows(from, to int) {
	r, s := c.r, &c.h.Spec
	n := s.OutputSize()
	t := element(s.Output)
	exact := s.Layout.ByExpert() && s.Reduction == spec.Exact
	var rows [spec.MaxTopK]unsafe.Pointer
	var bias [2]unsafe.Pointer
	for tok := c.first + from; tok < c.first+to; tok++ {
		for i := range c.Biases {
			bias[i] = unsafe.Add(c.Bias[i].Data, tok*n)
		}
		dst := unsafe.Add(c.Out.Data, tok*n)
		k := 0
		if exact {
			for i := tok * s.TopK; i < (tok+1)*s.TopK; i++ {
				rows[k] = nil
				if row := r.rows[i]; row >= 0 {
					d := int(r.experts[i]) / c.h.Geometry.Local
					if c.h.scratch.operands[d].far {
						row = r.nth[i]
					}
					rows[k] = c.row(d, int(row), n)
				}
				k++
			}
			if c.weighted {
				simd.WeightedSum(t, dst, s.Hidden, rows[:k], r.weights[tok*s.TopK:(tok+1)*s.TopK], bias[:c.Biases])
				continue
			}
		} else {
			for _, v := range r.destinations[r.firstDestination[tok]:r.firstDestination[tok+1]] {
				if !v.live {
					continue
				}
				row := v.row
				switch {
				case c.h.scratch.operands[v.rank].far:
					row = v.nth
				case s.Layout.ByExpert():
					row = v.index
				}
				rows[k] = c.row(int(v.rank), int(row), n)
				k++
			}
		}
		simd.PlainSum(t, dst, s.Hidden, rows[:k], bias[:c.Biases])
	}
}

// row finds a row at a rank; nil if the rank is masked.
func (c *sumHome) row(rank, row, n int) unsafe.Pointer {
	o := c.h.scratch.operands[rank]
	if o.rows < 0 {
		return nil
	}
	if row < 0 || row >= o.rows {
		c.bad.Store(int32(rank) + 1)
		return nil
	}
	return unsafe.Add(o.base, row*n)
}

func outside(rank int, op string) *weft.PeerError {
	return &weft.PeerError{
		Rank: rank, Op: op,
		Err: fmt.Errorf("%w: its operand is smaller than its routing says", weft.ErrMismatch),
	}
}
