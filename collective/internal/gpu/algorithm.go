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
	start start
	large bool // its kernels are loaded when one of them first runs
}

// start enqueues a call.
type start func(e *Engine, stream *cuda.Stream, c *spec.Call) error

// cost is what a request is expected to take, in microseconds.
type cost = func(spec.Request, *spec.Model) float64

// algorithms is the registry. Of those that cost the same the first one runs.
var algorithms = []*algorithm{
	// By multicast, where windows have it: before others that cost the same.
	multicastOf("all-gather/multicast", spec.AllGather, spec.Outputs, multicastMoveCost, (*Engine).startMulticastMove),
	multicastOf("broadcast/multicast", spec.Broadcast, spec.Outputs, multicastMoveCost, (*Engine).startMulticastMove),
	multicastOf("all-reduce/relaxed-multicast", spec.AllReduce, spec.Inputs|spec.Outputs, multicastReduceCost,
		(*Engine).startMulticastReduce),
	apart(multicastOf("all-reduce/relaxed-multicast-one-shot", spec.AllReduce, spec.Inputs, multicastOneShotCost,
		(*Engine).startMulticastOneShot)),
	multicastOf("reduce-scatter/relaxed-multicast", spec.ReduceScatter, spec.Inputs, multicastReduceCost,
		(*Engine).startMulticastReduce),
	multicastOf("reduce/relaxed-multicast", spec.Reduce, spec.Inputs, multicastReduceCost,
		(*Engine).startMulticastReduce),

	flagged(spec.Barrier, barrierCost, (*Engine).startBarrier),
	costed(spec.AllReduce, "one-shot", oneShotCost, (*Engine).startOneShot),
	direct(spec.AllReduce, spec.Inputs|spec.Outputs, directReduceCost, (*Engine).startDirectReduce),
	costed(spec.AllReduce, "two-shot", twoShotCost, (*Engine).startTwoShot),
	whole(costed(spec.AllReduce, "push-push", pushCost, (*Engine).startPushPush)),
	variant(spec.WithNorm, "all-reduce-norm/one-shot", spec.AllReduce, oneShotCost, (*Engine).startNormOneShot),
	variant(spec.WithNorm, "all-reduce-norm/two-shot", spec.AllReduce, twoShotCost, (*Engine).startNormTwoShot),
	variant(spec.WithWords, "all-gather/progress", spec.AllGather, flaggedCost, (*Engine).startAllGatherProgress),
	variant(spec.WithWords, "reduce-scatter/ready", spec.ReduceScatter, flaggedCost, (*Engine).startReduceScatterReady),
	direct(spec.ReduceScatter, spec.Inputs, directReduceCost, (*Engine).startDirectReduce),
	flagged(spec.ReduceScatter, flaggedCost, (*Engine).startReduceParts),
	flagged(spec.ReduceScatterV, flaggedCost, (*Engine).startReduceScatterV),
	flagged(spec.Reduce, flaggedCost, (*Engine).startReduceParts),
	direct(spec.AllGather, spec.Outputs, directMoveCost, (*Engine).startDirectMove),
	// In place a peer would overwrite what a rank has yet to send.
	apart(direct(spec.AllToAll, spec.Outputs, directMoveCost, (*Engine).startDirectMove)),
	flagged(spec.AllGatherV, flaggedCost, (*Engine).startMoveV),
	flagged(spec.AllToAllV, flaggedCost, (*Engine).startMoveV),
	flagged(spec.AllGather, flaggedCost, (*Engine).startMove),
	flagged(spec.AllToAll, flaggedCost, (*Engine).startMove),
	flagged(spec.Broadcast, flaggedCost, (*Engine).startMove),
	flagged(spec.Gather, flaggedCost, (*Engine).startMove),
	flagged(spec.Scatter, flaggedCost, (*Engine).startMove),

	// Costs in us of n ranks and S bytes, moved = (n-1)/n S: 4 + 2(n-1)/n S/325 GB/s, with 16 blocks.
	loadedLate(largeOf("all-reduce/pull-push", spec.AllReduce, spec.Inputs|spec.Outputs, spec.BulkCopies,
		(*Engine).startPullPush)),
	// 2(n-1) 2.2 + 2(n-1)/n S/361. It has bits of its own, so no group chooses it.
	{Algorithm: spec.Algorithm{
		Name: relaxedRing, Collective: spec.AllReduce, Needs: spec.Outputs, MaxBytes: mostWhole, Supports: relaxable,
		Demands: "takes no average of integers",
		Tags:    map[string]string{"opt-in": "bits of its own"},
	}, start: (*Engine).startRelaxedRing},
	// 4.6 + moved/331, with 6 to 12 blocks.
	loadedLate(largeOf("reduce-scatter/pull", spec.ReduceScatter, spec.Inputs, spec.BulkCopies, (*Engine).startPull)),
	largeOf("all-gather/few-sm", spec.AllGather, spec.Inputs, spec.BulkCopies, (*Engine).startBulkMove),
	apart(largeOf("all-to-all/few-sm", spec.AllToAll, spec.Inputs, spec.BulkCopies, (*Engine).startBulkMove)),
	// 4.6 + (n-1)/n S/377 at the root's link in, /350 out. A broadcast's is (n-1) S/350.
	largeOf("gather/direct", spec.Gather, spec.Inputs, 0, (*Engine).startBulkMove),
	largeOf("scatter/direct", spec.Scatter, spec.Outputs, 0, (*Engine).startDirectMove),
	largeOf("broadcast/direct", spec.Broadcast, spec.Outputs, 0, (*Engine).startDirectMove),
	// 4.6 + (n-1) S/377. Between two ranks nothing moves less.
	largeOf("reduce/direct", spec.Reduce, spec.Inputs, 0, (*Engine).startDirectReduce),
	loadedLate(largeOf("reduce/pull", spec.Reduce, spec.Inputs, spec.BulkCopies, (*Engine).startPull)),
	// 2 x 1.9 + moved at the rate of copy engines: 379 to 390 GB/s between two GPUs, less where all send to all.
	largeOf("all-gather/engine", spec.AllGather, spec.Outputs, 0, (*Engine).startCopies),
	apart(largeOf("all-to-all/engine", spec.AllToAll, spec.Outputs, 0, (*Engine).startCopies)),
	// a1 + .15 + min(.4, moved/640 GB/s) + 16/15 moved/B: for types that pairs would double.
	largeOf("all-gather/lines", spec.AllGather, 0, spec.Lines, (*Engine).startMoveLines),
	largeOf("all-to-all/lines", spec.AllToAll, 0, spec.Lines, (*Engine).startMoveLines),
	// S/B + 2 hops, against (n-1) S/B of flagged and direct ones.
	helped(spec.Broadcast, (*Engine).startHelpersBroadcast),
	loadedLate(helped(spec.Reduce, (*Engine).startHelpersReduce)),
}

