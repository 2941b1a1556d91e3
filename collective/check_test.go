package collective

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/ranktest"
)

// checks makes calls that rank 0 makes in another way: with WEFT_CHECK=1 every rank gets the error that names
// both, and the next call works. tensor gives memory of so many elements, at a place.
func checks(ctx context.Context, g *Group, tensor func(at, n int) weft.Tensor) error {
	me := g.comm.Rank()
	const n = 12
	reduce := func(op weft.Op, scalar float32, algorithm string) Call {
		c := Call{Collective: AllReduce, In: tensor(0, n), Out: tensor(1, n), Op: op, Algorithm: algorithm}
		if op == weft.PreMulSum {
			c.Scalar = weft.TensorOf([]float32{scalar})
		}
		return c
	}
	short := reduce(weft.Sum, 0, "")
	short.Out = tensor(1, n-1)
	gather := Call{Collective: AllGatherV, In: tensor(0, 3), Out: tensor(1, 6+3*(g.ranks-2))}
	for range g.ranks {
		gather.Counts.Recv = append(gather.Counts.Recv, 3)
	}
	shifted := gather
	shifted.Counts.RecvAt = []int{3, 0}
	for r := 2; r < g.ranks; r++ {
		shifted.Counts.RecvAt = append(shifted.Counts.RecvAt, 3*r)
	}
	algorithm := "all-reduce/two-shot"
	for _, c := range []struct {
		first, rest Call
		words       []string
	}{
		{Call{Collective: Barrier}, reduce(weft.Max, 0, ""), []string{`rank 0 calls "barrier", rank`, `"all-reduce"; make`}},
		{reduce(weft.Sum, 0, ""), reduce(weft.Max, 0, ""), []string{"all-reduce sum of 12 fp32", "all-reduce max of"}},
		{reduce(weft.PreMulSum, 1.5, ""), reduce(weft.PreMulSum, 2, ""), []string{"by 1.5", "by 2"}},
		{reduce(weft.Sum, 0, algorithm), reduce(weft.Sum, 0, ""), []string{"by " + algorithm, "all-reduce sum of 12 fp32"}},
		{gather, shifted, []string{"all-gather-v", "at []", "at [3 0"}},
	} {
		mine := c.rest
		if me == 0 {
			mine = c.first
		}
		err := g.Do(ctx, nil, mine)
		if !errors.Is(err, weft.ErrMismatch) {
			return fmt.Errorf("%v: %w", c.words, err)
		}
		for _, w := range c.words {
			if !strings.Contains(err.Error(), w) {
				return fmt.Errorf("%w does not say %q", err, w)
			}
		}
		if err := g.Do(ctx, nil, c.rest); err != nil {
			return err
		}
	}
	// What is wrong with one rank's arguments, every rank returns.
	mine := reduce(weft.Sum, 0, "")
	if me == 0 {
		mine = short
	}
	err := g.Do(ctx, nil, mine)
	if peer, ok := errors.AsType[*weft.PeerError](err); !errors.Is(err, weft.ErrInvalid) || ok != (me != 0) ||
		ok && peer.Rank != 0 || !strings.Contains(err.Error(), "output of 11") {
		return fmt.Errorf("another rank's refusal: %w", err)
	}
	return g.Do(ctx, nil, reduce(weft.Sum, 0, ""))
}

