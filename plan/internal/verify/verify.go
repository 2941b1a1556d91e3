// Package verify proves that a plan is right: that it ends, that nothing races, that it leaves what its collective
// defines, and that it may be launched again. What it finds it shows by the operations that lead there.
//
// A plan is straight programs over counters, barriers and packets, and nothing depends on data. So one run decides
// for all: see engine. Vector clocks say what is before what, and symbols what is where.
package verify

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/weftgo/weft/plan/internal/meaning"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// Verdict is what is known of a plan.
type Verdict struct {
	Findings []Finding // errors first
	// RankOrder says that every output is one fold of all inputs in the order of ranks, so its bits are those of
	// the library's own algorithms.
	RankOrder bool
	// Compared says that outputs were compared with what the collective defines. Other names than those of collectives
	// define nothing.
	Compared bool
}

// Errors is how many findings are errors.
func (v *Verdict) Errors() (n int) {
	for _, f := range v.Findings {
		if !f.Warning {
			n++
		}
	}
	return n
}

// With adds findings.
func (v *Verdict) With(more []Finding) *Verdict {
	return &Verdict{merge(append(slices.Clone(v.Findings), more...)), v.RankOrder, v.Compared}
}

// Plan verifies a plan.
func Plan(f *spec.File) *Verdict { return planned(f, false) }

// InPlace verifies a plan whose operands are apart as one whose ranks have their input in their output's memory.
func InPlace(f *spec.File) *Verdict { return planned(f, true) }

func planned(f *spec.File, alias bool) *Verdict {
	if faults := f.Faults(); len(faults) > 0 {
		v := new(Verdict)
		for _, fault := range faults {
			v.Findings = append(v.Findings, structural(fault))
		}
		v.Findings = merge(v.Findings)
		return v
	}
	leads := program.LeadsOf(f)
	if leads.Most() > program.MostAhead && program.MostWindows(f) > program.MostAhead {
		return &Verdict{Findings: []Finding{ahead(f, leads)}}
	}
	shapes, complete := program.Sizes(f)
	if cells := size(f, shapes); cells > most64 {
		return &Verdict{Findings: []Finding{{
			Class: Undecided, Text: fmt.Sprintf("it has %d chunks and parts of them, more than can be verified", cells),
		}}}
	}
	verdicts := make([]Verdict, len(shapes))
	var group sync.WaitGroup
	places := make(chan struct{}, max(1, runtime.GOMAXPROCS(0)))
	for i, shape := range shapes {
		group.Go(func() {
			shape.Alias = alias
			places <- struct{}{}
			verdicts[i] = one(f, shape)
			<-places
		})
	}
	group.Wait()
	all := Verdict{RankOrder: true}
	for _, v := range verdicts {
		all.Findings = append(all.Findings, v.Findings...)
		all.RankOrder = all.RankOrder && v.RankOrder
		all.Compared = all.Compared || v.Compared
	}
	if !errorsIn(all.Findings) {
		all.Findings = append(all.Findings, far(f, leads)...)
	}
	if !complete {
		all.Findings = append(all.Findings, Finding{Class: Undecided, Warning: true, Text: fmt.Sprintf(
			"its groups and pipelines split chunks in more ways than are looked at, which are %d; use groups of fewer sizes, "+
				"or of powers of two, and pipelines of the same number of windows", len(shapes))})
	}
	compete(all.Findings)
	all.Findings = merge(append(all.Findings, limits(f)...))
	all.RankOrder = all.RankOrder && all.Errors() == 0
	return &all
}

// most64 bounds the cells of a run.
const most64 = 1 << 24

func size(f *spec.File, shapes []program.Shape) (cells int) {
	for r := range f.Ranks {
		n := f.Ranks[r].Input + f.Ranks[r].Output + 3*f.Ranks[r].Scratch
		cells += n
	}
	largest := 1
	for _, s := range shapes {
		largest = max(largest, s.Chunk)
	}
	return min(cells, most64+1) * largest
}

// ahead is a finding of pipelines that run too far ahead.
func ahead(f *spec.File, leads program.Leads) Finding {
	e := newEngine(program.Of(f, program.Pipelined(f, 1)), model{}, false)
	return Finding{Class: Undecided, Text: fmt.Sprintf(
		"%s lets a pipeline run %d windows ahead, and at most %d are looked at; begin it at less, or signal less before",
		e.counterName(leads.Farthest), leads.Most(), program.MostAhead)}
}

// structural is a finding of a fault of the file.
func structural(err error) Finding {
	f := Finding{Class: Structure, Text: err.Error()}
	if fault, ok := errors.AsType[*spec.Error](err); ok {
		f.Text = fault.Reason
		f.Events = []Event{{Site: fault.Site, Op: fault.Kind}}
	}
	return f
}

