package timing

import (
	"context"
	"errors"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cuda"
)

// Figures summarise an operation's times on GPUs: of the slowest rank of each replay or sample.
type Figures struct {
	Operations int // in a graph

	Graph   measure.Summary // of replays that begin together on all GPUs
	Ungated measure.Summary // of as many that nothing makes begin together
	Tail    measure.Summary // of more replays, for their percentile
	Times   [][]float64     // microseconds of an operation, in each replay of each rank
	Free    [][]float64     // the same, of those that nothing makes begin together

	Kernel measure.Summary // alone in a graph, between two events
	Eager  measure.Summary // without a graph, from the call until the host sees the end
	Issue  measure.Summary // of that, the call alone
	// Cold is microseconds of an operation in a graph, with caches emptied before each: a difference
	// of two medians, so it has no percentiles.
	Cold float64

	Verified bool     // all that was checked was right
	Problems []string // the first problem of each rank that met one
	Wrong    int64    // elements of these, where they are counted
}

// Measure times an operation in all ways that are asked for, and checks the results of each.
func (m *GPU) Measure(ctx context.Context, o Operation) (f Figures, err error) {
	f.Operations = m.Operations
	var v Verdict
	for _, by := range []struct {
		way  Ways
		time func(context.Context, Operation, *Figures) error
	}{{InGraph, m.inGraph}, {Alone, m.alone}, {Eager, m.eagerly}} {
		if m.Ways&by.way == 0 {
			continue
		}
		if err := errors.Join(o.renew(true), m.Comm.Wait(ctx, m.Work), m.Meet(nil)); err != nil {
			return f, err
		}
		if err := by.time(ctx, o, &f); err != nil {
			return f, err
		}
		if err := o.check(&v); err != nil {
			return f, err
		}
	}
	if m.Ways&Cold != 0 {
		if err := m.cold(ctx, o, &f); err != nil {
			return f, err
		}
	}
	f.Verified, f.Problems, f.Wrong, err = m.Verdict(v)
	return f, err
}

// Verdict joins the problems of all ranks, and counts their wrong elements.
func (m *GPU) Verdict(mine Verdict) (verified bool, problems []string, wrong int64, err error) {
	all, err := Gather(m.Team, m.Me, mine)
	for _, v := range all {
		if v.problem != "" {
			problems = append(problems, v.problem)
		}
		wrong += v.elements
	}
	return err == nil && len(problems) == 0, problems, wrong, err
}

// inGraph times graphs of many operations.
func (m *GPU) inGraph(ctx context.Context, o Operation, f *Figures) (err error) {
	g, err := m.Graph(m.Operations, o.Run)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	for _, way := range []struct {
		how   begin
		sum   *measure.Summary
		times *[][]float64
	}{{m.Spans, &f.Graph, &f.Times}, {m.ungated, &f.Ungated, &f.Free}} {
		took, err := m.replays(ctx, g, m.Replays, warmups, way.how)
		if err != nil {
			return err
		}
		s, all, err := m.Summarize(m.Me, took)
		if err != nil {
			return err
		}
		*way.sum, *way.times = s, make([][]float64, len(all))
		for r, list := range all {
			for _, d := range list {
				(*way.times)[r] = append((*way.times)[r], measure.Micros(d)/float64(m.Operations))
			}
		}
		if m.Brief {
			return nil
		}
	}
	return m.tail(ctx, g, f)
}

// tail replays a graph as often as a percentile needs, or as there is time for, which all ranks see
// alike: as long as its median says.
func (m *GPU) tail(ctx context.Context, g *cuda.GraphExec, f *Figures) error {
	n := min(max(int(tailTime/max(f.Graph.P50, 1)), m.Replays), tailReplays)
	took, err := m.replays(ctx, g, n, 0, m.Spans)
	if err != nil {
		return err
	}
	f.Tail, _, err = m.Summarize(m.Me, took)
	return err
}