func TestCheckedCalls(t *testing.T) {
	t.Setenv(checkVariable, "1")
	const ranks, masked = 4, 3
	j := newJob(t, ranks)
	groups := j.group(t, Options{})
	memory := make([]float32, ranks*2*64)
	body := func(ctx context.Context, r int) error {
		return checks(ctx, groups[r], func(at, n int) weft.Tensor { return weft.TensorOf(memory[(2*r+at)*64:][:n]) })
	}
	j.must(t, body)
	j.must(t, func(ctx context.Context, r int) error {
		if r == masked {
			return nil
		}
		return errors.Join(j.comms[r].SetMask(ctx, masked), body(ctx, r))
	})
	t.Setenv(checkVariable, "yes")
	for r, err := range j.each(t, func(ctx context.Context, r int) error {
		if r == masked {
			return weft.ErrInvalid
		}
		_, err := New(ctx, j.comms[r], Options{})
		return err
	}) {
		if !errors.Is(err, weft.ErrInvalid) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// TestScalarsThatDiffer: on the host they do without that.
func TestScalarsThatDiffer(t *testing.T) {
	j := newJob(t, 2)
	groups := j.group(t, Options{})
	for r, err := range j.each(t, func(ctx context.Context, r int) error {
		x := make([]float32, 5)
		return groups[r].Do(ctx, nil, Call{
			Collective: AllReduce, In: weft.TensorOf(x), Out: weft.TensorOf(x), Op: weft.PreMulSum,
			Scalar: weft.TensorOf([]float32{float32(r)}),
		})
	}) {
		if !errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), "another scalar") ||
			!strings.Contains(err.Error(), "of 5 fp32") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// checksRefusals makes calls that the engine refuses on rank 0: so does every rank, and none waits for another.
func checksRefusals(ctx context.Context, g *Group, tensor func(at, n int) weft.Tensor) error {
	x := tensor(0, 12)
	reduce := Call{Collective: AllReduce, In: x, Out: x}
	extra := reduce
	extra.Extras = map[string]uintptr{"counter": 0}
	odd := reduce
	odd.In.Data = unsafe.Add(x.Data, 1)
	odd.Out = odd.In
	for _, c := range []Call{extra, odd} {
		mine := reduce
		if g.comm.Rank() == 0 {
			mine = c
		}
		err := g.Do(ctx, nil, mine)
		peer, ok := errors.AsType[*weft.PeerError](err)
		if !errors.Is(err, weft.ErrInvalid) && !errors.Is(err, weft.ErrUnsupported) || ok != (g.comm.Rank() != 0) ||
			ok && peer.Rank != 0 {
			return fmt.Errorf("what rank 0 refuses: %w", err)
		}
		if err := g.Do(ctx, nil, reduce); err != nil {
			return err
		}
	}
	return nil
}

// checksSymmetric makes symmetric calls, which are refused if an operand lies elsewhere on rank 0 and others would
// store there, and are not if it is each rank's own part of the other operand, or the root's, or empty.
func checksSymmetric(ctx context.Context, r *gpuRank) (err error) {
	const n = 8
	me, ranks := r.comm.Rank(), r.ranks
	w, err := r.comm.Alloc(ctx, 4*n*(3*ranks+2))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	at := func(at, n int) weft.Tensor { return weft.DeviceTensor(w.Pointer().Add(4*at), weft.Float32, n) }
	x, all, other, others := at(0, n), at(n, n*ranks), at(n*(ranks+1), n), at(n*(ranks+2), n*ranks)
	mine := at(n+n*me, n) // of all
	late := func(c Call) Call {
		c.Out.Data = unsafe.Add(c.Out.Data, 4)
		return c
	}
	whole, short := Counts{Recv: []int{0}}, Counts{Send: []int{0}}
	for range ranks - 1 {
		whole.Recv, short.Send = append(whole.Recv, n), append(short.Send, n)
	}
	some := at(0, whole.Recv[me])
	reduce := Call{Collective: AllReduce, In: x, Out: other}
	for _, c := range []Call{
		reduce,
		{Collective: AllReduce, In: x, Out: x, Algorithm: "all-reduce/direct"},
		{Collective: AllGather, In: mine, Out: all, Algorithm: "all-gather/direct"},
		{Collective: AllGather, In: mine, Out: all, Algorithm: "all-gather/few-sm"},
		{Collective: ReduceScatter, In: all, Out: mine, Algorithm: "reduce-scatter/direct"},
		{Collective: AllToAll, In: all, Out: others, Algorithm: "all-to-all/direct"},
		{Collective: Broadcast, In: at(me, n), Out: other, Algorithm: "broadcast/direct"},
		{Collective: Scatter, In: at(n+me, n*ranks), Out: x, Algorithm: "scatter/direct"},
		{Collective: Gather, In: x, Out: at(n+me, n*ranks), Algorithm: "gather/direct"},
		{Collective: Reduce, In: x, Out: at(n+me, n), Algorithm: "reduce/direct"},
		{Collective: AllGatherV, In: some, Out: all, Counts: whole},
		{Collective: ReduceScatterV, In: all, Out: at(n*(ranks+1), short.Send[me]), Counts: short},
		{Collective: AllGather, In: at(me, 0), Out: at(2*me, 0)},
	} {
		c.Symmetric = true
		if err := r.Do(ctx, nil, c); err != nil {
			return fmt.Errorf("%v: %w", &c, err)
		}
	}
	reduce.Symmetric = true
	gather := Call{Collective: AllGather, In: mine, Out: all, Symmetric: true}
	apart := gather
	apart.In = x
	blocks, threads := reduce, Call{Collective: Barrier, Threads: 32}
	blocks.Blocks = 2
	eps := Call{Collective: AllReduce, In: x, Out: x, Norm: &Norm{Gamma: other, Eps: 1e-5}}
	eps2 := eps
	eps2.Norm = &Norm{Gamma: other, Eps: 1e-6}
	for _, c := range []struct {
		first, rest Call
		words       []string
	}{
		{late(reduce), reduce, []string{"output in window", fmt.Sprintf("at %d", 4*n*(ranks+1)+4)}},
		{apart, gather, []string{"input in place", "input in window"}},
		{blocks, reduce, []string{", 2 blocks"}},
		{threads, Call{Collective: Barrier}, []string{"threads"}},
		{eps, eps2, []string{"eps 1e-05", "eps 1e-06"}},
	} {
		mine := c.rest
		if me == 0 {
			mine = c.first
		}
		err := r.Do(ctx, nil, mine)
		if !errors.Is(err, weft.ErrMismatch) && !errors.Is(err, weft.ErrUnsupported) {
			return fmt.Errorf("%v: %w", c.words, err)
		}
		for _, w := range c.words {
			if !strings.Contains(err.Error(), w) {
				return fmt.Errorf("%w does not say %q", err, w)
			}
		}
	}
	return nil
}

// testChecked is the same on GPUs, where a graph's calls are not compared.
func testChecked(t *testing.T, g *ranktest.GPUs) {
	t.Setenv(checkVariable, "1")
	o := Options{Staging: gpuStaging, SMs: 4, DTypes: []weft.DType{weft.Float32}}
	onGPUs(t, g, 3, o, func(ctx context.Context, r *gpuRank) error {
		tensor := func(at, n int) weft.Tensor { return r.tensorOf(at*1024, weft.Float32, n) }
		if err := checks(ctx, r.Group, tensor); err != nil {
			return err
		}
		if err := checksRefusals(ctx, r.Group, tensor); err != nil {
			return err
		}
		if err := checksSymmetric(ctx, r); err != nil {
			return err
		}
		return r.capture(func(s *weft.Stream) error {
			return r.AllReduce(ctx, s, tensor(0, 5), tensor(1, 5), weft.Max)
		}, func(s *cuda.Stream, graph *cuda.GraphExec) error {
			return errors.Join(graph.Launch(s), r.comm.Wait(ctx, weft.StreamOf(s)))
		})
	})
}

func TestCheckedOnEmulatedGPUs(t *testing.T) { testChecked(t, emulatedGPUs(t, 3)) }

func TestCheckedOnGPUs(t *testing.T) { testChecked(t, ranktest.Real(t)) }