// one verifies a plan at one size.
func one(f *spec.File, shape program.Shape) (v Verdict) {
	p := program.Of(f, shape)
	var strong []Finding
	var beside sync.WaitGroup
	defer beside.Wait() // the file is the caller's again
	if weak(f) {
		beside.Go(func() { strong = weaknesses(p) })
	}
	e := newEngine(p, model{}, false)
	ended := e.run()
	deadlocks, decided := competing(e)
	text := "; no order ends in a deadlock"
	switch {
	case len(deadlocks) > 0 || !ended:
		text = ""
	case !decided:
		text = "; it has more orders than can be tried, so deadlocks are not decided"
		deadlocks = append(deadlocks, Finding{Class: Undecided, Text: "blocks compete for channels or semaphores in more " +
			"orders than can be tried, so a deadlock cannot be ruled out; give each block its own"})
	}
	e.balance(text)
	e.meetings()
	if !ended {
		e.stopped()
		v.Findings = e.found
		return v
	}
	e.found = append(e.found, deadlocks...)
	e.finish()
	e.lifetimes()
	e.mixed()
	e.relaunch()
	windows(e)
	plain := len(e.found)
	v.Compared = e.results()
	if len(e.found) > plain && len(p.Memories) > 0 {
		e.found = append(e.found[:plain], explained(p)...)
	}
	v.Findings = e.found
	v.RankOrder = e.rankOrder()
	if errorsIn(v.Findings) {
		v.Findings = loosen(p, v.Findings)
	} else {
		beside.Wait()
		v.Findings = append(v.Findings, strong...)
	}
	return v
}

// weaknesses is what only packets and relaxed signals order, and what packets order for some threads of a block only.
func weaknesses(p *program.Program) (all []Finding) {
	models := []model{{strong: true}}
	if packets, data := both(p.File); packets && data {
		models = append(models, model{split: true})
	}
	for _, m := range models {
		e := newEngine(p, m, false)
		if !e.run() {
			return nil
		}
		for _, x := range e.found {
			if x.Class == WeakOrder || m.split && x.Class == Lifetime {
				all = append(all, x)
			}
		}
	}
	return all
}

// both says whether a plan has operations on packets, and on other data.
func both(f *spec.File) (packets, data bool) {
	each(f, func(op *spec.Op) {
		switch {
		case op.Kind.Packets():
			packets = true
		case !op.Kind.Syncs() && op.Kind != spec.Pipeline:
			data = true
		}
	})
	return packets, data
}

// each calls a function for every operation, those in pipelines too.
func each(f *spec.File, do func(op *spec.Op)) {
	for r := range f.Ranks {
		for b := range f.Ranks[r].Blocks {
			for i := range f.Ranks[r].Blocks[b].Ops {
				op := &f.Ranks[r].Blocks[b].Ops[i]
				do(op)
				for k := range op.Ops {
					do(&op.Ops[k])
				}
			}
		}
	}
}

// explained is the findings of wrong results, with what is wrong.
func explained(p *program.Program) []Finding {
	e := newEngine(p, model{}, true)
	e.run()
	e.found = nil
	e.results()
	return e.found
}

func errorsIn(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return !f.Warning })
}

// loosen says of races whether only a nop is missing.
func loosen(p *program.Program, all []Finding) []Finding {
	e := newEngine(p, model{loose: true}, false)
	if !e.run() {
		return all
	}
	e.finish()
	e.lifetimes()
	left := make(map[string]bool)
	for _, f := range e.found {
		left[f.key()] = true
	}
	for i := range all {
		f := &all[i]
		if left[f.key()] {
			continue
		}
		switch f.Class {
		case Race:
			// Threads that read before are done by then on most machines, and programs rely on that.
			f.Text = "a signal or a wait orders two operations for one thread only; a nop is missing beside it"
			f.Warning = f.readFirst
		case Lifetime:
			f.Text += ": a nop is missing before the signal, or after the wait"
		}
	}
	return all
}

// weak says whether anything of a plan orders weakly.
func weak(f *spec.File) (is bool) {
	each(f, func(op *spec.Op) {
		is = is || op.Kind == spec.RelaxedSignal || op.Kind == spec.RelaxedWait || op.Kind.Packets()
	})
	return is
}

// windows reports packets in pipelines of several windows.
func windows(e *engine) {
	for b := range e.blocks {
		for i := range e.blocks[b].steps {
			if s := &e.blocks[b].steps[i]; s.Iteration == 1 && s.Op.Kind.Packets() {
				e.found = append(e.found, Finding{
					Class:  Packets,
					Text:   "operations on packets repeat whole in every window of a pipeline, into the same slots",
					Events: []Event{{Site: s.Site, Op: s.Op.Kind.String()}},
				})
			}
		}
	}
}

