package eptest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// poison fills everything that operations write, and what they must not touch.
const poison = 0xA5

// timeout bounds the operations of one case; none comes near it unless something hangs.
const timeout = 5 * time.Minute

// runner runs a trial on one rank.
type runner struct {
	*trial
	off     layout
	engine  Engine
	comm    *weft.Comm
	memory  Memory
	handle  *ep.Handle
	routing *ep.Routing
	wrong   []error
	lacks   bool   // the routing has no weights yet
	between func() // called between the halves of operations that have two
}

// Do runs the case on the communicator of one rank, with the given ranks left out, and compares
// everything with the reference. The error joins what differs; an operation that failed is a
// [*weft.PeerError] or another error of package ep.
func (c Case) Do(e Engine, comm *weft.Comm, masked ...int) error {
	return newTrial(c, masked...).do(e, comm)
}

func (t *trial) do(e Engine, comm *weft.Comm) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	h, err := ep.NewHandle(ctx, comm, t.spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	return t.on(ctx, e, comm, h)
}

// on runs the trial on a handle that is there.
func (t *trial) on(ctx context.Context, e Engine, comm *weft.Comm, h *ep.Handle) (err error) {
	r := &runner{trial: t, engine: e, comm: comm, handle: h}
	if r.memory, err = e.Alloc(comm, t.size, t.Operand == WindowOperand); err != nil {
		return err
	}
	defer func() {
		if err != nil && e.Kind() == ep.GPUEngine {
			comm.Abort() // ranks meet to give memory up: the others shall not wait until their deadline to do so
		}
		err = errors.Join(err, r.memory.Free())
	}()
	r.off = t.layOut(&arena{}, comm.Rank())
	if err := r.upload(0, filled(t.size, poison)); err != nil {
		return err
	}
	r.lacks = t.Later
	if err := r.operations(ctx); err != nil {
		return err
	}
	if err := r.guards(); err != nil {
		return err
	}
	return errors.Join(r.wrong...)
}

// guards makes sure that nothing was written between the operands, where poison was before.
func (r *runner) guards() error {
	if err := r.engine.Sync(r.comm); err != nil {
		return err
	}
	all := make([]byte, r.size)
	if err := r.engine.Download(r.comm, all, r.memory.Data); err != nil {
		return err
	}
	from := 0
	for _, p := range append(r.off.pieces[:len(r.off.pieces):len(r.off.pieces)], piece{at: r.size}) {
		for i := from; i < p.at; i++ {
			if all[i] != poison {
				r.report("byte %d, %d behind an operand and %d before the next, was overwritten with %#x", i,
					i-from, p.at-i, all[i])
				break
			}
		}
		from = p.at + p.n
	}
	return nil
}

