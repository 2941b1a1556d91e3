package timing

import (
	"context"
	"errors"
	"time"

	"github.com/weftgo/weft/cuda"
)

// Graph records n runs, of which the last is checked, ready to be launched. The caller closes it.
func (m *GPU) Graph(n int, run func(last bool) error) (*cuda.GraphExec, error) {
	g, err := m.Stream.Capture(func() error {
		for i := range n {
			if err := run(i == n-1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	exec, err := g.Instantiate()
	if err == nil {
		if err = exec.Upload(m.Stream); err != nil {
			err = errors.Join(err, exec.Close())
		}
	}
	return exec, errors.Join(err, g.Close())
}

// Span is the work of one stream between two events.
type Span struct {
	Stream  *cuda.Stream
	Enqueue func() error // nil: nothing, which takes no time
}

// Spans enqueues up to two spans on streams of their own, on all ranks, has all begin together, and
// gives the time of each.
func (m *GPU) Spans(ctx context.Context, spans ...Span) ([]time.Duration, error) {
	m.turn++
	return m.spans(ctx, func(s Span) error { return m.door.Hold(s.Stream, m.turn) },
		func() error { return m.Meet(func() { m.gate.Open(m.turn) }) }, spans...)
}

// ungated is Spans for work that each rank enqueues when all have met, as a program that replays a
// graph does. The host's part, and by how much the ranks are apart, are in the time.
func (m *GPU) ungated(ctx context.Context, spans ...Span) ([]time.Duration, error) {
	if err := m.Meet(nil); err != nil {
		return nil, err
	}
	return m.spans(ctx, func(Span) error { return nil }, func() error { return nil }, spans...)
}

// spans enqueues spans, each behind the work that hold enqueues, and waits for their ends after let
// has released them.
func (m *GPU) spans(ctx context.Context, hold func(Span) error, let func() error, spans ...Span) (took []time.Duration,
	err error,
) {
	for i, s := range spans {
		if s.Enqueue == nil {
			continue
		}
		if err := errors.Join(hold(s), m.starts[i].Record(s.Stream), s.Enqueue(),
			m.ends[i].Record(s.Stream)); err != nil {
			return nil, err
		}
	}
	if err := let(); err != nil {
		return nil, err
	}
	took = make([]time.Duration, len(spans))
	for _, s := range spans {
		if s.Enqueue != nil {
			err = errors.Join(err, m.wait(ctx, s.Stream))
		}
	}
	for i, s := range spans {
		if s.Enqueue != nil && err == nil {
			took[i], err = m.ends[i].Since(m.starts[i])
		}
	}
	return took, err
}

// begin is how spans begin: Spans or ungated.
type begin func(ctx context.Context, spans ...Span) ([]time.Duration, error)

// replays times a graph so often, after some replays that are not counted.
func (m *GPU) replays(ctx context.Context, g *cuda.GraphExec, n, warmups int, how begin) ([]time.Duration, error) {
	var took []time.Duration
	for i := range warmups + n {
		each, err := how(ctx, Span{m.Stream, func() error { return g.Launch(m.Stream) }})
		if err != nil {
			return nil, err
		}
		if i >= warmups {
			took = append(took, each[0])
		}
	}
	return took, nil
}

// Replay times spans, after some untimed runs. It gives the median of the slowest rank for each
// span.
func (m *GPU) Replay(ctx context.Context, spans ...Span) ([]time.Duration, error) {
	all := make([][]time.Duration, len(spans))
	for i := range warmups + m.Replays {
		took, err := m.Spans(ctx, spans...)
		if err != nil {
			return nil, err
		}
		if i >= warmups {
			for k, d := range took {
				all[k] = append(all[k], d)
			}
		}
	}
	medians := make([]time.Duration, len(spans))
	for k, mine := range all {
		s, _, err := m.Summarize(m.Me, mine)
		if err != nil {
			return nil, err
		}
		medians[k] = s.P50
	}
	return medians, nil
}
