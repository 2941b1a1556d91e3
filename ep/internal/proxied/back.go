package proxied

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

// Back brings gradients that port channels do not, of handles whose rows they carry: on the host, by a routing that
// each operation prepares there.
type Back struct{ x *exchange }

// NewBack makes one for a handle. It is collective. beside is the room of the handle's own kernels.
func NewBack(ctx context.Context, of *spec.Base, host Host, beside *enginegpu.Room) (*Back, error) {
	x, err := newExchange(ctx, of, host, beside)
	if err != nil {
		return nil, err
	}
	return &Back{x}, nil
}

// CountWaits says where operations from now on count waits; 0: nowhere.
func (b *Back) CountWaits(dispatch, combine cuda.Pointer) {
	b.x.waits.dispatch, b.x.waits.combine = dispatch, combine
}

// Resources are what it has.
func (b *Back) Resources() spec.Resources { return b.x.resources() }

// Close gives up what it has, once nothing of it runs.
func (b *Back) Close() (released bool, err error) { return b.x.close() }

const pairBytes = 8

// DispatchBackward enqueues one. Its arguments are as they should be. home is where the routing's selections lie in
// the GPU's memory: of each (token, selection) a pair of its expert's number from 1, in 16 bits, and its weight.
func (b *Back) DispatchBackward(ctx context.Context, s *weft.Stream, a spec.SumArgs, home cuda.Pointer) error {
	c := &sum{exchange: b.x, op: spec.OpDispatchBackward, args: a}
	return b.run(ctx, s, c.op, home, a.Batch.Tokens, c.dispatchBackward)
}

// CombineBackward enqueues one, with a home as that of DispatchBackward. Its arguments are as they should be.
func (b *Back) CombineBackward(ctx context.Context, s *weft.Stream, a spec.SpreadArgs, home cuda.Pointer) error {
	return b.run(ctx, s, spec.OpCombineBackward, home, a.Batch.Tokens, func(batch *spec.Batch) error {
		return b.x.combineBackward(batch, &a)
	})
}

// run enqueues an operation that goes by a batch which it prepares.
func (b *Back) run(ctx context.Context, s *weft.Stream, op string, home cuda.Pointer, tokens int,
	do func(*spec.Batch) error,
) error {
	x := b.x
	stream, err := x.proxy.Enter(ctx, op, s)
	if err != nil {
		return err
	}
	if err := x.start(stream, op, func() error {
		a, err := x.selectionsAt(home, tokens)
		if err != nil {
			return err
		}
		batch, err := x.host.Prepare(context.Background(), nil, a)
		if err != nil {
			return err
		}
		defer batch.Release()
		return do(batch)
	}); err != nil {
		return err
	}
	return x.proxy.Finish(ctx, s)
}

// selectionsAt takes a routing's selections to the host.
func (x *exchange) selectionsAt(home cuda.Pointer, tokens int) (a spec.PrepareArgs, err error) {
	k := x.base.Geometry.TopK
	n := tokens * k
	raw := x.numbers.of(n * pairBytes)
	if err := x.fetch(move{home, raw}); err != nil {
		return a, err
	}
	ids, weights := make([]int32, n, n+1), make([]float32, n, n+1)
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint16(raw[i*pairBytes:])) - 1
		weights[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[i*pairBytes+4:]))
	}
	return spec.PrepareArgs{TopK: weft.TensorOf(ids, tokens, k), Weights: weft.TensorOf(weights, tokens, k)}, nil
}