func (r *runner) operations(ctx context.Context) error {
	var first *ep.Received
	var err error
	if r.Fused {
		first, err = r.prepareDispatch(ctx)
	} else {
		err = r.prepare(ctx)
	}
	if want := r.overflow(r.p); want != nil {
		if got, ok := errors.AsType[*ep.OverflowError](err); !ok || *got != *want {
			return fmt.Errorf("prepare: %w, want %w", err, want)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	defer r.routing.Release()
	if err := r.describe(); err != nil {
		return err
	}
	if !r.Fused {
		if first, err = r.dispatch(ctx, 0, true); err != nil {
			return fmt.Errorf("first dispatch: %w", err)
		}
	}
	first.Release()
	if err := r.combineOwnWeights(ctx); err != nil {
		return fmt.Errorf("weights at home: %w", err)
	}
	// The same routing again, with other rows, and maybe other weights, into memory that holds
	// poison.
	second, err := r.dispatch(ctx, 1, false)
	if err != nil {
		return fmt.Errorf("second dispatch: %w", err)
	}
	defer second.Release()
	if r.Later {
		if err := r.describe(); err != nil {
			return err
		}
	}
	if !r.combines() {
		return nil
	}
	if err := r.combine(ctx, second); err != nil {
		return fmt.Errorf("combine: %w", err)
	}
	if err := r.dispatchBackward(ctx); err != nil {
		return fmt.Errorf("dispatch backward: %w", err)
	}
	if err := r.combineBackward(ctx); err != nil {
		return fmt.Errorf("combine backward: %w", err)
	}
	return nil
}

// combineOwnWeights combines by weights of which no other rank has been told, where sums go by such.
func (r *runner) combineOwnWeights(ctx context.Context) error {
	if !r.lacks || !r.combines() || r.spec.Weighting != ep.Weighted || r.spec.Reduction != ep.Exact || r.Seed%2 == 1 {
		return nil
	}
	weights, err := r.weightOperand()
	if err != nil {
		return err
	}
	if err := r.handle.SetWeights(ctx, r.engine.Stream(r.comm), r.routing, weights); err != nil {
		return err
	}
	if err := r.spoil(weights); err != nil {
		return err
	}
	if err := r.combine(ctx, nil); err != nil {
		return err
	}
	return r.describe()
}

func (r *runner) pause() {
	if r.between != nil {
		r.between()
	}
}

func (r *runner) at(offset int) unsafe.Pointer { return unsafe.Add(r.memory.Data, offset) }

func (r *runner) upload(offset int, b []byte) error {
	return r.engine.Upload(r.comm, r.at(offset), b)
}

// tensor puts b at the offset and views it as a tensor.
func (r *runner) tensor(offset int, b []byte, d weft.DType, shape ...int) (weft.Tensor, error) {
	return weft.Tensor{Data: r.at(offset), DType: d, Shape: shape}, r.upload(offset, b)
}

// output gives a poisoned tensor.
func (r *runner) blank(offset int, d weft.DType, shape ...int) (weft.Tensor, error) {
	t := weft.Tensor{Data: r.at(offset), DType: d, Shape: shape}
	return t, r.upload(offset, filled(t.Bytes(), poison))
}

// bytesOf downloads a tensor when the stream has passed.
func (r *runner) bytesOf(t weft.Tensor) ([]byte, error) {
	if err := r.engine.Sync(r.comm); err != nil {
		return nil, err
	}
	b := make([]byte, t.Bytes())
	return b, r.engine.Download(r.comm, b, t.Data)
}

// spoil overwrites an operand whose operation has passed: no peer may still read it.
func (r *runner) spoil(t weft.Tensor) error {
	if t.IsZero() {
		return nil
	}
	if err := r.engine.Sync(r.comm); err != nil {
		return err
	}
	return r.engine.Upload(r.comm, t.Data, filled(t.Bytes(), poison))
}

func (r *runner) report(format string, args ...any) {
	if len(r.wrong) < 8 {
		r.wrong = append(r.wrong, fmt.Errorf(format, args...))
	}
}

// same compares bytes, up to the one liberty that the contract leaves to transports: a word of
// ones, which is a NaN, or two, may arrive as 0x7FFFFFFF.
func (r *runner) same(what string, got, want []byte) {
	if bytes.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		r.report("%s: %d bytes, want %d", what, len(got), len(want))
		return
	}
	for i := 0; i < len(got); i += 4 {
		end := min(i+4, len(got))
		if bytes.Equal(got[i:end], want[i:end]) {
			continue
		}
		if r.spec.Payload <= ep.FP8 && end-i == 4 {
			if ones(want[i:], got[i:]) {
				continue
			}
		}
		from, to := i&^15, min(i&^15+32, len(got))
		r.report("%s: byte %d of %d differs: got % x, want % x", what, i, len(got), got[from:to], want[from:to])
		return
	}
}

// ones reports whether a word of ones has become what it may: NaNs both.
func ones(want, got []byte) bool {
	return binary.LittleEndian.Uint32(want) == 0xFFFFFFFF && binary.LittleEndian.Uint32(got) == 0x7FFFFFFF
}

func (r *runner) sameTensor(what string, t weft.Tensor, d weft.DType, shape []int, want []byte) error {
	if t.DType != d || !slices.Equal(t.Shape, shape) {
		r.report("%s is %v, want %v%v", what, t, d, shape)
		return nil
	}
	got, err := r.bytesOf(t)
	if err != nil {
		return err
	}
	if d == weft.Float32 && len(got) == len(want) {
		want = bytes.Clone(want)
		for i := 0; i < len(want); i += 4 {
			if ones(want[i:], got[i:]) {
				copy(want[i:i+4], got[i:])
			}
		}
	}
	r.same(what, got, want)
	return nil
}

// routingOperands puts the routing of this rank's tokens into its operand.
func (r *runner) routingOperands() (topk, weights weft.Tensor, err error) {
	me, k := r.comm.Rank(), r.spec.TopK
	sel := r.TopK[me]
	if r.Given != nil {
		sel = r.Given[me]
	}
	var raw []byte
	d := weft.Int32
	if r.Wide {
		d = weft.Int64
	}
	for _, e := range sel {
		if r.Wide {
			raw = binary.LittleEndian.AppendUint64(raw, uint64(int64(e)))
		} else {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(e))
		}
	}
	tokens := len(sel) / k
	if topk, err = r.tensor(r.off.topk, raw, d, tokens, k); err != nil || !r.Weights || r.lacks {
		return topk, weights, err
	}
	weights, err = r.weightOperand()
	return topk, weights, err
}

