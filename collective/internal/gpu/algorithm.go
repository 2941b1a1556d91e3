package gpu

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
)

// algorithm is one way to run a collective: a kernel, or several of them one after the other. Each has
// files of its own, and is listed in algorithms; the first that supports a request is chosen.
type algorithm struct {
	spec.Algorithm
	start func(e *Engine, stream *cuda.Stream, c *spec.Call) error
}

// algorithms is the registry.
var algorithms = []*algorithm{
	{spec.Algorithm{Name: "barrier/flagged", Collective: spec.Barrier, Supports: always}, (*Engine).startBarrier},
	{
		spec.Algorithm{Name: "all-reduce/one-shot", Collective: spec.AllReduce, Supports: always},
		(*Engine).startOneShot,
	},
	{
		spec.Algorithm{
			Name: "all-reduce/direct", Collective: spec.AllReduce, Supports: inWindows(spec.Inputs | spec.Outputs),
		},
		(*Engine).startDirectReduce,
	},
	{
		spec.Algorithm{Name: "all-reduce/two-shot", Collective: spec.AllReduce, Supports: always},
		(*Engine).startTwoShot,
	},
	{
		spec.Algorithm{Name: "reduce-scatter/direct", Collective: spec.ReduceScatter, Supports: inWindows(spec.Inputs)},
		(*Engine).startDirectReduce,
	},
	{
		spec.Algorithm{Name: "reduce-scatter/flagged", Collective: spec.ReduceScatter, Supports: always},
		(*Engine).startReduceParts,
	},
	{
		spec.Algorithm{Name: "reduce-scatter-v/flagged", Collective: spec.ReduceScatterV, Supports: always},
		(*Engine).startReduceScatterV,
	},
	{spec.Algorithm{Name: "reduce/flagged", Collective: spec.Reduce, Supports: always}, (*Engine).startReduceParts},
	{
		spec.Algorithm{Name: "all-gather/direct", Collective: spec.AllGather, Supports: inWindows(spec.Outputs)},
		(*Engine).startDirectMove,
	},
	{
		spec.Algorithm{Name: "all-to-all/direct", Collective: spec.AllToAll, Supports: writable},
		(*Engine).startDirectMove,
	},
	moveVOf(spec.AllGatherV), moveVOf(spec.AllToAllV),
	moveOf(spec.AllGather), moveOf(spec.AllToAll), moveOf(spec.Broadcast), moveOf(spec.Gather), moveOf(spec.Scatter),
}

func moveOf(k spec.Collective) *algorithm {
	return &algorithm{
		spec.Algorithm{Name: k.String() + "/flagged", Collective: k, Supports: always}, (*Engine).startMove,
	}
}

func moveVOf(k spec.Collective) *algorithm {
	return &algorithm{
		spec.Algorithm{Name: k.String() + "/flagged", Collective: k, Supports: always}, (*Engine).startMoveV,
	}
}

func always(spec.Request) bool { return true }

// inWindows supports operands that lie in windows.
func inWindows(w spec.Windows) func(spec.Request) bool {
	return func(q spec.Request) bool { return q.Windows&w == w }
}

// writable: no peer may overwrite what a rank has yet to send.
func writable(q spec.Request) bool { return q.Windows&(spec.Outputs|spec.InPlace) == spec.Outputs }

// Algorithms lists all algorithms.
func Algorithms() []spec.Algorithm {
	all := make([]spec.Algorithm, len(algorithms))
	for i, a := range algorithms {
		all[i] = a.Algorithm
	}
	return all
}

// choose chooses an algorithm by what is the same on every rank: the one that the call names, or one
// that the group was told, or the fastest.
func (e *Engine) choose(c *spec.Call) (*algorithm, error) {
	q := c.Request(e.live(), e.turnBytes)
	var err error
	if q.Windows, err = e.windows(c); err != nil {
		return nil, err
	}
	if c.Algorithm != "" {
		return named(c.Algorithm, &q)
	}
	for _, a := range e.forced {
		if a.Collective == q.Collective && a.Supports(q) {
			return a, nil
		}
	}
	for _, a := range algorithms {
		if a.Collective == q.Collective && a.Supports(q) && prefers(a, &q) {
			return a, nil
		}
	}
	return nil, weft.Unsupportedf("%v: there is no algorithm on GPUs; join a communicator of the host's for it",
		q.Collective)
}

// named is the algorithm that a call names.
func named(name string, q *spec.Request) (*algorithm, error) {
	for _, a := range algorithms {
		switch {
		case a.Name != name || a.Collective != q.Collective:
		case a.Supports(*q):
			return a, nil
		default:
			return nil, weft.Unsupportedf("%v: %s does not support %d bytes of %v on %d ranks; name another algorithm or none",
				q.Collective, name, q.Bytes, q.DType, q.Ranks)
		}
	}
	return nil, weft.Invalidf("%v: there is no algorithm %q on GPUs", q.Collective, name)
}

// prefers says whether an algorithm is the faster one. Between two ranks one-shot and two-shot
// all-reduces move the same, and one step is one less. Direct ones meet twice, and stage nothing.
func prefers(a *algorithm, q *spec.Request) bool {
	switch a.Name {
	case "all-reduce/one-shot":
		return q.Ranks == 2 || q.Bytes <= oneShotBytes
	case "all-reduce/direct":
		return q.Bytes >= directReduceBytes
	case "reduce-scatter/direct", "all-gather/direct", "all-to-all/direct":
		return q.Bytes*(q.Ranks-1) >= directMoveBytes
	default:
		return true
	}
}

// From these sizes on direct operations are faster: of an operand that is reduced whole, and of what a
// rank sends or reads.
const (
	directReduceBytes = 8 << 20
	directMoveBytes   = 3 << 20
)
