package pull

import (
	"cmp"
	"context"
	"fmt"
	"unsafe"

	enginehost "github.com/weftgo/weft/engine/host"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

// hostDispatch is a dispatch that the host engine has sent.
type hostDispatch struct {
	h           *host
	r           *hostRouting
	op          string
	offset      int    // of the memory for what arrives
	round       uint64 // that opened it
	borrowed    bool
	prepared    bool // the batch was made for it
	withWeights bool // weights come with the rows
}

func (h *host) Dispatch(ctx context.Context, s *weft.Stream, a spec.MoveArgs) (spec.Arrived, error) {
	d, err := h.send(ctx, s, &a)
	if err != nil {
		return spec.Arrived{}, err
	}
	return d.Receive(ctx)
}

func (h *host) SendDispatch(ctx context.Context, s *weft.Stream, a spec.MoveArgs) (spec.SecondHalf, error) {
	d, err := h.send(ctx, s, &a)
	if err != nil {
		return nil, err
	}
	return &d, nil
}

// send sends the rows of a batch, which it prepares first if that is asked for. It returns a value,
// which a dispatch in one call keeps off the heap.
func (h *host) send(ctx context.Context, s *weft.Stream, a *spec.MoveArgs) (hostDispatch, error) {
	if !a.Prepares() {
		return h.sendRows(ctx, spec.OpDispatch, s, a.Batch, a)
	}
	r, err := h.route(ctx, spec.OpPrepareDispatch, callPrepareDispatch, s, a.TopK, a.Weights)
	if err != nil {
		return hostDispatch{}, err
	}
	d, err := h.sendRows(ctx, spec.OpPrepareDispatch, s, r.batch, a)
	if err != nil {
		r.batch.Release()
	}
	d.prepared = true
	return d, err
}

func (h *host) sendRows(ctx context.Context, op string, s *weft.Stream, r *spec.Batch,
	a *spec.MoveArgs,
) (hostDispatch, error) {
	round, err := h.enter(op)
	if err != nil {
		return hostDispatch{}, err
	}
	own := cmp.Or(onHost(op, s), a.Check(h.Base, op))
	if own == nil {
		own = h.CheckRows(op, r.Tokens, a)
	}
	var offset int
	if own == nil {
		offset, own = h.block()
	}
	if own == nil && a.BringsWeights() {
		own = h.offerWeights(ctx, round, h.routingOf(r), a.Weights)
		if own != nil {
			h.pool.put(offset)
		}
	}
	if own != nil {
		return hostDispatch{}, h.refuse(ctx, op, own)
	}
	data, scales, borrowed, err := h.offerRows(ctx, round, r.Tokens, a, op)
	if err != nil {
		h.pool.put(offset)
		return hostDispatch{}, err
	}
	h.rounds.PutOperands(data, scales)
	h.rounds.Moves(r.Tokens * h.Spec.RowSize())
	h.sent.op, h.sent.round = op, h.rounds.Open(uint64(newCall(callDispatch, r, a.BringsWeights())))
	if err := h.far.ship(ctx, rowsMove{
		op: op, round: round, r: h.routingOf(r), data: data, scales: scales,
		rowBytes: h.Spec.RowSize(), scaleBytes: h.Spec.ScaleSize(),
	}); err != nil {
		h.pool.put(offset)
		return hostDispatch{}, err
	}
	return hostDispatch{
		h: h, r: h.routingOf(r), op: op, offset: offset, round: round, borrowed: borrowed,
		withWeights: a.BringsWeights(),
	}, nil
}

// offerWeights writes other weights of the batch's selections where ranks find them, as a Prepare
// does.
func (h *host) offerWeights(ctx context.Context, round uint64, r *hostRouting, weights weft.Tensor) error {
	const op = spec.OpDispatch
	if err := h.claimMetadata(ctx, op, round); err != nil {
		return err
	}
	out := h.metadata(h.Comm.Rank(), round)
	if err := h.writeMetadata(op, &out, weft.TensorOf(r.experts, r.batch.Tokens, h.Spec.TopK), weights); err != nil {
		return err
	}
	h.far.showMetadata(&out, round)
	return nil
}

// takeWeights gives the rows that come the weights that come with them, and this rank's selections
// those that it has sent. It returns a rank whose metadata is not that of the routing, or -1.
func (h *host) takeWeights(r *hostRouting, round uint64) int {
	h.keepWeights(r, round)
	me := h.Comm.Rank()
	for src := range h.Geometry.Ranks {
		if !h.live(src) || r.firstToken[src] == r.firstToken[src+1] {
			continue
		}
		view := h.metadata(src, round)
		first, n := int(view.first[me]), int(r.firstToken[src+1]-r.firstToken[src])
		if first < 0 || first > h.Geometry.Records()-n {
			return src
		}
		for i := range n {
			at := r.firstToken[src] + int32(i)
			rec := view.record(first + i)
			if *rec.token != r.recvTokens[at].token {
				return src
			}
			all := r.allOf(at)
			for j := range all {
				if k := all[j].k; k >= 0 {
					all[j].weight = rec.weights[k]
				}
			}
		}
	}
	h.reweigh(r, round)
	r.batch.Weights = spec.WeightsEverywhere
	return -1
}

// keepWeights takes this rank's weights from its own metadata: the caller's may have changed since
// they were sent.
func (h *host) keepWeights(r *hostRouting, round uint64) {
	k, out := h.Spec.TopK, h.metadata(h.Comm.Rank(), round)
	r.weights = sized(r.weights, r.batch.Tokens*k)
	for d, n := range out.tokens {
		for i := range n {
			rec := out.record(int(out.first[d] + i))
			for j, e := range rec.experts {
				if e >= 0 {
					r.weights[int(*rec.token)*k+j] = rec.weights[j]
				}
			}
		}
	}
}

// Receive implements [SecondHalf].
func (d *hostDispatch) Receive(ctx context.Context) (spec.Arrived, error) {
	a, err := d.finish(ctx)
	if err != nil {
		d.h.pool.put(d.offset)
		if d.prepared {
			d.r.batch.Release()
		}
	}
	return a, err
}

func (d *hostDispatch) finish(ctx context.Context) (a spec.Arrived, err error) {
	h := d.h
	if err := h.resume(d.op, d.round); err != nil {
		return a, err
	}
	if a, err = h.receiveRows(ctx, d); err == nil && d.borrowed {
		err = h.rounds.AwaitLeft(ctx, d.op, d.round)
	}
	return a, h.ended(err)
}

// block takes memory for what arrives.
func (h *host) block() (int, error) {
	offset, ok := h.pool.get()
	if !ok {
		return 0, weft.Unsupportedf("all memory for received rows is in use: release a received tensor, or "+
			"make the handle with more than %d Live",
			h.Spec.Live)
	}
	return offset, nil
}

// offerRows makes rows readable for the other ranks: where they are, or quantised or copied on the
// stage.
func (h *host) offerRows(ctx context.Context, round uint64, tokens int, x *spec.MoveArgs, op string) (
	data, scales enginehost.OperandRef, borrowed bool, err error,
) {
	s := &h.Spec
	rowBytes, scaleBytes := s.RowSize(), s.ScaleSize()
	if s.Quantize == weft.InvalidDType {
		data, ok := h.rounds.FindHere(x.Data.Data, tokens*rowBytes, uint32(rowBytes))
		if ok && scaleBytes == 0 {
			return data, enginehost.OperandRef{}, true, nil
		}
		if scales, both := h.rounds.FindHere(x.Scales.Data, tokens*scaleBytes, uint32(scaleBytes)); ok && both {
			return data, scales, true, nil
		}
	}
	if tokens == 0 {
		return enginehost.OperandRef{}, enginehost.OperandRef{}, false, nil
	}
	if err := h.stage.Claim(ctx, op, round); err != nil {
		return enginehost.OperandRef{}, enginehost.OperandRef{}, false, err
	}
	apart := spec.AlignUp[int]
	if h.far != nil { // gaps would cross the network
		apart = func(n int) int { return n }
	}
	data = enginehost.In(h.stage.Window, 0, uint32(apart(rowBytes)))
	if scaleBytes > 0 {
		scales = enginehost.In(h.stage.Window, uint64(s.MaxTokens*spec.AlignUp(rowBytes)), uint32(apart(scaleBytes)))
	}
	g := &h.scratch.stager
	*g = stager{
		spec: s, rowsAt: x.Data.Data, scalesAt: x.Scales.Data, data: data, scales: scales,
		base:   unsafe.Pointer(unsafe.SliceData(h.stage.Window.Bytes())),
		stream: tokens*rowBytes >= streamBytes,
	}
	h.each(tokens, tokens*rowBytes, g)
	return data, scales, false, nil
}

// stager copies rows to the stage, quantised or as they are.
type stager struct {
	spec             *spec.Spec
	rowsAt, scalesAt unsafe.Pointer // of the caller
	data, scales     enginehost.OperandRef
	base             unsafe.Pointer
	stream           bool
}

func (g *stager) rows(from, to int) {
	s := g.spec
	rowBytes, scaleBytes := s.RowSize(), s.ScaleSize()
	for t := from; t < to; t++ {
		row := unsafe.Add(g.base, t*int(g.data.Stride))
		scale := unsafe.Add(g.base, int(g.scales.Offset)+t*int(g.scales.Stride))
		if s.Quantize != weft.InvalidDType {
			in := unsafe.Add(g.rowsAt, t*s.Hidden*s.Quantize.Size())
			simd.QuantizeE4M3(element(s.Quantize), row, scale, in, s.Hidden, scaleKind(s))
			continue
		}
		simd.Copy(row, unsafe.Add(g.rowsAt, t*rowBytes), rowBytes, g.stream)
		if scaleBytes > 0 {
			simd.Copy(scale, unsafe.Add(g.scalesAt, t*scaleBytes), scaleBytes, false)
		}
	}
	if g.stream {
		simd.StoreFence()
	}
}

// streamBytes is the size of a move from which stores bypass the caches: more than a core's own
// cache holds.
const streamBytes = 4 << 20

// receiveRows pulls the rows that are this rank's from the ranks that have them.
func (h *host) receiveRows(ctx context.Context, d *hostDispatch) (a spec.Arrived, err error) {
	if err := h.awaitCalls(ctx, d.round, d.op, nil); err != nil {
		return a, err
	}
	s, r := &h.Spec, d.r
	shape := spec.NewBlockShape(*s, r.Rows())
	base := unsafe.Pointer(unsafe.SliceData(h.pool.window.Bytes()[d.offset:]))
	m := &h.scratch.mover
	*m = mover{
		h: h, r: r, round: d.round, rowBytes: s.RowSize(), scaleBytes: s.ScaleSize(),
		dst: base, dstScales: unsafe.Add(base, shape.ScalesAt), scaleRows: shape.Rows,
	}
	if s.Layout == spec.ExpertMajor {
		m.scaleRows = h.Geometry.Capacity
	}
	if err := m.pull(ctx, d.op); err != nil {
		return a, err
	}
	bad := -1
	if d.withWeights {
		bad = h.takeWeights(r, d.round)
	}
	if err := h.leave(ctx, d.op); err != nil {
		return a, err
	}
	if bad >= 0 {
		return a, h.rounds.Broken(&weft.PeerError{
			Rank: bad, Op: d.op,
			Err: fmt.Errorf("%w: its weights are not those of the routing's tokens", weft.ErrMismatch),
		})
	}
	buffer := d.offset / h.pool.size
	return spec.Arrived{
		Batch: r.batch, Buffer: buffer, Memory: base, Shape: shape, Generation: h.Buffers.Fill(buffer, r.batch.Epoch),
	}, nil
}

// mover pulls rows from their sources to the rows that a Routing gives them.
type mover struct {
	h                    *host
	r                    *hostRouting
	round                uint64
	rowBytes, scaleBytes int
	dst, dstScales       unsafe.Pointer
	scaleRows            int // rows that share a block of column-major scales
	// each, when set, replaces the copying of rows: it is called with every row and its source.
	each func(l recvRow, src unsafe.Pointer)

	// The source that is being read.
	first               int32 // its first token
	data, scales        unsafe.Pointer
	stride, scaleStride int
	stream              bool
}

func (m *mover) pull(ctx context.Context, op string) error {
	h, r := m.h, m.r
	m.stream = r.kept*m.rowBytes >= streamBytes
	me, n := h.Comm.Rank(), h.Comm.Size()
	// Each rank begins with itself and goes round, so that no rank is read by all at once.
	near := 0
	for i := range n {
		src := (me + i) % n
		if h.rounds.Far(src) {
			continue
		}
		near++
		from, to := r.firstToken[src], r.firstToken[src+1]
		if from == to {
			continue
		}
		if !h.live(src) {
			m.zeroFrom(from, to)
			continue
		}
		if err := m.open(src, r.recvTokens[to-1].token, op); err != nil {
			return err
		}
		m.first = from
		h.each(int(to-from), int(to-from)*m.rowBytes, m)
	}
	if near < n {
		if err := m.pullHosts(ctx, op); err != nil {
			return err
		}
	}
	m.zeroPads()
	return nil
}

// rows moves tokens of the open source.
func (m *mover) rows(from, to int) {
	r := m.r
	var rows [spec.MaxTopK]unsafe.Pointer
	for i := m.first + int32(from); i < m.first+int32(to); i++ {
		token := int(r.recvTokens[i].token)
		row := unsafe.Add(m.data, token*m.stride)
		k := 0
		for _, l := range r.rowsOf(i) {
			if l.row < 0 {
				continue
			}
			if m.each != nil {
				m.each(l, row)
				continue
			}
			rows[k] = unsafe.Add(m.dst, int(l.row)*m.rowBytes)
			k++
			if m.scaleBytes > 0 {
				m.putScales(int(l.row), unsafe.Add(m.scales, token*m.scaleStride))
			}
		}
		if m.h.Spec.Tuning.HostCopy != spec.CopyEach {
			simd.FanOut(rows[:k], row, m.rowBytes, m.stream)
			continue
		}
		for _, dst := range rows[:k] {
			simd.Copy(dst, row, m.rowBytes, m.stream)
		}
	}
	if m.stream {
		simd.StoreFence()
	}
}

// open finds the source's rows, and makes sure that the last one that is asked for lies inside its
// window.
func (m *mover) open(src int, last int32, op string) (err error) {
	// Read once: the source may overwrite them when it has gone on without this rank.
	data, scales := m.h.operand(src, 0), m.h.operand(src, 1)
	m.stride, m.scaleStride = int(data.Stride), int(scales.Stride)
	if m.data, err = m.operand(src, data, last, m.rowBytes, op); err != nil || m.scaleBytes == 0 {
		return err
	}
	m.scales, err = m.operand(src, scales, last, m.scaleBytes, op)
	return err
}

func (m *mover) operand(src int, p enginehost.OperandRef, last int32, rowBytes int, op string) (unsafe.Pointer, error) {
	mem, err := m.h.rounds.Resolve(src, p, op)
	if err != nil {
		return nil, err
	}
	// A token is numbered in 31 bits and a stride is one of 32: the sum cannot wrap.
	if need := uint64(last)*uint64(p.Stride) + uint64(rowBytes); need > uint64(len(mem)) {
		err := fmt.Errorf("%w: it offers %d bytes where its routing needs %d", weft.ErrMismatch, len(mem), need)
		return nil, m.h.rounds.Broken(&weft.PeerError{Rank: src, Op: op, Err: err})
	}
	return unsafe.Pointer(unsafe.SliceData(mem)), nil
}

// putScales stores the scales of a row in the order that the handle gives them; without a source,
// zeros.
func (m *mover) putScales(row int, src unsafe.Pointer) {
	if m.h.Spec.ScaleOrder == spec.RowMajorScales {
		if src == nil {
			simd.Zero(unsafe.Add(m.dstScales, row*m.scaleBytes), m.scaleBytes, false)
			return
		}
		simd.Copy(unsafe.Add(m.dstScales, row*m.scaleBytes), src, m.scaleBytes, false)
		return
	}
	// Words of four bytes: an fp32 scale, or four UE8M0 scales. Those of one zone stand together.
	words := m.scaleBytes / 4
	zone, at := row/m.scaleRows, row%m.scaleRows
	out := unsafe.Slice((*uint32)(unsafe.Add(m.dstScales, 4*zone*words*m.scaleRows)), words*m.scaleRows)
	for i := range words {
		w := uint32(0)
		if src != nil {
			w = *(*uint32)(unsafe.Add(src, 4*i))
		}
		out[i*m.scaleRows+at] = w
	}
}

// zeroFrom clears the rows of a source that was masked after the routing was prepared.
func (m *mover) zeroFrom(from, to int32) {
	for i := from; i < to; i++ {
		for _, l := range m.r.rowsOf(i) {
			if l.row >= 0 {
				m.zeroRow(int(l.row))
			}
		}
	}
}

// zeroPads clears the rows that fill zones up to the alignment.
func (m *mover) zeroPads() { m.r.eachPad(m.zeroRow) }

// eachPad calls f with those.
func (r *hostRouting) eachPad(f func(row int)) {
	z := &r.zones
	if r.h.Spec.Layout != spec.ExpertPacked {
		return
	}
	for le := range z.Start {
		for row := z.Start[le] + z.Kept[le]; row < z.Start[le]+z.Padded[le]; row++ {
			f(int(row))
		}
	}
}

func (m *mover) zeroRow(row int) {
	simd.Zero(unsafe.Add(m.dst, row*m.rowBytes), m.rowBytes, false)
	if m.scaleBytes > 0 {
		m.putScales(row, nil)
	}
}

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// element is the type under which the vector routines know d.
func element(d weft.DType) simd.Type {
	switch d {
	case weft.BFloat16:
		return simd.BF16
	case weft.Float16:
		return simd.F16
	default:
		return simd.F32
	}
}

func scaleKind(s *spec.Spec) simd.ScaleKind {
	switch {
	case s.Payload == spec.FP8UE8M0:
		return simd.ScaleUE8M0
	case s.PowerOfTwoScales:
		return simd.ScaleF32Pow2
	default:
		return simd.ScaleF32
	}
}
