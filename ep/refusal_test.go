package ep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// operandSet is everything that one rank needs for every operation on a small Spec.
type operandSet struct {
	topk, weights       weft.Tensor
	x                   ep.Rows
	y, out, grad        weft.Tensor
	scalars, gradWeight weft.Tensor
	gradRows            weft.Tensor
	stream              *weft.Stream
	other               weft.Tensor // weights for a routing that is there
	routing, beside     *ep.Routing // one that is there, and one beside selections
}

func operandsFor(h *ep.Handle, rank int) *operandSet {
	s := h.Spec()
	const tokens = 3
	topk := make([]int32, tokens*s.TopK)
	for i := range topk {
		topk[i] = int32((i + rank) % s.Experts)
	}
	zeros := func(shape ...int) weft.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return weft.TensorOf(make([]weft.BF16, n), shape...)
	}
	local := s.Experts / h.Comm().Size()
	return &operandSet{
		topk:       weft.TensorOf(topk, tokens, s.TopK),
		weights:    weft.TensorOf(make([]float32, len(topk)), tokens, s.TopK),
		x:          ep.Rows{Data: zeros(tokens, s.Hidden)},
		y:          zeros(local, h.Capacity()/local, s.Hidden),
		out:        zeros(tokens, s.Hidden),
		grad:       zeros(tokens, s.Hidden),
		scalars:    weft.TensorOf(make([]float32, h.Capacity())),
		gradWeight: weft.TensorOf(make([]float32, len(topk)), tokens, s.TopK),
		gradRows:   zeros(local, h.Capacity()/local, s.Hidden),
	}
}

// beside moves a tensor by one row, in memory that has room for it.
func beside(t weft.Tensor) weft.Tensor {
	n := t.Shape[len(t.Shape)-1] * t.DType.Size()
	return weft.Tensor{Data: unsafe.Add(t.Data, n), DType: t.DType, Shape: t.Shape}
}

var operations = []string{"prepare", "dispatch", "combine", "dispatch backward", "combine backward"}

// otherForms are operations in two halves, or two in one.
var otherForms = []string{"send dispatch", "send combine", "prepare dispatch", "send prepare dispatch"}

// operation calls one operation with a rank's operands.
func operation(ctx context.Context, op string, h *ep.Handle, r *ep.Routing, o *operandSet) error {
	switch op {
	case "prepare":
		r, err := h.Prepare(ctx, o.stream, o.topk, o.weights)
		if err == nil {
			r.Release()
		}
		return err
	case "prepare dispatch":
		d, err := h.Dispatch(ctx, o.stream, ep.DispatchArgs{
			Routing: o.beside, TopK: o.topk, Weights: o.weights, Rows: o.x,
		})
		if err == nil {
			d.Routing.Release()
			d.Release()
		}
		return err
	case "send prepare dispatch":
		p, err := h.SendDispatch(ctx, o.stream, ep.DispatchArgs{
			Routing: o.beside, TopK: o.topk, Weights: o.weights, Rows: o.x,
		})
		if err != nil {
			return err
		}
		d, err := p.Receive(ctx)
		if err == nil {
			d.Routing.Release()
			d.Release()
		}
		return err
	case "dispatch":
		d, err := h.Dispatch(ctx, o.stream, ep.DispatchArgs{Routing: r, Weights: o.other, Rows: o.x})
		if err == nil {
			d.Release()
		}
		return err
	case "send dispatch":
		p, err := h.SendDispatch(ctx, o.stream, ep.DispatchArgs{Routing: r, Weights: o.other, Rows: o.x})
		if err != nil {
			return err
		}
		d, err := p.Receive(ctx)
		if err == nil {
			d.Release()
		}
		return err
	case "combine":
		return h.Combine(ctx, o.stream, ep.CombineArgs{
			Routing: r, Rows: o.y, Out: o.out, Bias: []weft.Tensor{o.grad},
		})
	case "send combine":
		w, err := h.SendCombine(ctx, o.stream, ep.CombineArgs{Routing: r, Rows: o.y, Out: o.out})
		if err != nil {
			return err
		}
		return w.Wait(ctx)
	case "dispatch backward":
		return h.DispatchBackward(ctx, o.stream, ep.DispatchBackwardArgs{
			Routing: r, GradRows: o.y, GradRowWeights: o.scalars, GradTokens: o.out, GradWeights: o.gradWeight,
		})
	default:
		return h.CombineBackward(ctx, o.stream, ep.CombineBackwardArgs{
			Routing: r, GradOut: o.grad, Rows: o.y, GradRows: o.gradRows, GradWeights: o.gradWeight,
		})
	}
}