// weightOperand puts the weights of this rank's tokens into their operand.
func (r *runner) weightOperand() (weft.Tensor, error) {
	w := r.batch.weights[r.comm.Rank()]
	return r.tensor(r.off.weights, singleBytes(w), weft.Float32, len(w)/r.spec.TopK, r.spec.TopK)
}

func (r *runner) prepare(ctx context.Context) error {
	topk, weights, err := r.routingOperands()
	if err != nil {
		return err
	}
	if r.routing, err = r.handle.Prepare(ctx, r.engine.Stream(r.comm), topk, weights); err != nil {
		return err
	}
	// Both may be changed when the stream has passed.
	return errors.Join(r.spoil(topk), r.spoil(weights))
}

// prepareDispatch is prepare and the first dispatch in one.
func (r *runner) prepareDispatch(ctx context.Context) (*ep.Received, error) {
	topk, weights, err := r.routingOperands()
	if err != nil {
		return nil, err
	}
	in, err := r.rowOperands(0)
	if err != nil {
		return nil, err
	}
	var out *ep.Received
	if r.Split {
		var pending *ep.PendingDispatch
		if pending, err = r.handle.SendDispatch(ctx, r.engine.Stream(r.comm), ep.DispatchArgs{
			TopK: topk, Weights: weights, Rows: in,
		}); err != nil {
			return nil, err
		}
		r.pause()
		out, err = pending.Receive(ctx)
	} else {
		out, err = r.handle.Dispatch(ctx, r.engine.Stream(r.comm), ep.DispatchArgs{
			TopK: topk, Weights: weights, Rows: in,
		})
	}
	if err != nil {
		return nil, err
	}
	r.routing = out.Routing
	if err := errors.Join(r.spoil(topk), r.spoil(weights)); err != nil {
		return nil, err
	}
	return out, r.arrived(0, true, in, out)
}

