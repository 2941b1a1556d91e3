package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/weftgo/weft/cuda"
)

// How often the smallest operations are done: in a graph, and there and back in one kernel, of
// which the first are not timed.
const (
	smallOperations = 200
	rounds, skipped = 1100, 100
)

// smallTrials are the operations that move nothing.
func (m *machine) smallTrials() []trial {
	var all []trial
	launches := []bool{false}
	if m.bulk() { // dependent launches came with bulk copies
		launches = append(launches, true)
	}
	sms := m.sms()
	for _, dependent := range launches {
		for _, shape := range [][2]int{{1, 1}, {sms, 1024}} {
			all = append(all, func(ctx context.Context) (Row, error) { return m.empty(ctx, shape[0], shape[1], dependent) })
		}
	}
	for _, dependent := range launches {
		all = append(all, func(ctx context.Context) (Row, error) { return m.barrier(ctx, dependent) })
	}
	return append(all, m.hop)
}

// sms is how many all GPUs have.
func (m *machine) sms() int {
	n := m.gpus[0].sms
	for _, g := range m.gpus {
		n = min(n, g.sms)
	}
	return n
}

func (m *machine) small(w Way, sms, threads int) Row {
	return Row{Op: "link", Way: w, GPUs: len(m.gpus), SMs: sms, Threads: threads, Operations: smallOperations}
}

// empty times kernels that do nothing. What can be verified of them is that they ran to their end.
func (m *machine) empty(ctx context.Context, sms, threads int, dependent bool) (Row, error) {
	row := m.small(Empty, sms, threads)
	if dependent {
		row.Way = EmptyDependent
	}
	shape := cuda.LaunchConfig{Grid: cuda.Dim{X: uint32(sms)}, Block: cuda.Dim{X: uint32(threads)}, Dependent: dependent}
	_, err := m.repeated(ctx, &row, shape, "link_empty", func(*gpu) []any { return nil })
	row.Verified = err == nil
	return row, err
}

// barrier times a kernel in which each GPU waits for all. Every GPU counts its own.
func (m *machine) barrier(ctx context.Context, dependent bool) (Row, error) {
	row := m.small(Barrier, 1, maxGPUs)
	if dependent {
		row.Way = BarrierDependent
	}
	lines := make([]int, len(m.gpus))
	shape := cuda.LaunchConfig{Block: cuda.Dim{X: maxGPUs}, Dependent: dependent}
	done, err := m.repeated(ctx, &row, shape, "link_barrier",
		func(g *gpu) []any { return []any{m.group(g, lines...), g.at(atState), g.at(atDone)} })
	if err != nil {
		return row, err
	}
	for _, g := range m.gpus {
		ended, err := g.number(atDone)
		if err != nil {
			return row, fmt.Errorf("link: GPU %d: %w", g.index, err)
		}
		row.Wrong += int64(done) - int64(ended)
	}
	row.Verified = row.Wrong == 0
	return row, nil
}

// repeated times a graph of one kernel, on all GPUs, and says how often the kernel ran.
func (m *machine) repeated(ctx context.Context, row *Row, c cuda.LaunchConfig, name string,
	arguments func(*gpu) []any,
) (done int, err error) {
	if err := m.reset(ctx); err != nil {
		return 0, err
	}
	graphs, err := m.capture(ctx, row.Operations, func(g *gpu) (func() error, error) {
		l, err := g.functions[name].Prepare(c, arguments(g)...)
		if err != nil {
			return nil, err
		}
		return func() error { return l.Start(g.stream) }, nil
	})
	if err == nil {
		_, err = m.replay(ctx, graphs) // the first is slower
	}
	if err == nil {
		err = m.timed(ctx, graphs, row)
	}
	if err = errors.Join(err, graphs.close()); err != nil {
		return 0, fmt.Errorf("link: %s: %w", row.Way, err)
	}
	return (1 + m.Replays) * row.Operations, nil
}

// hop times a word that goes from the first GPU to the second and back, or between two SMs of one.
func (m *machine) hop(ctx context.Context) (Row, error) {
	row := m.small(Hop, 1, 1)
	row.Operations = 2 * (rounds - skipped)
	first, second, blocks := m.gpus[0], m.gpus[len(m.gpus)-1], uint32(1)
	if len(m.gpus) > 1 {
		second = m.gpus[1]
	} else {
		blocks, row.SMs = 2, 2
	}
	var took []time.Duration
	for range m.Replays {
		if err := m.reset(ctx); err != nil {
			return row, err
		}
		err := m.all(func(g *gpu) error {
			if g != first && g != second {
				return nil
			}
			side := uint32(0)
			if g != first {
				side = 1
			}
			return g.run("link_ping", cuda.LaunchConfig{Grid: cuda.Dim{X: blocks}},
				m.group(g, atPing, atPing+lineBytes), g.at(atState),
				side, uint32(rounds), uint32(skipped), g.at(atTimes), g.at(atSeen))
		})
		if err := errors.Join(err, m.settle(ctx)); err != nil {
			return row, fmt.Errorf("link: %s: %w", Hop, err)
		}
		d, wrong, err := pinged(first, second)
		if err != nil {
			return row, fmt.Errorf("link: %s: %w", Hop, err)
		}
		took, row.Wrong = append(took, d), row.Wrong+wrong
	}
	row.times(took)
	row.Verified = row.Wrong == 0
	return row, nil
}

// pinged reads what the sides have left: how long it took, and how many rounds are missing.
func pinged(first, second *gpu) (time.Duration, int64, error) {
	times, seen := make([]byte, 16), make([]byte, 4)
	if err := first.context.Download(times, first.at(atTimes)); err != nil {
		return 0, 0, err
	}
	missing := int64(0)
	for side, g := range []*gpu{first, second} {
		if err := g.context.Download(seen, g.at(atSeen+4*side)); err != nil {
			return 0, 0, err
		}
		missing += rounds - int64(binary.LittleEndian.Uint32(seen))
	}
	took := binary.LittleEndian.Uint64(times[8:]) - binary.LittleEndian.Uint64(times)
	return time.Duration(took), missing, nil
}
