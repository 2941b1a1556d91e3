package collective

import (
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// AllReduceNorm sums the inputs of all ranks as AllReduce does, adds a residual, and gives every rank the
// rows of the result, each divided by its root mean square and multiplied by gamma: in the input's type, or
// as e4m3 numbers with scales. [Norm] has the rules, and the other operands. in holds rows of as many
// numbers as gamma has. out may be the same memory as in, and the residual output as the residual; other
// operands that are written overlap none. The bits are those of an AllReduce and of each step after it
// alone, on every rank, by every algorithm and engine.
//
// On GPUs a row has [MaxHidden] numbers at most. The first call for a type loads kernels, which a capture cannot
// wait for: call it once before.
func (g *Group) AllReduceNorm(ctx context.Context, s *weft.Stream, out, in weft.Tensor, n Norm) error {
	c := g.begin(spec.AllReduce)
	g.norm = n
	c.Out, c.In, c.Norm = out, in, &g.norm
	return g.run(ctx, s, c)
}

// AllGatherProgress is AllGather that raises words as parts land, so that what uses them may begin:
// progress has as many 64-bit integers for each rank, in rank order, which [Words] describes. Each is raised
// by one a call, by a release: who has read the new number by an acquire may read that chunk of out. Numbers only
// grow, so a graph is replayed with the same words, and the user counts the calls. This rank's own part lands
// first, then that of the next rank, and so on. All ranks pass words; each has as many as it likes.
//
// On GPUs kernels that wait for words run beside the operation, in another stream: leave them room
// (Options.SMs). The device header progress.cuh has what they call. The words of masked ranks stay as they are.
func (g *Group) AllGatherProgress(ctx context.Context, s *weft.Stream, out, in, progress weft.Tensor) error {
	c := g.begin(spec.AllGather)
	c.Out, c.In, c.Words.Progress = out, in, progress
	return g.run(ctx, s, c)
}

// ReduceScatterReady is ReduceScatter that begins while its input is made: ready has as many 64-bit integers for
// each rank, in rank order, which [Words] describes. It reads a chunk of the input, of the part for that rank, once its
// word is not 0, by an acquire, and makes the word 0 when it has read the chunk. So words need no numbers, a graph is
// replayed with the same, and a word that is 0 says that the chunk may be written again. This rank sends to
// the next rank first, then to the one behind it, and reads its own part last. All ranks pass words.
//
// On GPUs the kernel that makes the input runs beside the operation, as above. On the host the operation waits
// for all chunks before it opens. A word that is not raised in time fails the communicator. The words of masked ranks
// are not awaited and stay as they are: make them 0 before such a rank is taken in again.
func (g *Group) ReduceScatterReady(ctx context.Context, s *weft.Stream, out, in, ready weft.Tensor, op weft.Op,
) error {
	c := g.begin(spec.ReduceScatter)
	c.Out, c.In, c.Op, c.Words.Ready = out, in, op, ready
	return g.run(ctx, s, c)
}