// wrongArgument is something wrong with one rank's call.
type wrongArgument struct {
	op   string
	name string
	// The words that every rank must see, and the sentinel.
	words string
	kind  error
	spoil func(o *operandSet)
}

// TestWrongArguments lets one rank call an operation with something wrong. Every rank gets an error
// that says what, and the next operation works.
func TestWrongArguments(t *testing.T) {
	const ranks, bad = 3, 1
	reshape := func(t *weft.Tensor, shape ...int) { t.Shape = shape }
	tests := []wrongArgument{
		{"prepare", "type", "want int32 or int64", weft.ErrInvalid, func(o *operandSet) { o.topk.DType = weft.Float32 }},
		{
			"prepare", "width", "want int32 or int64 [tokens 2]", weft.ErrInvalid,
			func(o *operandSet) { reshape(&o.topk, 2, 3) },
		},
		{
			"prepare", "dimensions", "want int32 or int64 [tokens 2]", weft.ErrInvalid,
			func(o *operandSet) { reshape(&o.topk, 6) },
		},
		{"prepare", "no memory", "no memory", weft.ErrInvalid, func(o *operandSet) { o.topk.Data = nil }},
		{"prepare", "too many tokens", "larger MaxTokens", weft.ErrInvalid, func(o *operandSet) {
			o.topk, o.weights = weft.TensorOf(make([]int32, 10), 5, 2), weft.TensorOf(make([]float32, 10), 5, 2)
		}},
		{
			"prepare", "expert too large", "expert 6 of 6", weft.ErrInvalid,
			func(o *operandSet) { weft.SliceOf[int32](o.topk)[3] = 6 },
		},
		{
			"prepare", "expert too small", "expert -2 of 6", weft.ErrInvalid,
			func(o *operandSet) { weft.SliceOf[int32](o.topk)[3] = -2 },
		},
		{"prepare", "huge expert", "of 6", weft.ErrInvalid, func(o *operandSet) {
			o.topk = weft.TensorOf([]int64{1 << 40, 0}, 1, 2)
			reshape(&o.weights, 1, 2)
		}},
		{
			"prepare", "duplicate", "expert 4 twice", weft.ErrInvalid,
			func(o *operandSet) { copy(weft.SliceOf[int32](o.topk), []int32{4, 4}) },
		},
		{
			"prepare", "weights of a type", "want fp32 [3 2]", weft.ErrInvalid,
			func(o *operandSet) { o.weights.DType = weft.Int32 },
		},
		{
			"prepare", "weights of a shape", "want fp32 [3 2]", weft.ErrInvalid,
			func(o *operandSet) { reshape(&o.weights, 2, 3) },
		},
		{
			"prepare dispatch", "width", "want int32 or int64 [tokens 2]", weft.ErrInvalid,
			func(o *operandSet) { reshape(&o.topk, 2, 3) },
		},
		{
			"prepare dispatch", "dimensions", "want int32 or int64 [tokens 2]", weft.ErrInvalid,
			func(o *operandSet) { reshape(&o.topk) },
		},
		{
			"prepare dispatch", "a routing beside", "give one of the two", weft.ErrInvalid,
			func(o *operandSet) { o.beside = o.routing },
		},
		{
			"prepare dispatch", "tokens of rows", "want bf16[3 24]", weft.ErrInvalid,
			func(o *operandSet) { reshape(&o.x.Data, 2, 24) },
		},
		{"prepare dispatch", "scales", "scales are given", weft.ErrInvalid, func(o *operandSet) { o.x.Scales = o.weights }},
		{
			"send prepare dispatch", "duplicate", "expert 4 twice", weft.ErrInvalid,
			func(o *operandSet) { copy(weft.SliceOf[int32](o.topk), []int32{4, 4}) },
		},
		{"send prepare dispatch", "no memory", "no memory", weft.ErrInvalid, func(o *operandSet) { o.x.Data.Data = nil }},
		{"dispatch", "type", "want bf16[3 24]", weft.ErrInvalid, func(o *operandSet) { o.x.Data.DType = weft.Float16 }},
		{"send dispatch", "type", "want bf16[3 24]", weft.ErrInvalid, func(o *operandSet) { o.x.Data.DType = weft.Float16 }},
		{"dispatch", "tokens", "want bf16[3 24]", weft.ErrInvalid, func(o *operandSet) { reshape(&o.x.Data, 2, 24) }},
		{"dispatch", "hidden", "want bf16[3 24]", weft.ErrInvalid, func(o *operandSet) { reshape(&o.x.Data, 3, 23) }},
		{"dispatch", "no memory", "no memory", weft.ErrInvalid, func(o *operandSet) { o.x.Data.Data = nil }},
		{
			"dispatch", "weights of a shape", "want fp32[3 2]", weft.ErrInvalid,
			func(o *operandSet) { o.other = o.weights; reshape(&o.other, 2, 3) },
		},
		{
			"dispatch", "weights on some ranks", "some ranks only", weft.ErrMismatch,
			func(o *operandSet) { o.other = o.weights },
		},
		{"dispatch", "scales", "scales are given", weft.ErrInvalid, func(o *operandSet) { o.x.Scales = o.weights }},
		{"combine", "rows", "want bf16[2 12 24]", weft.ErrInvalid, func(o *operandSet) { reshape(&o.y, 2, 11, 24) }},
		{"send combine", "rows", "want bf16[2 12 24]", weft.ErrInvalid, func(o *operandSet) { reshape(&o.y, 2, 11, 24) }},
		{"combine", "output", "want bf16[3 24]", weft.ErrInvalid, func(o *operandSet) { o.out.DType = weft.Float32 }},
		{"combine", "bias", "want bf16[3 24]", weft.ErrInvalid, func(o *operandSet) { reshape(&o.grad, 3, 23) }},
		{"combine", "output in rows", "overlap the rows", weft.ErrInvalid, func(o *operandSet) { o.out.Data = o.y.Data }},
		{
			"combine", "output in a bias", "overlap a part of a bias", weft.ErrInvalid,
			func(o *operandSet) { o.out = beside(o.grad) },
		},
		{"combine", "no memory", "no memory", weft.ErrInvalid, func(o *operandSet) { o.y.Data = nil }},
		{"dispatch backward", "rows", "want bf16[2 12 24]", weft.ErrInvalid, func(o *operandSet) { reshape(&o.y, 24) }},
		{
			"dispatch backward", "output in rows", "overlap the rows", weft.ErrInvalid,
			func(o *operandSet) { o.out.Data = o.y.Data },
		},
		{
			"dispatch backward", "half of the weights", "both tensors or neither", weft.ErrInvalid,
			func(o *operandSet) { o.gradWeight = weft.Tensor{} },
		},
		{
			"dispatch backward", "weights on some ranks", "some ranks only", weft.ErrMismatch,
			func(o *operandSet) { o.gradWeight, o.scalars = weft.Tensor{}, weft.Tensor{} },
		},
		{
			"dispatch backward", "number of weights", "with 24 numbers", weft.ErrInvalid,
			func(o *operandSet) { o.scalars = weft.TensorOf(make([]float32, 23)) },
		},
		{"combine backward", "gradient", "want bf16[3 24]", weft.ErrInvalid, func(o *operandSet) { reshape(&o.grad, 4, 18) }},
		{"combine backward", "rows", "want bf16[2 12 24]", weft.ErrInvalid, func(o *operandSet) { o.y.DType = weft.Float16 }},
		{
			"combine backward", "gradients in rows", "overlap those of the output", weft.ErrInvalid,
			func(o *operandSet) { o.grad.Data = o.gradRows.Data },
		},
		{
			"combine backward", "overlap above", "overlap a part", weft.ErrInvalid,
			func(o *operandSet) { o.gradRows = beside(o.y) },
		},
		{
			"combine backward", "overlap below", "overlap a part", weft.ErrInvalid,
			func(o *operandSet) { o.gradRows, o.y = o.y, beside(o.y) },
		},
		{
			"combine backward", "weights on some ranks", "some ranks only", weft.ErrMismatch,
			func(o *operandSet) { o.gradWeight = weft.Tensor{} },
		},
		{
			"combine backward", "weights of a shape", "want fp32[3 2]", weft.ErrInvalid,
			func(o *operandSet) { reshape(&o.gradWeight, 6) },
		},
	}
	for _, op := range slices.Concat(operations, otherForms) {
		tests = append(tests, wrongArgument{
			op, "stream", "no streams", weft.ErrUnsupported,
			func(o *operandSet) { o.stream = new(weft.Stream) },
		})
	}
	group := join(t, ranks)
	made := handles(t, group, small(ranks))
	ctx := testContext(t)
	engine := eptest.NewHost()
	after := eptest.Fixed(small(ranks), ranks, 7).Batch()
	for _, test := range tests {
		t.Run(test.op+"/"+test.name, func(t *testing.T) {
			each(t, group, func(c *weft.Comm) error {
				h := made[c.Rank()]
				o := operandsFor(h, c.Rank())
				routing, err := h.Prepare(ctx, nil, o.topk, o.weights)
				if err != nil {
					return err
				}
				defer routing.Release()
				o.routing = routing
				if c.Rank() == bad {
					test.spoil(o)
				}
				err = operation(ctx, test.op, h, routing, o)
				if err == nil || !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.words) {
					return fmt.Errorf("%w: %v, want one with %q", test.kind, err, test.words)
				}
				if peer, ok := errors.AsType[*weft.PeerError](err); c.Rank() != bad &&
					test.kind != weft.ErrMismatch && (!ok || peer.Rank != bad) {
					return fmt.Errorf("%v does not name rank %d", err, bad)
				}
				// The next operations work.
				steps, err := after.Steps(engine, c, h)
				if err != nil {
					return err
				}
				return errors.Join(steps.Prepare(ctx), steps.Dispatch(ctx, 0), steps.Combine(ctx), steps.Free())
			})
		})
	}
}

