package ep

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weftgo/weft/ep"
)

// Tuned is the result of a search for one shape.
type Tuned struct {
	Shape                     Shape // the best tuning; for a member that is zero the library's choice is as good
	Dispatch                  ep.Gain
	Combine                   ep.Gain
	Tried                     int             // tunings that were measured
	Wrong                     []string        // tunings with wrong output, which is a defect of Weft's
	bestDispatch, bestCombine ep.KernelTuning // so far
}

// How a search goes on.
const (
	tuneRounds  = 4    // at most: each looks at the neighbours of the best of the round before
	tuneGain    = 0.99 // of the time: a smaller gain is noise
	tuneRepeats = 5    // of the comparison that decides
)

// Tune looks for the best Tuning of each shape. It begins with the library's choice, changes one
// thing at a time, and goes on from the best as long as that gains something. In the end the
// library's choice and the best tuning are measured in turn; the result is the one with the lower
// median, if its output was right each time. progress gets the fraction that is done.
func (g GPUs) Tune(ctx context.Context, shapes []Shape, progress func(done float64)) ([]Tuned, error) {
	var err error
	if g.GPUs, err = withDefaults(g.GPUs, shapes); err != nil {
		return nil, err
	}
	g.Brief, g.Phases, g.Gradients = true, false, false
	all := make([]Tuned, len(shapes))
	step := func(round int) func(done, of int) {
		return func(done, of int) { progress((float64(round) + float64(done)/float64(of)) / (tuneRounds + 1)) }
	}
	for i, s := range shapes {
		s.Tuning = ep.Tuning{}
		all[i].Shape = s
	}
	best := make([]timed, len(shapes))
	for round := range tuneRounds {
		better, err := g.tuneRound(ctx, all, best, round == 0, step(round))
		if err != nil {
			return nil, err
		}
		if !better {
			break
		}
	}
	if err := g.confirmTuning(ctx, all, step(tuneRounds)); err != nil {
		return nil, err
	}
	return all, nil
}

// timed is how long the operations of a shape took, in microseconds.
type timed struct{ dispatch, combine float64 }

// tuneRound measures the neighbours of the best tunings. It says whether any was better.
func (g *GPUs) tuneRound(ctx context.Context, all []Tuned, best []timed, first bool,
	progress func(done, of int),
) (better bool, err error) {
	var tries []Shape
	var of []int
	for i, t := range all {
		from := t.tuning()
		if first {
			tries, of = append(tries, t.Shape), append(of, i)
		}
		dispatches, combines := t.Shape.neighbours(from.Dispatch, true), t.Shape.neighbours(from.Combine, false)
		for n := range max(len(dispatches), len(combines)) {
			s := t.Shape
			s.Tuning = from
			s.Tuning.Dispatch = dispatches[min(n, len(dispatches)-1)]
			s.Tuning.Combine = combines[min(n, len(combines)-1)]
			s, ok := s.possible(g.Ranks, from)
			if ok && !slices.ContainsFunc(tries, func(o Shape) bool { return o == s }) {
				tries, of = append(tries, s), append(of, i)
			}
		}
	}
	rows, err := g.rows(ctx, tries, progress)
	if err != nil {
		return false, err
	}
	for n, r := range rows {
		t, b := &all[of[n]], &best[of[n]]
		t.Tried++
		if r.wrong != "" {
			t.Wrong = append(t.Wrong, fmt.Sprintf("%+v: %s", tries[n].Tuning, r.wrong))
			continue
		}
		if b.dispatch == 0 || r.dispatch < tuneGain*b.dispatch {
			better = better || b.dispatch != 0
			b.dispatch, t.bestDispatch = r.dispatch, tries[n].Tuning.Dispatch
		}
		if b.combine == 0 || r.combine < tuneGain*b.combine {
			better = better || b.combine != 0
			b.combine, t.bestCombine = r.combine, tries[n].Tuning.Combine
		}
	}
	return better, nil
}

func (t *Tuned) tuning() ep.Tuning {
	return ep.Tuning{Dispatch: t.bestDispatch, Combine: t.bestCombine}
}

// possible removes values that the shape does not allow. False: nothing is left that is not there
// already.
func (e Shape) possible(ranks int, from ep.Tuning) (Shape, bool) {
	works := func(t ep.Tuning) bool {
		s := e
		s.Tuning = t
		_, err := s.DeviceSpec(ranks)
		return err == nil
	}
	// asks something of the caller
	inTurn := e.Layout == ep.RankMajor.String() && e.Tuning.Dispatch.Protocol == ep.FlagProtocol
	if inTurn || !works(ep.Tuning{Dispatch: e.Tuning.Dispatch}) {
		e.Tuning.Dispatch = from.Dispatch
	}
	if !works(ep.Tuning{Combine: e.Tuning.Combine}) {
		e.Tuning.Combine = from.Combine
	}
	return e, e.Tuning != from && works(e.Tuning)
}

