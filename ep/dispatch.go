package ep

import (
	"cmp"
	"context"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

// Rows is a tensor of rows and, for payloads that have them, the tensor of their scales.
type Rows struct {
	Data   weft.Tensor // [tokens, hidden]; opaque: uint8 [tokens, RowBytes]
	Scales weft.Tensor // fp8: fp32 [tokens, hidden/128]; UE8M0: ue8m0 [tokens, hidden/128]; opaque: uint8 [tokens, ScaleBytes]
}

// Received is what arrived: rows in the handle's layout, in memory of the handle's pool, and the [Routing] that says what each row is.
type Received struct {
	*Routing
	// Data is [local experts, rows per expert, hidden] for ExpertMajor, else [Rows(), hidden]. Rows that hold no token, other than pads,
	// are not written.
	Data weft.Tensor
	// Scales, for payloads that have them, is laid out as Data with hidden/128 scales a row. In column-major order the last two
	// dimensions change places, and UE8M0 scales are int32 words of four.
	Scales weft.Tensor

	handle     *Handle
	offset     int
	released   bool
	dataShape  [3]int
	scaleShape [3]int
}

// Release gives the memory back. Data must not be used after; a combine that takes rows from it must have returned.
func (r *Received) Release() {
	if !r.released {
		r.released = true
		r.handle.pool.put(r.offset)
	}
}

// PendingDispatch is a dispatch that was sent and not yet received.
type PendingDispatch struct {
	handle   *Handle
	received *Received
	epoch    uint64
	borrowed bool
	over     bool
	err      error
}

// Receive completes the dispatch. Further calls return the same result.
func (p *PendingDispatch) Receive(ctx context.Context) (*Received, error) {
	if !p.over {
		p.over = true
		if p.err = p.receive(ctx); p.err != nil {
			p.received.Release()
			p.received = nil
		}
	}
	return p.received, p.err
}

func (p *PendingDispatch) receive(ctx context.Context) error {
	h := p.handle
	if err := h.resume(opDispatch, p.epoch); err != nil {
		return err
	}
	if err := h.receiveRows(ctx, p.epoch, p.received, opDispatch); err != nil {
		return err
	}
	if p.borrowed {
		return h.awaitDone(ctx, p.epoch, opDispatch)
	}
	return nil
}

// Dispatch sends the rows of this rank's tokens to their experts and returns those that arrive. Rows that lie in a window of the communicator are
// read by their receivers where they are, and Dispatch returns when all have; others are copied to a staging window first.
func (h *Handle) Dispatch(ctx context.Context, s *weft.Stream, r *Routing, x Rows) (*Received, error) {
	p, err := h.sendDispatch(ctx, s, r, x)
	if err != nil {
		return nil, err
	}
	return p.Receive(ctx)
}

// SendDispatch is the first half of [Handle.Dispatch]. Rows that lie in a window are borrowed until Receive has returned. The handle does nothing
// else before Receive.
//
// Rows that are copied to the staging window may have to wait for it: until every rank has received the operation that last used it.
func (h *Handle) SendDispatch(ctx context.Context, s *weft.Stream, r *Routing, x Rows) (*PendingDispatch, error) {
	p, err := h.sendDispatch(ctx, s, r, x)
	if err != nil {
		return nil, err
	}
	return &p, nil
}

const opDispatch = "dispatch"

// sendDispatch returns a value, which Dispatch keeps off the heap.
func (h *Handle) sendDispatch(ctx context.Context, s *weft.Stream, r *Routing, x Rows) (PendingDispatch, error) {
	epoch, err := h.enter(opDispatch)
	if err != nil {
		return PendingDispatch{}, err
	}
	own := cmp.Or(onHost(opDispatch, s), h.checkRows(r, x, opDispatch))
	var offset int
	if own == nil {
		offset, own = h.block()
	}
	call := newCall(callDispatch, r, false)
	if own != nil {
		h.post(epoch, call, place{}, place{}, own)
		return PendingDispatch{}, h.awaitAll(ctx, epoch, opDispatch, own)
	}
	data, scales, borrowed, err := h.offerRows(ctx, epoch, r.tokens, x, opDispatch)
	if err != nil {
		h.pool.put(offset)
		return PendingDispatch{}, err
	}
	h.post(epoch, call, data, scales, nil)
	h.pending = opDispatch
	return PendingDispatch{handle: h, received: &Received{Routing: r, handle: h, offset: offset}, epoch: epoch, borrowed: borrowed}, nil
}

// checkRows says what is wrong with the arguments of a dispatch.
func (h *Handle) checkRows(r *Routing, x Rows, op string) error {
	if err := r.check(h, op); err != nil {
		return err
	}
	s := &h.spec
	d, width := s.Payload.dtype(), s.Hidden
	scale := weft.InvalidDType
	scaleWidth := s.Hidden / ScaleBlock
	switch s.Payload {
	case FP8:
		scale = weft.Float32
	case FP8UE8M0:
		scale = weft.UE8M0
	case Opaque:
		width = s.RowBytes
		if scaleWidth = s.ScaleBytes; scaleWidth > 0 {
			scale = weft.Uint8
		}
	}
	if s.Quantize != weft.InvalidDType {
		d, scale = s.Quantize, weft.InvalidDType
	}
	if err := checkTensor(op, "rows", x.Data, d, r.tokens, width); err != nil {
		return err
	}
	if scale == weft.InvalidDType {
		if !x.Scales.IsZero() {
			return weft.Invalidf("%s: scales are given, %v rows have none here", op, s.Payload)
		}
		return nil
	}
	return checkTensor(op, "scales", x.Scales, scale, r.tokens, scaleWidth)
}

func checkTensor(op, what string, t weft.Tensor, d weft.DType, rows, width int) error {
	if t.DType != d || len(t.Shape) != 2 || t.Shape[0] != rows || t.Shape[1] != width {
		return weft.Invalidf("%s: %s are %v, want %v[%d %d]", op, what, t, d, rows, width)
	}
	if t.Data == nil && rows*width > 0 {
		return weft.Invalidf("%s: %s have no memory", op, what)
	}
	return nil
}

// block takes memory for what arrives.
func (h *Handle) block() (int, error) {
	offset, ok := h.pool.get()
	if !ok {
		return 0, weft.Unsupportedf("all memory for received rows is in use: release a received tensor, or make the handle with more than %d Live",
			h.spec.Live)
	}
	return offset, nil
}

// offerRows makes rows readable for the other ranks: where they are, or quantised or copied on the stage.
func (h *Handle) offerRows(ctx context.Context, epoch uint64, tokens int, x Rows, op string) (data, scales place, borrowed bool, err error) {
	s := &h.spec
	rowBytes, scaleBytes := s.rowBytes(), s.scaleBytes()
	if s.Quantize == weft.InvalidDType {
		dw, dOff, ok := h.comm.Find(x.Data.Data, tokens*rowBytes)
		if ok && scaleBytes == 0 {
			return place{dw.ID(), uint64(dOff), uint32(rowBytes)}, place{}, true, nil
		}
		if sw, sOff, both := h.comm.Find(x.Scales.Data, tokens*scaleBytes); ok && both {
			return place{dw.ID(), uint64(dOff), uint32(rowBytes)}, place{sw.ID(), uint64(sOff), uint32(scaleBytes)}, true, nil
		}
	}
	if tokens == 0 {
		return place{}, place{}, false, nil
	}
	if err := h.stage.claim(ctx, h, epoch, op); err != nil {
		return place{}, place{}, false, err
	}
	id := h.stage.window.ID()
	data = place{id, 0, uint32(align(rowBytes))}
	if scaleBytes > 0 {
		scales = place{id, uint64(s.MaxTokens * align(rowBytes)), uint32(align(scaleBytes))}
	}
	h.each(tokens, tokens*rowBytes, &stager{
		spec: s, x: x, data: data, scales: scales,
		base:   unsafe.Pointer(unsafe.SliceData(h.stage.window.Bytes())),
		stream: tokens*rowBytes >= streamBytes,
	})
	return data, scales, false, nil
}

// stager copies rows to the stage, quantised or as they are.
type stager struct {
	spec         *Spec
	x            Rows
	data, scales place
	base         unsafe.Pointer
	stream       bool
}

func (g *stager) rows(from, to int) {
	s := g.spec
	rowBytes, scaleBytes := s.rowBytes(), s.scaleBytes()
	for t := from; t < to; t++ {
		row := unsafe.Add(g.base, t*int(g.data.stride))
		scale := unsafe.Add(g.base, int(g.scales.offset)+t*int(g.scales.stride))
		if s.Quantize != weft.InvalidDType {
			in := unsafe.Add(g.x.Data.Data, t*s.Hidden*s.Quantize.Size())
			simd.QuantizeE4M3(element(s.Quantize), row, scale, in, s.Hidden, s.scaleKind())
			continue
		}
		simd.Copy(row, unsafe.Add(g.x.Data.Data, t*rowBytes), rowBytes, g.stream)
		if scaleBytes > 0 {
			simd.Copy(scale, unsafe.Add(g.x.Scales.Data, t*scaleBytes), scaleBytes, false)
		}
	}
	if g.stream {
		simd.StoreFence()
	}
}

// streamBytes is the size of a move from which stores bypass the caches: more than a core's own cache holds.
const streamBytes = 4 << 20

// receiveRows pulls the rows that are this rank's from the ranks that have them.
func (h *Handle) receiveRows(ctx context.Context, epoch uint64, out *Received, op string) error {
	if err := h.awaitAll(ctx, epoch, op, nil); err != nil {
		return err
	}
	s := &h.spec
	r := out.Routing
	shape := newBlockShape(*s, r.Rows())
	base := unsafe.Pointer(unsafe.SliceData(h.pool.window.Bytes()[out.offset:]))
	m := &h.scratch.mover
	*m = mover{
		h: h, r: r, rowBytes: s.rowBytes(), scaleBytes: s.scaleBytes(),
		dst: base, dstScales: unsafe.Add(base, shape.scalesAt), scaleRows: shape.rows,
	}
	if s.Layout == ExpertMajor {
		m.scaleRows = h.geometry.capacity
	}
	if err := m.pull(op); err != nil {
		return err
	}
	if err := h.leave(epoch, op); err != nil {
		return err
	}
	out.setTensors(base, shape)
	return nil
}

// setTensors describes the received memory.
func (r *Received) setTensors(base unsafe.Pointer, shape blockShape) {
	s, g := &r.handle.spec, &r.handle.geometry
	rows := shape.rows
	if s.Layout == ExpertMajor {
		rows = g.capacity
	}
	dims := func(at *[3]int, a, b int) []int {
		*at = [3]int{g.local, a, b}
		if s.Layout == ExpertMajor {
			return at[:]
		}
		return at[1:]
	}
	width := s.Hidden
	if s.Payload == Opaque {
		width = s.RowBytes
	}
	r.Data = weft.Tensor{Data: base, DType: s.Payload.dtype(), Shape: dims(&r.dataShape, rows, width)}
	if s.scaleBytes() == 0 {
		return
	}
	d, a, b := weft.Float32, rows, s.Hidden/ScaleBlock
	switch {
	case s.Payload == Opaque:
		d, b = weft.Uint8, s.ScaleBytes
	case s.Payload == FP8UE8M0 && s.ScaleOrder == ColumnMajorScales:
		d, b = weft.Int32, b/4
	case s.Payload == FP8UE8M0:
		d = weft.UE8M0
	}
	if s.ScaleOrder == ColumnMajorScales {
		a, b = b, a
	}
	r.Scales = weft.Tensor{Data: unsafe.Add(base, shape.scalesAt), DType: d, Shape: dims(&r.scaleShape, a, b)}
}

// mover pulls rows from their sources into the places that a Routing gives them.
type mover struct {
	h                    *Handle
	r                    *Routing
	rowBytes, scaleBytes int
	dst, dstScales       unsafe.Pointer
	scaleRows            int // rows that share a block of column-major scales
	// visit, when set, replaces the copying of rows: it is called with every landing and its source row.
	visit func(l landing, src unsafe.Pointer)

	// The source that is being read.
	first               int32 // its first arrival
	data, scales        unsafe.Pointer
	stride, scaleStride int
	stream              bool
}

func (m *mover) pull(op string) error {
	h, r := m.h, m.r
	m.stream = r.kept*m.rowBytes >= streamBytes
	me, n := h.comm.Rank(), h.comm.Size()
	// Each rank begins with itself and goes round, so that no rank is read by all at once.
	for i := range n {
		src := (me + i) % n
		from, to := r.arrive[src], r.arrive[src+1]
		if from == to {
			continue
		}
		if !h.live(src) {
			m.zeroFrom(from, to)
			continue
		}
		if err := m.open(src, r.arrivals[to-1].token, op); err != nil {
			return err
		}
		m.first = from
		h.each(int(to-from), int(to-from)*m.rowBytes, m)
	}
	m.zeroPads()
	return nil
}

// rows moves arrivals of the open source.
func (m *mover) rows(from, to int) {
	r := m.r
	var rows [MaxTopK]unsafe.Pointer
	for i := m.first + int32(from); i < m.first+int32(to); i++ {
		token := int(r.arrivals[i].token)
		row := unsafe.Add(m.data, token*m.stride)
		k := 0
		for _, l := range r.landingsOf(i) {
			if l.row < 0 {
				continue
			}
			if m.visit != nil {
				m.visit(l, row)
				continue
			}
			rows[k] = unsafe.Add(m.dst, int(l.row)*m.rowBytes)
			k++
			if m.scaleBytes > 0 {
				m.putScales(int(l.row), unsafe.Add(m.scales, token*m.scaleStride))
			}
		}
		if m.h.spec.Wire == PerRank {
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

// open finds the source's rows, and makes sure that the last one that is asked for lies inside its window.
func (m *mover) open(src int, last int32, op string) (err error) {
	// Read once: the source may overwrite its notice when it has gone on without this rank.
	data, scales := m.h.scratch.notices[src].data(), m.h.scratch.notices[src].scales()
	m.stride, m.scaleStride = int(data.stride), int(scales.stride)
	if m.data, err = m.operand(src, data, last, m.rowBytes, op); err != nil || m.scaleBytes == 0 {
		return err
	}
	m.scales, err = m.operand(src, scales, last, m.scaleBytes, op)
	return err
}

func (m *mover) operand(src int, p place, last int32, rowBytes int, op string) (unsafe.Pointer, error) {
	mem, err := m.h.memory(src, p, op)
	if err != nil {
		return nil, err
	}
	// A token is numbered in 31 bits and a stride is one of 32: the sum cannot wrap.
	if need := uint64(last)*uint64(p.stride) + uint64(rowBytes); need > uint64(len(mem)) {
		err := fmt.Errorf("%w: it offers %d bytes where its routing needs %d", weft.ErrMismatch, len(mem), need)
		return nil, m.h.broken(&weft.PeerError{Rank: src, Op: op, Err: err})
	}
	return unsafe.Pointer(unsafe.SliceData(mem)), nil
}

// putScales stores the scales of a row in the order that the handle gives them; without a source, zeros.
func (m *mover) putScales(row int, src unsafe.Pointer) {
	if m.h.spec.ScaleOrder == RowMajorScales {
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
		for _, l := range m.r.landingsOf(i) {
			if l.row >= 0 {
				m.zeroRow(int(l.row))
			}
		}
	}
}

// zeroPads clears the rows that fill zones up to the alignment.
func (m *mover) zeroPads() {
	z := &m.r.zones
	if m.h.spec.Layout != ExpertPacked {
		return
	}
	for le := range z.start {
		for row := z.start[le] + z.kept[le]; row < z.start[le]+z.padded[le]; row++ {
			m.zeroRow(int(row))
		}
	}
}

func (m *mover) zeroRow(row int) {
	simd.Zero(unsafe.Add(m.dst, row*m.rowBytes), m.rowBytes, false)
	if m.scaleBytes > 0 {
		m.putScales(row, nil)
	}
}

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

func (s *Spec) scaleKind() simd.ScaleKind {
	switch {
	case s.Payload == FP8UE8M0:
		return simd.ScaleUE8M0
	case s.PowerOfTwoScales:
		return simd.ScaleF32Pow2
	default:
		return simd.ScaleF32
	}
}
