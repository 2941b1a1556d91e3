package gpu

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
)

// algorithm is one way to run a collective: a kernel, or several of them one after the other. Each has
// files of its own, and is listed in algorithms; what it costs stands in cost.go.
type algorithm struct {
	spec.Algorithm
	start func(e *Engine, stream *cuda.Stream, c *spec.Call) error
}

// algorithms is the registry. Of those that cost the same the first one runs.
var algorithms = []*algorithm{
	{spec.Algorithm{Name: "barrier/flagged", Collective: spec.Barrier, Cost: barrierCost}, (*Engine).startBarrier},
	{
		spec.Algorithm{Name: "all-reduce/one-shot", Collective: spec.AllReduce, Cost: oneShotCost},
		(*Engine).startOneShot,
	},
	{
		spec.Algorithm{
			Name: "all-reduce/direct", Collective: spec.AllReduce, Needs: spec.Inputs | spec.Outputs,
			Cost: directReduceCost,
		},
		(*Engine).startDirectReduce,
	},
	{
		spec.Algorithm{Name: "all-reduce/two-shot", Collective: spec.AllReduce, Cost: twoShotCost},
		(*Engine).startTwoShot,
	},
	{
		spec.Algorithm{
			Name: "all-reduce-norm/one-shot", Collective: spec.AllReduce, Variant: spec.WithNorm, Cost: oneShotCost,
		},
		(*Engine).startNormOneShot,
	},
	{
		spec.Algorithm{
			Name: "all-reduce-norm/two-shot", Collective: spec.AllReduce, Variant: spec.WithNorm, Cost: twoShotCost,
		},
		(*Engine).startNormTwoShot,
	},
	{
		spec.Algorithm{
			Name: "all-gather/progress", Collective: spec.AllGather, Variant: spec.WithWords, Cost: flaggedCost,
		},
		(*Engine).startAllGatherProgress,
	},
	{
		spec.Algorithm{
			Name: "reduce-scatter/ready", Collective: spec.ReduceScatter, Variant: spec.WithWords, Cost: flaggedCost,
		},
		(*Engine).startReduceScatterReady,
	},
	{
		spec.Algorithm{
			Name: "reduce-scatter/direct", Collective: spec.ReduceScatter, Needs: spec.Inputs, Cost: directReduceCost,
		},
		(*Engine).startDirectReduce,
	},
	flagged(spec.ReduceScatter, (*Engine).startReduceParts),
	flagged(spec.ReduceScatterV, (*Engine).startReduceScatterV),
	flagged(spec.Reduce, (*Engine).startReduceParts),
	{
		spec.Algorithm{
			Name: "all-gather/direct", Collective: spec.AllGather, Needs: spec.Outputs, Cost: directMoveCost,
		},
		(*Engine).startDirectMove,
	},
	{
		spec.Algorithm{ // in place a peer would overwrite what a rank has yet to send
			Name: "all-to-all/direct", Collective: spec.AllToAll, Needs: spec.Outputs, InPlace: spec.OnlyApart,
			Cost: directMoveCost,
		},
		(*Engine).startDirectMove,
	},
	flagged(spec.AllGatherV, (*Engine).startMoveV), flagged(spec.AllToAllV, (*Engine).startMoveV),
	flagged(spec.AllGather, (*Engine).startMove), flagged(spec.AllToAll, (*Engine).startMove),
	flagged(spec.Broadcast, (*Engine).startMove), flagged(spec.Gather, (*Engine).startMove),
	flagged(spec.Scatter, (*Engine).startMove),
}

func flagged(k spec.Collective, start func(*Engine, *cuda.Stream, *spec.Call) error) *algorithm {
	return &algorithm{spec.Algorithm{Name: k.String() + "/flagged", Collective: k, Cost: flaggedCost}, start}
}

// Algorithms lists all algorithms.
func Algorithms() []spec.Algorithm {
	all := make([]spec.Algorithm, len(algorithms))
	for i, a := range algorithms {
		all[i] = a.Algorithm
	}
	return all
}

// Request implements [spec.Engine].
func (e *Engine) Request(c *spec.Call) (q spec.Request, err error) {
	q = c.Request(e.live(), e.turnBytes)
	q.Windows, err = e.windows(c)
	if e.placed && c.InPlace {
		q.Windows |= spec.InPlace
	}
	return q, err
}

// choose chooses an algorithm by what is the same on every rank: the one that the call names, or what
// package choice says.
func (e *Engine) choose(c *spec.Call) (*algorithm, error) {
	q, err := e.Request(c)
	if err != nil {
		return nil, err
	}
	if c.Algorithm != "" {
		return e.named(c.Algorithm, &q)
	}
	if i := e.choice.Choose(&q); i >= 0 {
		return e.algorithms[i], nil
	}
	return nil, weft.Unsupportedf("%v: there is no algorithm on GPUs; join a communicator of the host's for it",
		q.Collective)
}

// named is the algorithm that a call names.
func (e *Engine) named(name string, q *spec.Request) (*algorithm, error) {
	i := e.choice.Named(name)
	switch {
	case i < 0 || e.algorithms[i].Collective != q.Collective:
		return nil, weft.Invalidf("%v: there is no algorithm %q on GPUs", q.Collective, name)
	case !e.algorithms[i].Fits(*q):
		return nil, weft.Unsupportedf("%v: %s does not support %d bytes of %v on %d ranks; name another algorithm or none",
			q.Collective, name, q.Bytes, q.DType, q.Ranks)
	}
	return e.algorithms[i], nil
}
