package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cuda"
)

// How often the smallest operations are repeated: in a graph, and as round trips in one kernel, of
// which the first are not timed.
const (
	smallOperations = 200
	rounds, skipped = 1100, 100
)

// smallTrials are the operations that move nothing.
func (g *gpu) smallTrials() []trial {
	var all []trial
	launches := []bool{false}
	if g.bulk { // dependent launches came with bulk copies
		launches = append(launches, true)
	}
	sms := g.sms
	for _, dependent := range launches {
		for _, shape := range [][2]int{{1, 1}, {sms, 1024}} {
			all = append(all, func(ctx context.Context) (Row, error) { return g.empty(ctx, shape[0], shape[1], dependent) })
		}
	}
	for _, dependent := range launches {
		all = append(all, func(ctx context.Context) (Row, error) { return g.barrier(ctx, dependent) })
	}
	return append(all, g.hop)
}

func (g *gpu) small(w Way, sms, threads int) Row {
	return Row{Op: "link", Way: w, GPUs: g.Ranks, SMs: sms, Threads: threads, Operations: smallOperations}
}

// empty times kernels that do nothing. Only their end can be verified.
func (g *gpu) empty(ctx context.Context, sms, threads int, dependent bool) (Row, error) {
	row := g.small(Empty, sms, threads)
	if dependent {
		row.Way = EmptyDependent
	}
	shape := cuda.LaunchConfig{Grid: cuda.Dim{X: uint32(sms)}, Block: cuda.Dim{X: uint32(threads)}, Dependent: dependent}
	l, err := g.Empty(shape)
	if err == nil {
		_, err = g.repeated(ctx, &row, l)
	}
	row.Verified = err == nil
	return row, err
}

// barrier times a kernel in which each GPU waits for all. Every GPU counts its own.
func (g *gpu) barrier(ctx context.Context, dependent bool) (Row, error) {
	row := g.small(Barrier, 1, maxGPUs)
	if dependent {
		row.Way = BarrierDependent
	}
	shape := cuda.LaunchConfig{Block: cuda.Dim{X: maxGPUs}, Dependent: dependent}
	l, err := g.functions["link_barrier"].Prepare(shape, g.lane.Group(0), g.state(), g.at(atDone))
	if err != nil {
		return row, err
	}
	done, err := g.repeated(ctx, &row, l)
	if err != nil {
		return row, err
	}
	ended, err := g.number(atDone)
	if err != nil {
		return row, err
	}
	row.Wrong, err = g.sum(int64(done) - int64(ended))
	row.Verified = row.Wrong == 0
	return row, err
}

// repeated times a graph of one kernel, on all GPUs, and says how often the kernel ran.
func (g *gpu) repeated(ctx context.Context, row *Row, l *cuda.Launch) (done int, err error) {
	if err := g.reset(ctx); err != nil {
		return 0, err
	}
	graph, err := g.capture(ctx, row.Operations, func() error { return l.Start(g.Stream) })
	if err == nil {
		_, err = g.replay(ctx, graph) // the first is slower
	}
	if err == nil {
		err = g.timed(ctx, graph, row)
	}
	if err = errors.Join(err, closeGraph(graph)); err != nil {
		return 0, fmt.Errorf("%s: %w", row.Way, err)
	}
	return (1 + g.options.Replays) * row.Operations, nil
}

// hop times a word that goes from the first GPU to the second and back, or between two SMs of one.
func (g *gpu) hop(ctx context.Context) (Row, error) {
	row := g.small(Hop, 1, 1)
	row.Operations = 2 * (rounds - skipped)
	first, second, blocks := 0, min(1, g.Ranks-1), uint32(1)
	if first == second {
		blocks, row.SMs = 2, 2
	}
	lines := g.lane.Group(0)
	lines.Ranks = 2
	lines.Window[0], lines.Window[1] = uint64(g.on(first, atPing)), uint64(g.on(second, atPing+lineBytes))
	var took []time.Duration
	for range g.options.Replays {
		err := g.reset(ctx)
		if err == nil && g.Me <= second {
			err = g.run("link_ping", cuda.LaunchConfig{Grid: cuda.Dim{X: blocks}}, lines, g.state(), uint32(g.Me),
				uint32(rounds), uint32(skipped), g.at(atTimes), g.at(atSeen))
		}
		if err == nil {
			err = g.synchronize(ctx)
		}
		if err != nil {
			return row, fmt.Errorf("%s: %w", Hop, err)
		}
		mine, missing, err := g.pinged(blocks)
		if err != nil {
			return row, fmt.Errorf("%s: %w", Hop, err)
		}
		all, err := timing.Gather(g.Team, g.Me, mine)
		if err != nil {
			return row, err
		}
		wrong, err := g.sum(missing)
		if err != nil {
			return row, err
		}
		took, row.Wrong = append(took, all[first]), row.Wrong+wrong
	}
	row.times(took)
	row.Verified = row.Wrong == 0
	return row, nil
}

// pinged reads the results of this GPU's sides: how long it took, and how many rounds are missing.
func (g *gpu) pinged(sides uint32) (took time.Duration, missing int64, err error) {
	times, seen := make([]byte, 16), make([]byte, 8)
	if err := errors.Join(g.Context.Download(times, g.at(atTimes)), g.Context.Download(seen, g.at(atSeen))); err != nil {
		return 0, 0, err
	}
	for side := g.Me; side < min(2, g.Me+int(sides)); side++ {
		missing += rounds - int64(binary.LittleEndian.Uint32(seen[4*side:]))
	}
	return time.Duration(binary.LittleEndian.Uint64(times[8:]) - binary.LittleEndian.Uint64(times)), missing, nil
}