// limits warns of what MSCCL++'s executor, which has tables of fixed size, would overrun, and of what it does
// otherwise than the plan says.
func limits(f *spec.File) (all []Finding) {
	warn := func(site spec.Site, op, text string) {
		all = append(all, Finding{Class: Limits, Warning: true, Text: text, Events: []Event{{Site: site, Op: op}}})
	}
	for r := range f.Ranks {
		for b := range f.Ranks[r].Blocks {
			block := &f.Ranks[r].Blocks[b]
			site := spec.Site{Rank: r, Block: b, Op: -1, Inner: -1}
			n := 0
			for i := range block.Ops {
				n += max(1, len(block.Ops[i].Ops))
				site := spec.Site{Rank: r, Block: b, Op: i, Inner: -1}
				for _, op := range append(slices.Clone(block.Ops[i].Ops), block.Ops[i]) {
					if len(op.Src) > 10 || len(op.Dst) > 10 || len(op.Channels) > 8 {
						warn(site, op.Kind.String(), "MSCCL++ has room for 10 sources, 10 destinations and 8 channels")
					}
					mixed := slices.ContainsFunc(op.Src, func(p spec.Place) bool { return p.Buffer != op.Src[0].Buffer })
					if mixed && op.Kind == spec.Put {
						warn(site, op.Kind.String(), "MSCCL++ reads all sources of an operation from the buffer of the first")
					}
				}
			}
			if n > 64 {
				warn(site, "", fmt.Sprintf("MSCCL++ has room for 64 operations, and there are %d", n))
			}
			for _, u := range slices.Concat(block.Channels, block.Remotes) {
				if len(u.IDs) > 16 {
					warn(site, "", "MSCCL++ has room for 16 channels and 16 remote buffers of a type")
				}
			}
		}
		if f.ReuseResources {
			for i, b := range f.Ranks[r].Remotes {
				if b.Buffer != spec.Scratch {
					warn(spec.Site{Rank: r, Block: -1, Op: -1, Inner: -1}, "", fmt.Sprintf(
						"remote buffer %d is no scratch: with reused resources MSCCL++ keeps those of the first call", i))
				}
			}
		}
	}
	return all
}

// Same says how two plans differ in what they leave in outputs, or nothing. They must both pass.
func Same(a, b *spec.File) string {
	if len(a.Ranks) != len(b.Ranks) {
		return fmt.Sprintf("%d ranks and %d ranks", len(a.Ranks), len(b.Ranks))
	}
	for _, shape := range program.Shapes(a, b) {
		x, y := newEngine(program.Of(a, shape), model{}, false), newEngine(program.Of(b, shape), model{}, false)
		if !x.run() || !y.run() {
			return "one of them does not end"
		}
		for r := range a.Ranks {
			for _, buffer := range []spec.Buffer{spec.Input, spec.Output} {
				if left, right := x.contents(r, buffer), y.contents(r, buffer); !slices.Equal(left, right) {
					return fmt.Sprintf("the %v of rank %d", buffer, r)
				}
			}
		}
	}
	return ""
}

// Alike says which buffer two plans leave with other bits, or nothing: with other contents, or with sums that were
// folded otherwise. Both must pass. The second may have times as many chunks as the first, for the same message.
func Alike(a, b *spec.File) string {
	n := 1
	for r := range a.Ranks {
		if in, out := &a.Ranks[r], &b.Ranks[r]; in.Input > 0 {
			n = out.Input / in.Input
			break
		} else if in.Output > 0 {
			n = out.Output / in.Output
			break
		}
	}
	shapes := program.Shapes(a, b)
	for _, shape := range shapes {
		y := newEngine(program.Of(b, shape), model{}, false)
		shape.Chunk *= n
		x := newEngine(program.Of(a, shape), model{}, false)
		if !x.run() || !y.run() {
			return "one of them does not end"
		}
		for r := range a.Ranks {
			for _, buffer := range []spec.Buffer{spec.Input, spec.Output} {
				left, right := x.p.Whole(r, buffer), y.p.Whole(r, buffer)
				if left != right {
					return fmt.Sprintf("the length of the %v of rank %d", buffer, r)
				}
				from, to := x.memories[left.Memory], y.memories[left.Memory]
				if !slices.Equal(from.value[left.From:left.To], to.value[left.From:left.To]) ||
					!slices.Equal(from.form[left.From:left.To], to.form[left.From:left.To]) {
					return fmt.Sprintf("the %v of rank %d", buffer, r)
				}
			}
		}
	}
	return ""
}

func (e *engine) contents(rank int, b spec.Buffer) []meaning.Value {
	r := e.p.Whole(rank, b)
	return e.memories[r.Memory].value[r.From:r.To]
}