// costed is one that fits all requests, at a cost.
func costed(k spec.Collective, name string, us cost, run start) *algorithm {
	return &algorithm{Algorithm: spec.Algorithm{Name: k.String() + "/" + name, Collective: k, Cost: us}, start: run}
}

// flagged is the way of vectors, or of words, that say themselves that they are there.
func flagged(k spec.Collective, us cost, run start) *algorithm {
	return costed(k, "flagged", us, run)
}

// mostWhole is the most bytes of an operand that one launch goes through: kernels count vectors, and those that all
// threads have on their way, in 32 bits. Algorithms that stage cut operands into less.
const mostWhole = 32 << 30

// direct is the way of ranks that reach each other's operands where they lie, in windows.
func direct(k spec.Collective, w spec.Windows, us cost, run start) *algorithm {
	a := whole(costed(k, "direct", us, run))
	a.Needs = w
	return a
}

// whole is an algorithm of one launch.
func whole(a *algorithm) *algorithm {
	a.MaxBytes = mostWhole
	return a
}

// variant is one for calls that want something beside the collective.
func variant(v spec.Variant, name string, k spec.Collective, us cost, run start) *algorithm {
	return &algorithm{Algorithm: spec.Algorithm{Name: name, Collective: k, Variant: v, Cost: us}, start: run}
}

// largeOf is an algorithm for large operands. It needs operands in windows, and abilities of all GPUs.
func largeOf(name string, k spec.Collective, w spec.Windows, able spec.Abilities, run start) *algorithm {
	a := &algorithm{Algorithm: spec.Algorithm{Name: name, Collective: k, Needs: w, MaxBytes: mostWhole}, start: run}
	if able != 0 {
		a.Supports = func(q spec.Request) bool { return q.Able&able == able }
		a.Demands = demands[able]
	}
	return a
}

// demands say how to have an ability.
var demands = map[spec.Abilities]string{
	spec.BulkCopies: "needs bulk copies, which GPUs have from compute capability 9.0 on",
	spec.Lines: "needs lines of 128 bytes that arrive whole: on several GPUs set " + LinesVariable +
		"=1 on all ranks",
}

// loadedLate has an algorithm's kernels loaded when one of them first runs.
func loadedLate(a *algorithm) *algorithm {
	a.large = true
	return a
}

// apart keeps an algorithm from outputs that are the input.
func apart(a *algorithm) *algorithm {
	a.InPlace = spec.OnlyApart
	return a
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
	q.Able = e.able
	q.Windows, err = e.windows(c)
	if (e.placed || c.Symmetric) && c.InPlace && c.Collective.PlacedAlike() {
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
	case i < 0:
		return nil, e.choice.Unknown(q.Collective, name, "on GPUs")
	case e.algorithms[i].Collective != q.Collective:
		return nil, weft.Invalidf("%v: %s is an algorithm of %v", q.Collective, name, e.algorithms[i].Collective)
	case e.algorithms[i].multicast() && q.Windows&spec.Multicast == 0:
		return nil, e.noMulticast(name, q)
	case !e.algorithms[i].Fits(*q):
		return nil, e.algorithms[i].Misfit(*q)
	}
	return e.algorithms[i], nil
}
