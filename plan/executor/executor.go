package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/internal/launch"
)

// Options configures [New]. All ranks pass the same.
type Options struct {
	// Unverified runs plans in which the verifier finds errors. Broken rules and deadlocks are refused all the same.
	Unverified bool
}

// Executor runs plans on the ranks of one communicator. Its methods, and those of its plans, are collective: all ranks
// call them in the same order, from one goroutine at a time. Several executors may live at once; they share nothing.
type Executor struct {
	comm    *weft.Comm
	options Options
	engine  launch.Engine
	plans   map[launch.Key]*Plan

	closed, released bool
}

// New makes an executor, on the host or on GPUs, where the communicator's ranks are. It is collective.
func New(ctx context.Context, comm *weft.Comm, o Options) (*Executor, error) {
	const op = "new executor"
	x := &Executor{comm: comm, options: o, plans: make(map[launch.Key]*Plan)}
	err := comm.Operations().VerifySame(ctx, op, fmt.Sprintf("unverified: %t", o.Unverified), nil)
	if err != nil {
		return nil, err
	}
	if x.engine, err = newEngine(ctx, comm); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return x, nil
}

// Plan is a plan that an executor has loaded.
type Plan struct {
	executor *Executor
	plan     *launch.Plan
	loaded   launch.Loaded
	launch   launch.Launch // the last one
}

// Load makes a plan ready to run: it verifies it, compares it among the ranks, and makes what does not depend on a
// message. A plan of the same content is loaded once. What is wrong with the plan, or differs, is an error on every
// rank. If a failure of the communicator has interrupted it, [Executor.Reset] comes before the next Load.
func (x *Executor) Load(ctx context.Context, f *plan.File) (*Plan, error) {
	const op = "load plan"
	if x.closed {
		return nil, fmt.Errorf("%s: executor %w", op, weft.ErrClosed)
	}
	p, err := launch.Of(f)
	text := "plan: none"
	if err == nil {
		text = fmt.Sprintf("plan: %s, hash: %v, loaded before: %t", f.Name, p.Key, x.plans[p.Key] != nil)
		err = x.fits(p)
	}
	if err := x.comm.Operations().VerifySame(ctx, op, text, err); err != nil {
		return nil, err
	}
	if known := x.plans[p.Key]; known != nil {
		return known, nil
	}
	loaded, err := x.engine.Load(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	made := &Plan{executor: x, plan: p, loaded: loaded}
	x.plans[p.Key] = made
	return made, nil
}

// fits says why the ranks cannot run a plan.
func (x *Executor) fits(p *launch.Plan) error {
	if n := len(p.File.Ranks); n != x.comm.Size() {
		return weft.Unsupportedf("%s: it is for %d ranks, and the communicator has %d", p.Name, n, x.comm.Size())
	}
	if err := masked(x.comm, p); err != nil {
		return err
	}
	p.Verdict = verdictOf(p)
	if err := refused(p, x.options.Unverified); err != nil {
		return err
	}
	return p.Across(x.comm.Host)
}

// refused says what the verifier finds in a plan that is an error: of one that runs unverified, only what no run
// survives.
func refused(p *launch.Plan, unverified bool) error {
	var found []string
	for _, f := range p.Verdict.Findings {
		if !f.Warning && (!unverified || f.Class == plan.Deadlock || f.Class == plan.Structure) {
			found = append(found, f.String())
		}
	}
	if len(found) == 0 {
		return nil
	}
	more := ""
	if n := len(found) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	return weft.Invalidf("%s: the verifier finds: %s%s; weft plan check says all of it", p.Name,
		strings.TrimPrefix(found[0], "error: "), more)
}

// masked refuses a plan while a rank is masked.
func masked(comm *weft.Comm, p *launch.Plan) error {
	if m := comm.Mask(); !m.Empty() {
		return fmt.Errorf("%s: %w: it has work for all ranks, and %v is %w; make a communicator and a plan of the others",
			p.Name, weft.ErrUnsupported, m, weft.ErrMasked)
	}
	return nil
}

// File is the plan as it was loaded. It must not be changed.
func (p *Plan) File() *plan.File { return p.plan.File }

// Verdict is what the verifier knows of the plan.
func (p *Plan) Verdict() *plan.Verdict { return p.plan.Verdict }

// Execute runs the plan on this rank's operands, of one element type. Input and output have the plan's chunks, all of
// the same number of bytes, a multiple of its alignment; chunks have the same bytes on every rank. A plan written for
// operands in place takes those alone, and others take none.
//
// On the host it returns when this rank's result is complete, and takes no stream. On GPUs it enqueues the plan in the
// stream, and operands are borrowed until that has run. Operands that peers read or write are copied unless they lie in
// windows; on GPUs they lie there on all ranks, at the same place, or on none. Windows that peers on other hosts write
// stay open until the launch has ended on all ranks, and after a failure until all have gone on.
func (p *Plan) Execute(ctx context.Context, s *weft.Stream, out, in weft.Tensor) error {
	x := p.executor
	if x.closed {
		return fmt.Errorf("%s: executor %w", p.plan.Name, weft.ErrClosed)
	}
	if err := x.engine.Begin(p.plan.Name); err != nil {
		return err
	}
	var err error
	p.launch, err = p.plan.Check(x.comm.Rank(), out, in)
	if err == nil {
		err = masked(x.comm, p.plan)
	}
	return p.loaded.Run(ctx, s, &p.launch, err)
}

// Reset gives up all plans that were loaded, and their memory. No rank is in one of them any more.
func (x *Executor) Reset() error {
	var errs []error
	for _, p := range x.plans {
		errs = append(errs, p.loaded.Close())
	}
	clear(x.plans)
	return errors.Join(errs...)
}

// Close gives the executor's memory up on this rank. On a GPU it waits until nothing of it runs, for the communicator's
// deadline at most; if work still runs then, the error wraps [weft.ErrTimeout], and a later Close gives the memory up.
func (x *Executor) Close() (err error) {
	if x.released {
		return nil
	}
	x.closed = true
	x.released, err = x.engine.Close()
	return err
}
