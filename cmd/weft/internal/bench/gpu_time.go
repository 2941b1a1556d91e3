package bench

import (
	"context"
	"errors"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep"
)

// measure times an operation in every way, and checks what each way gave.
func (m *gpuRank) measure(ctx context.Context, o operation) (row GPURow, err error) {
	m.problem = ""
	s := m.handle.Spec()
	row = GPURow{
		Op: o.name, Engine: ep.GPUEngine.String(), Contract: m.cfg.Contract(), Ranks: m.ranks,
		GPUs:   min(m.ranks, len(m.Contexts)),
		Tokens: m.cfg.Tokens, Capacity: s.MaxTokens, Hidden: s.Hidden, TopK: s.TopK, Experts: s.Experts,
		DType: s.Payload.String(), Scales: m.cfg.ScaleOrder(),
		Layout: s.Layout.String(), Reduction: s.Reduction.String(), Weighting: s.Weighting.String(),
		Routing: string(m.cfg.Routing), SMs: s.SMs, SMsUsed: o.sms,
		Operations: m.Operations, Samples: m.Samples, Empty: m.nothing,
		WireBytes: o.bytes.wire, LogicalBytes: o.bytes.logical, DeepEPBytes: o.bytes.deepep,
	}
	if row.Tuning = s.Tuning.Dispatch; o.name == "combine" {
		row.Tuning = s.Tuning.Combine
	}
	if s.Quantize != weft.InvalidDType {
		row.Quantize = s.Quantize.String()
	}
	ways := []func(context.Context, operation, *GPURow) error{m.inGraph, m.alone, m.eagerly}
	if m.Brief {
		ways = ways[:1]
	}
	for _, way := range ways {
		if err := errors.Join(o.renew(), m.comm.Wait(ctx, m.work), m.meet(nil)); err != nil {
			return row, err
		}
		if err := way(ctx, o, &row); err != nil {
			return row, err
		}
		if err := o.check(); err != nil {
			return row, err
		}
	}
	if !m.Brief {
		if err := m.cold(ctx, o, &row); err != nil {
			return row, err
		}
	}
	problems, err := gather(m.team, m.me, m.problem)
	row.Verified = err == nil
	for _, p := range problems {
		if p != "" {
			row.Problems, row.Verified = append(row.Problems, p), false
		}
	}
	return row, err
}

