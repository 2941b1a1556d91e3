package gpu

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// normThreads are those of a block, which has a row. It has an SM's registers to itself.
const normThreads = 512

// MaxHidden is the longest row: a block keeps one in shared memory.
const MaxHidden = 16384

// allReduceNormArgs are the AllReduceNorm of all_reduce_norm.cuh.
type allReduceNormArgs struct {
	lane                                  laneArgs
	in, out, residual, residualOut, gamma operand
	scales, scale                         uint64
	slotBytes                             uint64
	tokens, hidden                        uint32
	eps                                   float32
	quant                                 uint32
	group                                 device.Group
}

// norms are the kernels for rows of one type.
type norms struct {
	oneShot, twoShot enginegpu.Launch[allReduceNormArgs]
}

func normOneShotSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("one-shot all-reduce-norm of %v", d), "all_reduce_norm_one_shot.cu", t,
		unsafe.Sizeof(allReduceNormArgs{}), reducing(d))
}

func normTwoShotSource(d weft.DType, t target) enginegpu.Source {
	return source(fmt.Sprintf("two-shot all-reduce-norm of %v", d), "all_reduce_norm_two_shot.cu", t,
		unsafe.Sizeof(allReduceNormArgs{}), reducing(d))
}

// prepareNorm is Prepare for kernels with a norm.
func (e *Engine) prepareNorm(ctx context.Context, t weft.DType) error {
	n, to, shape := &e.norms[t], e.target(), e.shape(normThreads, MaxHidden*t.Size())
	switch {
	case n.oneShot.Launch != nil:
		return nil
	case e.lane.Capture() != 0:
		return weft.Unsupportedf("all-reduce-norm: the kernels for %v are not loaded, and a capture cannot wait for "+
			"that; call it once before", t)
	}
	return e.load(ctx,
		into(&n.oneShot, normOneShotSource(t, to), shape, allReduceNormArgs{}),
		into(&n.twoShot, normTwoShotSource(t, to), shape, allReduceNormArgs{}))
}

// normRows is how many rows one launch takes at most, if a turn of slots has so many for each; 0: none.
func (e *Engine) normRows(n *spec.Norm, t weft.DType, slots int) int {
	return e.turnBytes / slots / words.slotSize(n.Hidden*t.Size())
}

// checkNorm refuses what the kernels cannot do. It depends on what is the same on every rank.
func (e *Engine) checkNorm(c *spec.Call) error {
	switch n := c.Norm; {
	case n == nil:
		return nil
	case n.Hidden > MaxHidden:
		return weft.Unsupportedf("%s: rows of %d numbers; they may have %d on GPUs", c.Name(), n.Hidden, MaxHidden)
	case e.normRows(n, c.DType, 2*e.ranks) == 0:
		return weft.Unsupportedf("%s: rows of %d %v do not fit the slots; raise Options.Staging to %d", c.Name(), n.Hidden,
			c.DType, turns*2*e.ranks*words.slotSize(n.Hidden*c.DType.Size()))
	}
	return nil
}

// normArgs are a launch's, for rows of a call from one on.
func (e *Engine) normArgs(a *allReduceNormArgs, c *spec.Call, token, tokens int) {
	n, size := c.Norm, c.DType.Size()
	rows := func(t *weft.Tensor, token, size int) operand {
		if t.IsZero() {
			return operand{}
		}
		bytes := n.Hidden * size
		return operandAt(uint64(t.Pointer())+uint64(token*bytes), bytes, bytes)
	}
	a.group, a.tokens, a.hidden, a.eps, a.quant = e.group, uint32(tokens), uint32(n.Hidden), n.Eps, uint32(n.Quant)
	a.in, a.gamma = rows(&c.In, token, size), rows(&n.Gamma, 0, size)
	a.residual, a.residualOut = rows(&n.Residual, token, size), rows(&n.ResidualOut, token, size)
	a.out = rows(&c.Out, token, c.Out.DType.Size())
	a.scale = uint64(n.Scale.Pointer())
	a.scales = uint64(n.Scales.Pointer()) + uint64(token*(n.Hidden/spec.QuantGroup)*n.Scales.DType.Size())
}

// normGrid is how many blocks, of so many that a call allows, serve so many rows.
func normGrid(tokens, most int) cuda.Dim { return cuda.Dim{X: uint32(min(tokens, most))} }

func (e *Engine) startNormOneShot(stream *cuda.Stream, c *spec.Call) error {
	of, most, row := &e.norms[c.DType], e.normRows(c.Norm, c.DType, e.ranks), c.Norm.Hidden*c.DType.Size()
	k := &of.oneShot
	for at := 0; at < c.Norm.Tokens; at += most {
		tokens := min(c.Norm.Tokens-at, most)
		slot := tokens * words.slotSize(row)
		e.normArgs(k.Args, c, at, tokens)
		k.Args.lane, k.Args.slotBytes = e.laneOf(opAllReduceNorm, e.ranks*slot), uint64(slot)
		k.SetGrid(normGrid(tokens, e.most))
		if err := e.lane.Start(stream, k.Launch); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) startNormTwoShot(stream *cuda.Stream, c *spec.Call) error {
	of, live, row := &e.norms[c.DType], e.live(), c.Norm.Hidden*c.DType.Size()
	k := &of.twoShot
	most := live * e.normRows(c.Norm, c.DType, 2*e.ranks)
	for at := 0; at < c.Norm.Tokens; at += most {
		tokens := min(c.Norm.Tokens-at, most)
		share := (tokens + live - 1) / live // the longest
		slot := share * words.slotSize(row)
		e.normArgs(k.Args, c, at, tokens)
		k.Args.lane, k.Args.slotBytes = e.laneOf(opAllReduceNorm, 2*e.ranks*slot), uint64(slot)
		k.SetGrid(normGrid(share, e.most))
		if err := e.lane.Start(stream, k.Launch); err != nil {
			return err
		}
	}
	return nil
}
