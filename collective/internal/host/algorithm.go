package host

import (
	"context"

	"github.com/weftgo/weft/collective/spec"
)

// A form is a way to move data, or to reduce it on the way. Each stands in a file of its own. With each
// collective that it serves it is an algorithm.
type form struct {
	name     string
	eager    bool
	supports func(q spec.Request) bool
	demands  string // what supports wants, in errors
	cost     func(q spec.Request, m *spec.Model) float64
	tags     map[string]string
	run      func(ctx context.Context, c *call) error
}

// algorithm is a form of one collective.
type algorithm struct {
	spec.Algorithm
	form *form
}

// forms are those that serve a collective. What they cost stands in profile shared-memory of package tuning;
// of those that cost the same the first one runs. The last of each collective supports everything, but between hosts
// the sums that hierarchical takes.
var forms = [spec.Collectives][]*form{
	spec.Barrier:        {&eager},
	spec.AllReduce:      {&eager, &hierarchical, &hierarchicalExact, &pull, &pipeline, &window, &twoShot},
	spec.Reduce:         {&eager, &hierarchical, &hierarchicalExact, &pull, &window, &pipeline, &twoShot},
	spec.ReduceScatter:  {&eager, &hierarchical, &hierarchicalExact, &pull, &pipeline},
	spec.ReduceScatterV: {&eager, &hierarchical, &hierarchicalExact, &pull, &pipeline},
	spec.AllGather:      {&eager, &pull, &pipeline},
	spec.AllGatherV:     {&eager, &pull, &pipeline},
	spec.AllToAll:       {&eager, &pull, &pipeline},
	spec.AllToAllV:      {&eager, &pull, &pipeline},
	spec.Broadcast:      {&eager, &pull, &pipeline},
	spec.Gather:         {&eager, &pull, &pipeline},
	spec.Scatter:        {&eager, &pull, &pipeline},
}

// algorithms is the registry.
var algorithms = func() (all []*algorithm) {
	for kind := range spec.Collectives {
		for _, f := range forms[kind] {
			all = append(all, &algorithm{spec.Algorithm{
				Name: kind.String() + "/" + f.name, Collective: kind, Eager: f.eager, Supports: f.supports, Demands: f.demands,
				Cost: f.cost, Tags: f.tags,
			}, f})
		}
	}
	return all
}()

// Algorithms lists all algorithms.
func Algorithms() []spec.Algorithm { return specs(algorithms) }

func specs(list []*algorithm) []spec.Algorithm {
	all := make([]spec.Algorithm, len(list))
	for i, a := range list {
		all[i] = a.Algorithm
	}
	return all
}
