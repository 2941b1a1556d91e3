package executor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/gpu"
	"github.com/weftgo/weft/plan/internal/host"
	"github.com/weftgo/weft/plan/internal/launch"
	"github.com/weftgo/weft/plan/internal/verify"
	planspec "github.com/weftgo/weft/plan/spec"
)

// collectives are those of plans that groups have, too.
var collectives = map[string]spec.Collective{
	planspec.AllReduce: spec.AllReduce, planspec.AllGather: spec.AllGather,
	planspec.ReduceScatter: spec.ReduceScatter, planspec.AllToAll: spec.AllToAll, planspec.Broadcast: spec.Broadcast,
}

// noName is what names of algorithms do not have.
var noName = regexp.MustCompile(`[^A-Za-z0-9_.+-]+`)

// Algorithm makes a plan an algorithm of groups of package collective, for their Options, whose name is like
// "all-reduce/plan/two-shot". It takes calls of the plan's collective, number of ranks, sizes, reduction and placement
// of operands, and of its root if it broadcasts; the caller may narrow that down. Calls find it as they find the
// library's: by name, by Options.Force and Options.Select, and without these where a table of tuning has measured it. A
// plan whose sums are in an order of its own has other bits than the library's algorithms, and is chosen by the first
// three alone.
func Algorithm(f *plan.File) (spec.Algorithm, error) {
	p, err := launch.Of(f)
	if err != nil {
		return spec.Algorithm{}, err
	}
	kind, ok := collectives[f.Collective]
	if !ok {
		return spec.Algorithm{}, weft.Unsupportedf("%s: its collective %q is none of a group's; run it with an executor",
			p.Name, f.Collective)
	}
	p.Verdict = verdictOf(p)
	if err := refused(p, false); err != nil {
		return spec.Algorithm{}, err
	}
	root := 0
	if kind == spec.Broadcast {
		if root, err = rootOf(p); err != nil {
			return spec.Algorithm{}, err
		}
	}
	a := spec.Algorithm{
		Name: kind.String() + "/plan/" + noName.ReplaceAllString(f.Name, "-"), Collective: kind, WorldSize: len(f.Ranks),
		InPlace: spec.OnlyApart, Ops: p.Reductions, Program: program{p}, Tags: map[string]string{"plan": p.Key.String()},
		Supports: func(q spec.Request) bool { return fits(p, kind, root, &q) }, Demands: p.Demands(root),
	}
	switch {
	case !kind.PlacedAlike():
		a.InPlace = spec.AnyPlace
	case f.InPlace:
		a.InPlace = spec.OnlyInPlace
	}
	if kind.Reduces() && !p.Verdict.RankOrder {
		a.Tags["opt-in"] = "it sums in an order of its own"
	}
	return a, nil
}

// rootOf is the root of a plan of broadcasts. Callers give its output any place, so it must be right with its input
// there, too.
func rootOf(p *launch.Plan) (root int, err error) {
	f := p.File
	roots := 0
	for r := range f.Ranks {
		if f.Ranks[r].Input > 0 {
			root = r
			roots++
		}
	}
	if roots != 1 || slices.ContainsFunc(f.Ranks, func(r planspec.Rank) bool { return r.Output != f.Ranks[root].Input }) {
		return 0, weft.Unsupportedf("%s: a broadcast of a group has an input on one rank, and outputs as long on all; run "+
			"it with an executor", p.Name)
	}
	for _, x := range verify.InPlace(f).Findings {
		if !x.Warning {
			return 0, weft.Unsupportedf("%s: a root may have its input in its output, and then the verifier finds: %s; run it "+
				"with an executor", p.Name, strings.TrimPrefix(x.String(), "error: "))
		}
	}
	return root, nil
}

// fits says whether a plan runs a request.
func fits(p *launch.Plan, kind spec.Collective, root int, q *spec.Request) bool {
	if kind == spec.Broadcast && q.Root != root {
		return false
	}
	in, out := q.Bytes, q.Bytes
	if kind == spec.ReduceScatter || kind == spec.AllToAll {
		in *= q.Ranks
	}
	if kind == spec.AllGather || kind == spec.AllToAll {
		out *= q.Ranks
	}
	return p.Fits(root, q.DType, in, out) == nil
}

// program implements [spec.Program].
type program struct{ plan *launch.Plan }

// Text implements [spec.Program].
func (p program) Text() string { return fmt.Sprintf("plan %s, hash %v", p.plan.File.Name, p.plan.Key) }

// Open implements [spec.Program].
func (p program) Open(ctx context.Context, comm *weft.Comm, rounds *enginehost.Rounds, room *enginegpu.Room,
) (spec.Runner, error) {
	if err := p.plan.Across(comm.Host); err != nil {
		return nil, err
	}
	r := &runner{plan: p.plan, rank: comm.Rank(), rounds: rounds}
	if rounds == nil {
		engine, err := gpu.New(ctx, comm, room, p.plan.Verdict.RankOrder)
		if err != nil {
			return nil, err
		}
		r.engine = engine
		if r.loaded, err = engine.Load(ctx, p.plan); err != nil {
			_, again := engine.Close()
			return nil, errors.Join(err, again)
		}
		return r, nil
	}
	engine := host.On(comm, rounds)
	r.engine = engine
	loaded, err := engine.LoadPlan(ctx, p.plan)
	if err != nil {
		return nil, err
	}
	r.loaded, r.opened = loaded, loaded.RunOpened
	return r, nil
}

// runner implements [spec.Runner].
type runner struct {
	plan   *launch.Plan
	rank   int
	rounds *enginehost.Rounds
	engine launch.Engine
	loaded launch.Loaded
	opened func(ctx context.Context, l *launch.Launch, round uint64) error // on the host
	launch launch.Launch                                                   // the last one
}

// Run implements [spec.Runner].
func (r *runner) Run(ctx context.Context, s *weft.Stream, c *spec.Call) error {
	r.launch = r.plan.Checked(r.rank, c.DType, c.Out, c.In)
	if r.opened == nil {
		return r.loaded.Run(ctx, s, &r.launch, nil)
	}
	return r.opened(ctx, &r.launch, r.rounds.Last())
}

// Close implements [spec.Runner].
func (r *runner) Close() (released bool, err error) { return r.engine.Close() }