// describe compares what the Routing says.
func (r *runner) describe() error {
	a := &r.p.at[r.comm.Rank()]
	rt := r.routing
	counts := []struct {
		what      string
		got, want int
	}{
		{"tokens", rt.Tokens(), len(r.TopK[r.comm.Rank()]) / r.spec.TopK},
		{"rows", rt.Rows(), len(a.rows)},
		{"received", rt.Received(), a.received},
		{"demand", rt.Demand(), a.demand},
		{"capacity", r.handle.Capacity(), r.tensorCapacity()},
	}
	for _, c := range counts {
		if c.got != c.want {
			r.report("%s: %d, want %d", c.what, c.got, c.want)
		}
	}
	r.traffic()

	want, k := r.metadata(0, nil), r.spec.TopK
	local := r.local()
	type view struct {
		what  string
		got   weft.Tensor
		d     weft.DType
		shape []int
		want  []byte
	}
	views := []view{
		{"expert counts", rt.ExpertCounts(), weft.Int32, []int{local}, intBytes(a.counts)},
		{"row demand", rt.RowDemand(), weft.Int32, []int{1}, intBytes([]int32{int32(a.demand)})},
		{"expert demand", rt.ExpertDemand(), weft.Int32, []int{local}, intBytes(a.wanted)},
		{"padded counts", rt.PaddedCounts(), weft.Int32, []int{local}, intBytes(a.padded)},
		{"expert offsets", rt.ExpertOffsets(), weft.Int32, []int{local}, intBytes(a.offsets)},
		{"source counts", rt.SourceCounts(), weft.Int32, []int{r.Ranks}, intBytes(a.sources)},
		{"source tokens", rt.SourceTokens(), weft.Int32, []int{len(a.rows)}, want.tokens},
		{"source ranks", rt.SourceRanks(), weft.Int32, []int{len(a.rows)}, want.sources},
	}
	if r.byExpert() {
		views = append(views,
			view{"ranges", rt.Ranges(), weft.Int64, []int{local, r.Ranks}, want.ranges},
			view{"source selections", rt.SourceSelections(), weft.Int32, []int{len(a.rows)}, want.selections},
			view{"row weights", rt.RowWeights(), weft.Float32, []int{len(a.rows)}, want.weights})
		if e, w := rt.RowSelections(); !e.IsZero() || !w.IsZero() {
			r.report("row selections of rows by expert: %v, %v", e, w)
		}
	} else {
		if x, s, w := rt.Ranges(), rt.SourceSelections(), rt.RowWeights(); !x.IsZero() || !s.IsZero() || !w.IsZero() {
			r.report("of rows that are not by expert ranges %v, selections %v, weights %v", x, s, w)
		}
		e, w := rt.RowSelections()
		views = append(views,
			view{"row experts", e, weft.Int32, []int{len(a.rows), k}, want.experts},
			view{"row selection weights", w, weft.Float32, []int{len(a.rows), k}, want.selectionWeights})
	}
	for _, v := range views {
		if err := r.sameTensor(v.what, v.got, v.d, v.shape, v.want); err != nil {
			return err
		}
	}
	return nil
}

// tensorCapacity is the rows of a received tensor at its largest.
func (r *runner) tensorCapacity() int {
	if r.spec.Layout == ep.ExpertMajor {
		return r.local() * r.capacity()
	}
	return r.capacity()
}

// traffic compares the counts of rows on their way.
func (r *runner) traffic() {
	me, k := r.comm.Rank(), r.spec.TopK
	want := ep.Traffic{Tokens: r.tokens(me), Received: r.p.at[me].received}
	for t := range r.tokens(me) {
		visited := map[int]bool{}
		for j := range k {
			if r.TopK[me][t*k+j] >= 0 {
				want.Selections++
			}
			dest := r.p.home[me][t*k+j]
			if !dest.ok {
				continue
			}
			if !visited[dest.rank] {
				want.Visits++
				if dest.rank != me {
					want.RemoteRows++
				}
			}
			visited[dest.rank] = true
		}
	}
	if got := r.routing.Traffic(); got != want {
		r.report("traffic: %+v, want %+v", got, want)
	}
}

// rowTypes are the types of rows and of their scales, as dispatch takes them if in, else as they
// arrive, and their widths; scales of no type are none.
func (r *runner) rowTypes(in bool) (d, scale weft.DType, width, scaleWidth int) {
	s := &r.spec
	d, scale, width, scaleWidth = weft.Float8E4M3, weft.InvalidDType, s.Hidden, s.Hidden/128
	switch s.Payload {
	case ep.FP8:
		scale = weft.Float32
	case ep.FP8UE8M0:
		scale = weft.UE8M0
	case ep.Opaque:
		d, width, scaleWidth = weft.Uint8, s.RowBytes, s.ScaleBytes
		if s.ScaleBytes > 0 {
			scale = weft.Uint8
		}
	default:
		d = r.output()
	}
	if in && s.Quantize != weft.InvalidDType {
		d, scale = s.Quantize, weft.InvalidDType
	}
	return d, scale, width, scaleWidth
}