// graph records n operations, of which the last keeps what it gives if keep is set. The caller
// closes it.
func (m *gpuRank) graph(n int, run func(last bool) error) (*cuda.GraphExec, error) {
	g, err := m.stream.Capture(func() error {
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
		if err = exec.Upload(m.stream); err != nil {
			err = errors.Join(err, exec.Close())
		}
	}
	return exec, errors.Join(err, g.Close())
}

// gated enqueues on all ranks what then begins on all of them at once, and waits until it has
// ended.
func (m *gpuRank) gated(ctx context.Context, enqueue func() error) error {
	m.turn++
	if err := m.door.Hold(m.stream, m.turn); err != nil {
		return err
	}
	if err := enqueue(); err != nil {
		return err
	}
	if err := m.meet(func() { m.gate.Open(m.turn) }); err != nil {
		return err
	}
	return m.comm.Wait(ctx, m.work)
}

// ungated enqueues on each rank when all have come, and waits until it has ended: what a program
// does that replays a graph. The host's part, and by how much the ranks are apart, are in the time.
func (m *gpuRank) ungated(ctx context.Context, enqueue func() error) error {
	if err := m.meet(nil); err != nil {
		return err
	}
	if err := enqueue(); err != nil {
		return err
	}
	return m.comm.Wait(ctx, m.work)
}

// replays times a graph so often, after some replays that are not counted, each begun by begin.
func (m *gpuRank) replays(ctx context.Context, g *cuda.GraphExec, n, warmups int,
	begin func(context.Context, func() error) error,
) ([]time.Duration, error) {
	var took []time.Duration
	for i := range warmups + n {
		err := begin(ctx, func() error {
			return errors.Join(m.starts[0].Record(m.stream), g.Launch(m.stream), m.ends[0].Record(m.stream))
		})
		if err != nil {
			return nil, err
		}
		d, err := m.ends[0].Since(m.starts[0])
		if err != nil {
			return nil, err
		}
		if i >= warmups {
			took = append(took, d)
		}
	}
	return took, nil
}

// summary is what all ranks' times come to.
func (m *gpuRank) summary(mine []time.Duration) (measure.Summary, [][]time.Duration, error) {
	all, err := gather(m.team, m.me, mine)
	if err != nil {
		return measure.Summary{}, nil, err
	}
	s, err := measure.Summarize(all)
	return s, all, err
}

// inGraph times graphs of many operations.
func (m *gpuRank) inGraph(ctx context.Context, o operation, row *GPURow) (err error) {
	g, err := m.graph(m.Operations, o.run)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	for _, way := range []struct {
		begin func(context.Context, func() error) error
		set   func(measure.Summary, [][]float64)
	}{{m.gated, row.setGraph}, {m.ungated, row.setUngated}} {
		took, err := m.replays(ctx, g, m.Replays, warmups, way.begin)
		if err != nil {
			return err
		}
		s, all, err := m.summary(took)
		if err != nil {
			return err
		}
		times := make([][]float64, len(all))
		for r, list := range all {
			for _, d := range list {
				times[r] = append(times[r], measure.Micros(d)/float64(m.Operations))
			}
		}
		way.set(s, times)
		if m.Brief {
			return nil
		}
	}
	return m.tail(ctx, g, row)
}

// tail replays a graph as often as a percentile needs, or as there is time for, which all ranks see
// alike: as long as its median says.
func (m *gpuRank) tail(ctx context.Context, g *cuda.GraphExec, row *GPURow) error {
	median := time.Duration(row.P50 * float64(m.Operations) * float64(time.Microsecond))
	took, err := m.replays(ctx, g, min(max(int(tailTime/max(median, 1)), m.Replays), tailReplays), 0, m.gated)
	if err != nil {
		return err
	}
	s, _, err := m.summary(took)
	row.setTail(s)
	return err
}

// alone times graphs of one operation. Two take turns, as operations do with the places where rows
// are received.
func (m *gpuRank) alone(ctx context.Context, o operation, row *GPURow) (err error) {
	var pair [2]*cuda.GraphExec
	for i := range pair {
		g, err := m.graph(1, func(bool) error { return o.run(i == len(pair)-1) })
		if err != nil {
			return err
		}
		defer g.Close()
		pair[i] = g
	}
	took, err := m.samples(ctx, func(i int) error { return pair[i%len(pair)].Launch(m.stream) })
	if err != nil {
		return err
	}
	s, _, err := m.summary(took)
	row.Kernel, row.KernelP99, row.KernelMax = measure.Micros(s.P50), measure.Micros(s.P99), measure.Micros(s.Max)
	return err
}

// samples times what start enqueues, each between two events. How many are started is even.
func (m *gpuRank) samples(ctx context.Context, start func(i int) error) ([]time.Duration, error) {
	var took []time.Duration
	n := (len(m.starts) + 1) &^ 1
	for len(took) < m.Samples {
		err := m.gated(ctx, func() error {
			for i := range n {
				k := min(i, len(m.starts)-1)
				if err := errors.Join(m.starts[k].Record(m.stream), start(i), m.ends[k].Record(m.stream)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
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

// timeNothing times a kernel that does nothing as alone times an operation.
func (m *gpuRank) timeNothing(ctx context.Context) (err error) {
	l, err := m.door.Empty()
	if err != nil {
		return err
	}
	g, err := m.graph(1, func(bool) error { return l.Start(m.stream) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	took, err := m.samples(ctx, func(int) error { return g.Launch(m.stream) })
	if err != nil {
		return err
	}
	s, _, err := m.summary(took)
	m.nothing = measure.Micros(s.P50)
	return err
}

// eagerly times operations that are called one after the other, by the host's clock.
func (m *gpuRank) eagerly(ctx context.Context, o operation, row *GPURow) error {
	var called, ended []time.Duration
	for i := range warmups + m.Samples {
		if err := m.meet(nil); err != nil {
			return err
		}
		began := time.Now()
		if err := o.run(i == warmups+m.Samples-1); err != nil {
			return err
		}
		call := time.Since(began)
		if err := m.comm.Wait(ctx, m.work); err != nil {
			return err
		}
		if end := time.Since(began); i >= warmups {
			called, ended = append(called, call), append(ended, end)
		}
	}
	call, _, err := m.summary(called)
	if err != nil {
		return err
	}
	end, _, err := m.summary(ended)
	row.Issue, row.Eager, row.EagerP99 = measure.Micros(call.P50), measure.Micros(end.P50), measure.Micros(end.P99)
	return err
}

// cold times operations before each of which more memory was written than caches hold, less the
// time of the writing.
func (m *gpuRank) cold(ctx context.Context, o operation, row *GPURow) error {
	n := min(coldOperations, m.Operations)
	total := func(run func() error) (time.Duration, error) {
		g, err := m.graph(n, func(bool) error {
			return errors.Join(m.stream.Memset(m.flood.Pointer(), 0,
				m.flood.Size()), run())
		})
		if err != nil {
			return 0, err
		}
		took, err := m.replays(ctx, g, min(m.Replays, coldReplays), warmups, m.gated)
		if err = errors.Join(err, g.Close()); err != nil {
			return 0, err
		}
		s, _, err := m.summary(took)
		return s.P50, err
	}
	without, err := total(func() error { return nil })
	if err != nil {
		return err
	}
	with, err := total(func() error { return o.run(false) })
	row.Cold = measure.Micros(max(with-without, 0)) / float64(n)
	return err
}