// neighbours are the tunings that differ in one value, of those for the kernel's mode: slots or
// direct.
func (e Shape) neighbours(from ep.KernelTuning, dispatch bool) []ep.KernelTuning {
	var all []ep.KernelTuning
	add := func(change func(k *ep.KernelTuning)) {
		k := from
		if change(&k); k != from {
			all = append(all, k)
		}
	}
	for _, p := range []ep.Protocol{ep.ValueProtocol, ep.FlagProtocol} {
		add(func(k *ep.KernelTuning) { k.Protocol = p })
	}
	for _, n := range []int{1, 2, 4} {
		add(func(k *ep.KernelTuning) {
			if dispatch {
				k.Units = n
			}
		})
	}
	for _, n := range []int{-1, 1, 2, 3, 4, 5, 6, 7, 8, 10} {
		add(func(k *ep.KernelTuning) { k.Senders = n })
	}
	for _, n := range []int{128, 256, 512} {
		add(func(k *ep.KernelTuning) { k.Threads = n })
	}
	for _, n := range []int{-1, 1} {
		add(func(k *ep.KernelTuning) { k.Dependent = n })
		add(func(k *ep.KernelTuning) { k.Bulk = n })
	}
	for _, n := range []int{4, 6, 8, 10, 12, 16} {
		add(func(k *ep.KernelTuning) { k.Warps = n })
	}
	for _, n := range []int{1, 2, 3, 4, 7} {
		add(func(k *ep.KernelTuning) { k.Parts = n })
	}
	if e.SMs == 0 { // otherwise there are as many blocks as SMs
		for _, n := range []int{8, 16, 24, 48, 64, 96} {
			add(func(k *ep.KernelTuning) { k.Blocks = n })
		}
	}
	return all
}

// both is the result of measuring a shape.
type both struct {
	timed
	wrong string
}

// rows measures shapes and returns their results.
func (g *GPUs) rows(ctx context.Context, shapes []Shape, progress func(done, of int)) ([]both, error) {
	var got []both
	err := g.Measure(ctx, shapes, func(r GPURow) error {
		if r.Op == "dispatch" {
			progress(len(got), len(shapes))
			got = append(got, both{})
		}
		b := &got[len(got)-1]
		if r.Op == "dispatch" {
			b.dispatch = r.P50
		} else {
			b.combine = r.P50
		}
		if !r.Verified {
			b.wrong = cmp.Or(b.wrong, fmt.Sprint(r.Op, ": ", r.Problems))
		}
		return nil
	})
	if err == nil && len(got) != len(shapes) {
		err = fmt.Errorf("%d of %d shapes were measured", len(got), len(shapes))
	}
	return got, err
}

// confirmTuning measures the library's choice and the best in turn, and keeps the faster one.
func (g *GPUs) confirmTuning(ctx context.Context, all []Tuned, progress func(done, of int)) error {
	var turns []Shape
	for range tuneRepeats {
		for _, t := range all {
			s := t.Shape
			s.Tuning = t.tuning()
			turns = append(turns, t.Shape, s)
		}
	}
	rows, err := g.rows(ctx, turns, progress)
	if err != nil {
		return err
	}
	for i := range all {
		t := &all[i]
		var dispatch, combine [2][]float64
		for n := range tuneRepeats {
			for k := range 2 {
				r := rows[2*(n*len(all)+i)+k]
				if r.wrong != "" {
					t.Wrong = append(t.Wrong, fmt.Sprintf("%+v: %s", turns[2*i+k].Tuning, r.wrong))
				}
				dispatch[k], combine[k] = append(dispatch[k], r.dispatch), append(combine[k], r.combine)
			}
		}
		keep := func(found *ep.Gain, best *ep.KernelTuning, took [2][]float64) {
			found.Chosen, found.Tuned = middle(took[0]), middle(took[1])
			if found.Tuned >= tuneGain*found.Chosen || len(t.Wrong) != 0 {
				found.Tuned, *best = found.Chosen, ep.KernelTuning{}
			}
		}
		keep(&t.Dispatch, &t.bestDispatch, dispatch)
		keep(&t.Combine, &t.bestCombine, combine)
		t.Shape.Tuning = t.tuning()
	}
	return nil
}

// middle is the median.
func middle(of []float64) float64 {
	of = slices.Clone(of)
	slices.Sort(of)
	return of[len(of)/2]
}

// Row is the result as a row of a table.
func (t *Tuned) Row(h ep.Hardware, version string, now time.Time) (ep.TuningRow, error) {
	s, err := t.Shape.DeviceSpec(h.Ranks)
	return ep.TuningRow{
		Hardware: h, Kind: ep.HandleKindOf(s), Tuning: t.Shape.Tuning, Dispatch: t.Dispatch, Combine: t.Combine,
		Weft: version, Date: now.UTC().Format(time.DateOnly),
	}, err
}