// rowOperands puts the i-th rows of this rank's tokens into their operand.
func (r *runner) rowOperands(i int) (in ep.Rows, err error) {
	me := r.comm.Rank()
	x, n := r.x[i][me], r.tokens(me)
	d, scale, width, scaleWidth := r.rowTypes(true)
	if in.Data, err = r.tensor(r.off.data, x.data, d, n, width); err != nil || scale == weft.InvalidDType {
		return in, err
	}
	in.Scales, err = r.tensor(r.off.scales, x.scales, scale, n, scaleWidth)
	return in, err
}

// dispatch sends the i-th rows. The memory that they arrive in holds poison only if a dispatch
// before has left it there: fresh says that none has.
func (r *runner) dispatch(ctx context.Context, i int, fresh bool) (*ep.Received, error) {
	in, err := r.rowOperands(i)
	if err != nil {
		return nil, err
	}
	var weights weft.Tensor
	if r.lacks && i == 1 {
		if weights, err = r.weightOperand(); err != nil {
			return nil, err
		}
		r.lacks = false
	}
	var out *ep.Received
	if r.Split {
		var pending *ep.PendingDispatch
		if pending, err = r.handle.SendDispatch(ctx, r.engine.Stream(r.comm), ep.DispatchArgs{
			Routing: r.routing, Weights: weights, Rows: in,
		}); err != nil {
			return nil, err
		}
		r.pause()
		out, err = pending.Receive(ctx)
	} else {
		out, err = r.handle.Dispatch(ctx, r.engine.Stream(r.comm), ep.DispatchArgs{
			Routing: r.routing, Weights: weights, Rows: in,
		})
	}
	if err != nil {
		return nil, err
	}
	return out, errors.Join(r.spoil(weights), r.arrived(i, fresh, in, out))
}

// arrived compares what the i-th rows have become, and leaves poison behind if the memory is fresh.
func (r *runner) arrived(i int, fresh bool, in ep.Rows, out *ep.Received) error {
	if err := errors.Join(r.spoil(in.Data), r.spoil(in.Scales)); err != nil {
		return err
	}
	me, s := r.comm.Rank(), &r.spec
	recycled := r.engine.Recycles(s.Layout)
	received, receivedScale, width, scaleWidth := r.rowTypes(false)
	shape := func(rows, width int) []int { return []int{rows, width} }
	if s.Layout == ep.ExpertMajor {
		shape = func(_, width int) []int { return []int{r.local(), r.capacity(), width} }
	}
	total := len(r.p.at[me].rows)
	got, err := r.bytesOf(out.Data)
	if err != nil {
		return err
	}
	want := r.received(r.p, me, r.wire[i], poison)
	if fresh || recycled {
		r.mend(&want, got, nil)
	}
	if err := r.sameTensor(fmt.Sprintf("rows of dispatch %d", i), out.Data, received, shape(total, width),
		want.data); err != nil {
		return err
	}
	if receivedScale == weft.InvalidDType {
		if !out.Scales.IsZero() {
			r.report("scales are %v, want none", out.Scales)
		}
	} else {
		scaleShape := shape(total, scaleWidth)
		if s.ScaleOrder == ep.ColumnMajorScales {
			if s.Payload == ep.FP8UE8M0 {
				receivedScale, scaleWidth = weft.Int32, scaleWidth/4
			}
			scaleShape = shape(total, scaleWidth)
			last := len(scaleShape) - 1
			scaleShape[last-1], scaleShape[last] = scaleShape[last], scaleShape[last-1]
		}
		if got, err = r.bytesOf(out.Scales); err != nil {
			return err
		}
		if fresh || recycled {
			r.mend(&want, nil, got)
		}
		if err := r.sameTensor(fmt.Sprintf("scales of dispatch %d", i), out.Scales, receivedScale, scaleShape,
			want.scales); err != nil {
			return err
		}
	}
	if err := r.copyReceived(i, out); err != nil {
		return err
	}
	if !fresh || recycled {
		return nil
	}
	if err := r.engine.Upload(r.comm, out.Data.Data, filled(out.Data.Bytes(), poison)); err != nil {
		return err
	}
	if out.Scales.IsZero() {
		return nil
	}
	return r.engine.Upload(r.comm, out.Scales.Data, filled(out.Scales.Bytes(), poison))
}