// alone times graphs of one operation. Two take turns, as operations do with the places where rows
// are received.
func (m *GPU) alone(ctx context.Context, o Operation, f *Figures) (err error) {
	var pair [2]*cuda.GraphExec
	for i := range pair {
		g, err := m.Graph(1, func(bool) error { return o.Run(i == len(pair)-1) })
		if err != nil {
			return err
		}
		defer g.Close()
		pair[i] = g
	}
	took, err := m.samples(ctx, func(i int) error { return pair[i%len(pair)].Launch(m.Stream) })
	if err != nil {
		return err
	}
	f.Kernel, _, err = m.Summarize(m.Me, took)
	return err
}

// samples times the work that start enqueues, each between two events. How many are started is
// even.
func (m *GPU) samples(ctx context.Context, start func(i int) error) ([]time.Duration, error) {
	var took []time.Duration
	n := (len(m.starts) + 1) &^ 1
	for len(took) < m.Samples {
		m.turn++
		if err := m.door.Hold(m.Stream, m.turn); err != nil {
			return nil, err
		}
		for i := range n {
			k := min(i, len(m.starts)-1)
			if err := errors.Join(m.starts[k].Record(m.Stream), start(i), m.ends[k].Record(m.Stream)); err != nil {
				return nil, err
			}
		}
		if err := m.Meet(func() { m.gate.Open(m.turn) }); err != nil {
			return nil, err
		}
		if err := m.Comm.Wait(ctx, m.Work); err != nil {
			return nil, err
		}
		for i := range m.starts[:min(len(m.starts), m.Samples-len(took))] {
			d, err := m.ends[i].Since(m.starts[i])
			if err != nil {
				return nil, err
			}
			took = append(took, d)
		}
	}
	return took, nil
}

// Nothing times a kernel that does nothing as an operation alone in a graph.
func (m *GPU) Nothing(ctx context.Context) (s measure.Summary, err error) {
	l, err := m.Empty(cuda.LaunchConfig{})
	if err != nil {
		return s, err
	}
	g, err := m.Graph(1, func(bool) error { return l.Start(m.Stream) })
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	took, err := m.samples(ctx, func(int) error { return g.Launch(m.Stream) })
	if err != nil {
		return s, err
	}
	s, _, err = m.Summarize(m.Me, took)
	return s, err
}

// eagerly times operations that are called one after the other, by the host's clock.
func (m *GPU) eagerly(ctx context.Context, o Operation, f *Figures) error {
	var called, ended []time.Duration
	for i := range warmups + m.Samples {
		if err := m.Meet(nil); err != nil {
			return err
		}
		began := time.Now()
		if err := o.Run(i == warmups+m.Samples-1); err != nil {
			return err
		}
		call := time.Since(began)
		if err := m.Comm.Wait(ctx, m.Work); err != nil {
			return err
		}
		if end := time.Since(began); i >= warmups {
			called, ended = append(called, call), append(ended, end)
		}
	}
	var err error
	if f.Issue, _, err = m.Summarize(m.Me, called); err != nil {
		return err
	}
	f.Eager, _, err = m.Summarize(m.Me, ended)
	return err
}

// cold times operations after writing more memory than caches hold, less the time of the writing.
func (m *GPU) cold(ctx context.Context, o Operation, f *Figures) error {
	n := min(coldOperations, m.Operations)
	total := func(run func() error) (time.Duration, error) {
		g, err := m.Graph(n, func(bool) error {
			return errors.Join(m.Stream.Memset(m.flood.Pointer(), 0, m.flood.Size()), run())
		})
		if err != nil {
			return 0, err
		}
		took, err := m.replays(ctx, g, min(m.Replays, coldReplays), warmups, m.Spans)
		if err = errors.Join(err, g.Close()); err != nil {
			return 0, err
		}
		s, _, err := m.Summarize(m.Me, took)
		return s.P50, err
	}
	without, err := total(func() error { return nil })
	if err != nil {
		return err
	}
	with, err := total(func() error { return o.Run(false) })
	f.Cold = measure.Micros(max(with-without, 0)) / float64(n)
	return err
}