// TestDifferentCalls has ranks call different operations, or the same one by different routings.
// Every rank says whose call differs, nothing has moved, and the next operation works.
func TestDifferentCalls(t *testing.T) {
	const ranks, odd = 3, 2
	group := join(t, ranks)
	made := handles(t, group, small(ranks))
	ctx := testContext(t)
	each(t, group, func(c *weft.Comm) error {
		h := made[c.Rank()]
		o := operandsFor(h, c.Rank())
		var routings [2]*ep.Routing
		for i := range routings {
			var err error
			if routings[i], err = h.Prepare(ctx, nil, o.topk, o.weights); err != nil {
				return err
			}
		}
		differs := func(ops [2]string, r [2]*ep.Routing, words string) error {
			i := c.Rank() / odd // the last rank is the odd one
			err := operation(ctx, ops[i], h, r[i], o)
			peer, ok := errors.AsType[*weft.PeerError](err)
			if !ok || !errors.Is(err, weft.ErrMismatch) || peer.Rank != odd ||
				!strings.Contains(err.Error(), words) {
				return fmt.Errorf("%v, where rank %d makes another call: %w", ops, odd, err)
			}
			for _, op := range []string{"dispatch", "combine", "combine backward"} {
				if err := operation(ctx, op, h, routings[0], o); err != nil {
					return fmt.Errorf("%s after %v: %w", op, ops, err)
				}
			}
			return nil
		}
		all := slices.Concat(operations, otherForms)
		for _, a := range all {
			for _, b := range all {
				if strings.TrimPrefix(a, "send ") == strings.TrimPrefix(b, "send ") {
					continue
				}
				words := fmt.Sprintf("rank 2 calls %s, ranks 0-1 %s", strings.TrimPrefix(b, "send "),
					strings.TrimPrefix(a, "send "))
				if err := differs([2]string{a, b}, [2]*ep.Routing{routings[0], routings[0]}, words); err != nil {
					return err
				}
			}
			if !strings.Contains(a, "prepare") {
				if err := differs([2]string{a, a}, routings, "another routing"); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// TestRoutingsFarApart has one rank go by an older routing than the others: of the generation
// before the last SetMask, where it was the n-th as well, or of 4096 operations ago. Every rank
// says so, and none gets rows.
func TestRoutingsFarApart(t *testing.T) {
	const ranks, odd = 2, 1
	group := join(t, ranks)
	ctx := testContext(t)
	for _, test := range []struct {
		name string
		pass func(c *weft.Comm, h *ep.Handle, o *operandSet) error
	}{
		{"generations", func(c *weft.Comm, _ *ep.Handle, _ *operandSet) error { return c.SetMask(ctx) }},
		{"operations", func(_ *weft.Comm, h *ep.Handle, o *operandSet) error {
			for range 1<<12 - 1 {
				if err := operation(ctx, "prepare", h, nil, o); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			made := handles(t, group, small(ranks))
			each(t, group, func(c *weft.Comm) error {
				h := made[c.Rank()]
				o := operandsFor(h, c.Rank())
				old, err := h.Prepare(ctx, nil, o.topk, o.weights)
				if err != nil {
					return err
				}
				if err := test.pass(c, h, o); err != nil {
					return err
				}
				r, err := h.Prepare(ctx, nil, o.topk, o.weights)
				if err != nil {
					return err
				}
				goes := r
				if c.Rank() == odd {
					goes = old
				}
				for _, op := range append(slices.Clone(operations[1:]), "send dispatch", "send combine") {
					if err := operation(ctx, op, h, goes, o); !errors.Is(err, weft.ErrMismatch) ||
						!strings.Contains(err.Error(), "another routing") {
						return fmt.Errorf("%s by different routings: %w", op, err)
					}
				}
				// Both are as good as ever.
				return errors.Join(operation(ctx, "dispatch", h, old, o), operation(ctx, "dispatch", h, r, o))
			})
		})
	}
}

// TestForeignRouting uses a routing with another handle, and after its release.
func TestForeignRouting(t *testing.T) {
	group := join(t, 2)
	one, other := handles(t, group, small(2)), handles(t, group, small(2))
	ctx := testContext(t)
	each(t, group, func(c *weft.Comm) error {
		o := operandsFor(one[c.Rank()], c.Rank())
		r, err := one[c.Rank()].Prepare(ctx, nil, o.topk, o.weights)
		if err != nil {
			return err
		}
		if err := operation(ctx, "dispatch", other[c.Rank()], r, o); !errors.Is(err, weft.ErrInvalid) {
			return fmt.Errorf("another handle's routing: %v", err)
		}
		r.Release()
		for _, op := range []string{"dispatch", "combine", "combine backward"} {
			if err := operation(ctx, op, one[c.Rank()], r, o); !errors.Is(err, weft.ErrInvalid) {
				return fmt.Errorf("%s with a released routing: %v", op, err)
			}
			if err := operation(ctx, op, one[c.Rank()], nil, o); !errors.Is(err, weft.ErrInvalid) {
				return fmt.Errorf("%s without a routing: %v", op, err)
			}
		}
		return operation(ctx, "prepare", one[c.Rank()], nil, o)
	})
}

// TestDifferentSpecs makes handles of Specs that differ between ranks, or are wrong on one.
func TestDifferentSpecs(t *testing.T) {
	group := join(t, 3)
	ctx := testContext(t)
	for _, test := range []struct {
		kind  error
		spoil func(*ep.Spec)
	}{
		{weft.ErrMismatch, func(s *ep.Spec) { s.Hidden = 32 }},
		{weft.ErrInvalid, func(s *ep.Spec) { s.TopK = 0 }},
		{weft.ErrUnsupported, func(s *ep.Spec) { s.Layout = ep.TokenMajor }},
	} {
		each(t, group, func(c *weft.Comm) error {
			s := small(3)
			if c.Rank() == 2 {
				test.spoil(&s)
			}
			h, err := ep.NewHandle(ctx, c, s)
			if err == nil {
				return errors.Join(errors.New("made"), h.Close())
			}
			if own := s.Validate(3); !errors.Is(err, test.kind) || own != nil && err.Error() != "new handle: "+own.Error() {
				return fmt.Errorf("%w, want %w", err, test.kind)
			}
			return nil
		})
	}
	handles(t, group, small(3))
}

// TestRefusedElsewhere has one rank refuse a combine that brings weights: at the others those of
// before count, as at the one that refused.
func TestRefusedElsewhere(t *testing.T) {
	const ranks = 2
	ctx := testContext(t)
	group := join(t, ranks)
	hs := handles(t, group, small(ranks))
	for _, halves := range []bool{false, true} {
		each(t, group, func(c *weft.Comm) error {
			h := hs[c.Rank()]
			o := operandsFor(h, c.Rank())
			for i := range weft.SliceOf[weft.BF16](o.x.Data) {
				weft.SliceOf[weft.BF16](o.x.Data)[i] = 0x3F80 // 1
			}
			fill := func(t weft.Tensor, v float32) weft.Tensor {
				for i := range weft.SliceOf[float32](t) {
					weft.SliceOf[float32](t)[i] = v
				}
				return t
			}
			received, err := h.Dispatch(ctx, nil, ep.DispatchArgs{
				TopK: o.topk, Weights: fill(o.weights, 1), Rows: o.x,
			})
			if err != nil {
				return err
			}
			defer received.Routing.Release()
			defer received.Release()
			out, other := o.out, fill(weft.TensorOf(make([]float32, o.weights.Elems()), o.weights.Shape...), 2)
			if c.Rank() == 0 {
				out.Shape = []int{out.Shape[0] + 1, out.Shape[1]}
			}
			if halves {
				var work *weft.Work
				if work, err = h.SendCombine(ctx, nil, ep.CombineArgs{
					Routing: received.Routing, Weights: other, Rows: received.Data, Out: out,
				}); err == nil {
					err = work.Wait(ctx)
				}
			} else {
				err = h.Combine(ctx, nil, ep.CombineArgs{
					Routing: received.Routing, Weights: other, Rows: received.Data, Out: out,
				})
			}
			if !errors.Is(err, weft.ErrInvalid) {
				return fmt.Errorf("%w, want %w", err, weft.ErrInvalid)
			}
			if err := h.Combine(ctx, nil, ep.CombineArgs{
				Routing: received.Routing, Rows: received.Data, Out: o.out,
			}); err != nil {
				return err
			}
			if got, want := weft.SliceOf[weft.BF16](o.out)[0], weft.BF16(0x4000); got != want { // 2: one for each selection
				return fmt.Errorf("a sum of %#x, want %#x, by the weights of before", got, want)
			}
			// where the weights are still the dispatch's
			return h.CombineBackward(ctx, nil, ep.CombineBackwardArgs{
				Routing: received.Routing, GradOut: o.grad, GradRows: o.gradRows,
			})
		})
	}
}

// TestPhases makes operations while another is half done, and receives twice.
func TestPhases(t *testing.T) {
	group := join(t, 2)
	made := handles(t, group, small(2))
	ctx := testContext(t)
	each(t, group, func(c *weft.Comm) error {
		h := made[c.Rank()]
		o := operandsFor(h, c.Rank())
		r, err := h.Prepare(ctx, nil, o.topk, o.weights)
		if err != nil {
			return err
		}
		p, err := h.SendDispatch(ctx, nil, ep.DispatchArgs{Routing: r, Weights: o.other, Rows: o.x})
		if err != nil {
			return err
		}
		for _, op := range slices.Concat(operations, otherForms) {
			if err := operation(ctx, op, h, r, o); !errors.Is(err, weft.ErrInvalid) ||
				!strings.Contains(err.Error(), "dispatch has been sent") {
				return fmt.Errorf("%s after a send: %v", op, err)
			}
		}
		first, err := p.Receive(ctx)
		if err != nil {
			return err
		}
		second, err := p.Receive(ctx)
		if err != nil || first != second {
			return fmt.Errorf("received twice: %p %p %v", first, second, err)
		}
		r.Release()
		first.Release()
		first.Release()
		if _, err := h.Prepare(ctx, &weft.Stream{}, o.topk, o.weights); !errors.Is(err, weft.ErrUnsupported) {
			return fmt.Errorf("a stream on the host: %v", err)
		}
		return errors.Join(operation(ctx, "prepare", h, nil, o), h.Close(), h.Close(),
			closed(operation(ctx, "prepare", h, nil, o)))
	})
}

func closed(err error) error {
	if !errors.Is(err, weft.ErrClosed) {
		return fmt.Errorf("a closed handle: %v", err)
	}
	return nil
}

// TestRefusalsInTurn has a rank refuse twice in a row, while a slow rank has not read the first
// reason yet. It must not read the second in its place.
func TestRefusalsInTurn(t *testing.T) {
	const ranks, refuses, slow = 3, 0, 2
	group := join(t, ranks)
	made := handles(t, group, small(ranks))
	ctx := testContext(t)
	held := &heldContext{Context: ctx, asked: make(chan struct{}), free: make(chan struct{})}
	again := &heldContext{Context: ctx, asked: held.free, free: make(chan struct{})}
	close(again.free)
	words := []string{"want bf16[3 24]", "no memory"}
	each(t, group, func(c *weft.Comm) error {
		h := made[c.Rank()]
		o := operandsFor(h, c.Rank())
		r, err := h.Prepare(ctx, nil, o.topk, o.weights)
		if err != nil {
			return err
		}
		turns := []context.Context{ctx, ctx}
		switch c.Rank() {
		case refuses:
			turns[1] = again // lets the slow rank go on when this one has refused twice
		case slow:
			turns[0] = held // stops while it waits for the third
		default:
			select {
			case <-held.asked:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for i, turn := range turns {
			if c.Rank() == refuses {
				o.x.Data.DType = weft.Float16
				if i == 1 {
					o.x.Data.DType, o.x.Data.Data = weft.BFloat16, nil
				}
			}
			if err := operation(turn, "dispatch", h, r, o); !errors.Is(err, weft.ErrInvalid) ||
				!strings.Contains(err.Error(), words[i]) || strings.Contains(err.Error(), words[1-i]) {
				return fmt.Errorf("turn %d: %v, want one with %q", i, err, words[i])
			}
		}
		return nil
	})
}

// TestHugeRows makes a handle of a Spec whose sizes are beyond 64 bits: every rank is told so.
func TestHugeRows(t *testing.T) {
	group := join(t, 2)
	ctx := testContext(t)
	s := ep.Spec{
		Experts: 2, TopK: 1, MaxTokens: 1, Layout: ep.ExpertPacked, Payload: ep.Opaque, RowBytes: 1 << 26,
		Capacity: 1 << 30, Live: 1024,
		Counts: ep.DeviceCounts,
	}
	each(t, group, func(c *weft.Comm) error {
		h, err := ep.NewHandle(ctx, c, s)
		if err == nil {
			return errors.Join(errors.New("made"), h.Close())
		}
		if !errors.Is(err, weft.ErrUnsupported) {
			return err
		}
		return nil
	})
}