// mend takes what stands in rows that nothing is written to for granted, where the memory's former
// contents are unknown.
func (r *runner) mend(want *rows, data, scales []byte) {
	me := r.comm.Rank()
	zeroed := r.received(r.p, me, r.wire[0], 0)
	ones := r.received(r.p, me, r.wire[0], 0xFF)
	for _, m := range []struct{ got, want, zeros, ones []byte }{
		{data, want.data, zeroed.data, ones.data}, {scales, want.scales, zeroed.scales, ones.scales},
	} {
		if len(m.got) != len(m.want) {
			continue
		}
		for i := range m.want {
			if m.zeros[i] != m.ones[i] {
				m.want[i] = m.got[i]
			}
		}
	}
}

// expertRows puts rows as an expert returns them where the case says.
func (r *runner) expertRows(offset int, b []byte, received *ep.Received) (weft.Tensor, error) {
	shape := []int{len(r.p.at[r.comm.Rank()].rows), r.spec.Hidden}
	if r.spec.Layout == ep.ExpertMajor {
		shape = []int{r.local(), r.capacity(), r.spec.Hidden}
	}
	if received != nil && r.Operand == ReceivedOperand && received.Data.DType == r.output() {
		return received.Data, r.engine.Upload(r.comm, received.Data.Data, b)
	}
	return r.tensor(offset, b, r.output(), shape...)
}

func (r *runner) homeRows(offset int, b []byte) (weft.Tensor, error) {
	shape := []int{r.tokens(r.comm.Rank()), r.spec.Hidden}
	if b == nil {
		return r.blank(offset, r.output(), shape...)
	}
	return r.tensor(offset, b, r.output(), shape...)
}

func (r *runner) combine(ctx context.Context, received *ep.Received) error {
	me := r.comm.Rank()
	y, err := r.expertRows(r.off.y, r.trial.y[me], received)
	if err != nil {
		return err
	}
	out, err := r.homeRows(r.off.out, nil)
	if err != nil {
		return err
	}
	var bias []weft.Tensor
	for i, b := range r.trial.bias[me] {
		t, err := r.homeRows(r.off.bias[i], b)
		if err != nil {
			return err
		}
		bias = append(bias, t)
	}
	if r.Split {
		var w *weft.Work
		if w, err = r.handle.SendCombine(ctx, r.engine.Stream(r.comm), ep.CombineArgs{
			Routing: r.routing, Rows: y, Out: out, Bias: bias,
		}); err == nil {
			r.pause()
			err = w.Wait(ctx)
		}
	} else {
		err = r.handle.Combine(ctx, r.engine.Stream(r.comm), ep.CombineArgs{
			Routing: r.routing, Rows: y, Out: out, Bias: bias,
		})
	}
	if err != nil {
		return err
	}
	after, err := r.bytesOf(y)
	if err != nil {
		return err
	}
	if err := r.spoil(y); err != nil {
		return err
	}
	r.same("rows after combine", after, r.trial.y[me])
	want := r.batch.combine(r.p, me, r.trial.y, r.trial.bias[me], r.spec.Weighting == ep.Weighted)
	return r.sameTensor("combined rows", out, r.output(), out.Shape, want)
}

func (r *runner) dispatchBackward(ctx context.Context) error {
	me := r.comm.Rank()
	rows, err := r.expertRows(r.off.grad, r.trial.grad[me], nil)
	if err != nil {
		return err
	}
	out, err := r.homeRows(r.off.out, nil)
	if err != nil {
		return err
	}
	var scalars, gradWeights weft.Tensor
	withWeights := r.Seed%2 == 0
	if withWeights {
		if scalars, err = r.tensor(r.off.scalars, singleBytes(r.trial.scalars[me]), weft.Float32,
			len(r.trial.scalars[me])); err != nil {
			return err
		}
		if gradWeights, err = r.blank(r.off.gradWeights, weft.Float32, r.tokens(me), r.spec.TopK); err != nil {
			return err
		}
	}
	if err := r.handle.DispatchBackward(ctx, r.engine.Stream(r.comm), ep.DispatchBackwardArgs{
		Routing: r.routing, GradRows: rows, GradRowWeights: scalars, GradTokens: out, GradWeights: gradWeights,
	}); err != nil {
		return err
	}
	if err := errors.Join(r.spoil(rows), r.spoil(scalars)); err != nil {
		return err
	}
	want := r.batch.combine(r.p, me, r.trial.grad, nil, false)
	if err := r.sameTensor("gradients of tokens", out, r.output(), out.Shape, want); err != nil {
		return err
	}
	if !withWeights {
		return nil
	}
	return r.sameTensor("gradients brought home", gradWeights, weft.Float32, gradWeights.Shape,
		singleBytes(r.scalarsHome(r.p, me, r.trial.scalars)))
}

func (r *runner) combineBackward(ctx context.Context) error {
	me := r.comm.Rank()
	grad, err := r.homeRows(r.off.gradOut, r.trial.gradOut[me])
	if err != nil {
		return err
	}
	rows, err := r.expertRows(r.off.gradRows, filled(len(r.trial.y[me]), poison), nil)
	if err != nil {
		return err
	}
	var y, gradWeights weft.Tensor
	withWeights := r.spec.Weighting == ep.Weighted && r.Seed%3 != 0
	if withWeights {
		if y, err = r.expertRows(r.off.y, r.sparse(r.trial.y[me]), nil); err != nil {
			return err
		}
		if r.InPlace {
			rows = y
		}
		if gradWeights, err = r.blank(r.off.gradWeights, weft.Float32, r.tokens(me), r.spec.TopK); err != nil {
			return err
		}
	}
	err = r.handle.CombineBackward(ctx, r.engine.Stream(r.comm), ep.CombineBackwardArgs{
		Routing: r.routing, GradOut: grad, Rows: y, GradRows: rows, GradWeights: gradWeights,
	})
	if err != nil {
		return err
	}
	if err := r.spoil(grad); err != nil {
		return err
	}
	if y.Data != rows.Data {
		if err := r.spoil(y); err != nil {
			return err
		}
	}
	want := r.spread(r.p, me, r.trial.gradOut, poison)
	if err := r.sameTensor("gradients of rows", rows, r.output(), rows.Shape, want); err != nil {
		return err
	}
	if !withWeights {
		return nil
	}
	return r.sameTensor("gradients of weights", gradWeights, weft.Float32, gradWeights.Shape,
		singleBytes(r.dots(r.p, me, r.trial.gradOut, r.trial.y)))
}

// sparse is b, rows of experts, with poison where nothing is written to.
func (r *runner) sparse(b []byte) []byte {
	me := r.comm.Rank()
	zeros, ones := r.spread(r.p, me, r.trial.gradOut, 0), r.spread(r.p, me, r.trial.gradOut, 0xFF)
	b = bytes.Clone(b)
	for i := range b {
		if zeros[i] != ones[i] {
			b[i] = poison
		}
	}
	return b
}

func intBytes(v []int32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

// wideBytes are those of the same numbers as int64.
func wideBytes(v []int32) []byte {
	b := make([]byte, 0, 8*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, uint64(int64(x)))
	}
	return b
}

func singleBytes(v []float32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}
