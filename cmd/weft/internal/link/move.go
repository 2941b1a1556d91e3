package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft/cuda"
)

// wordStep is the difference between neighbouring words of the pattern: see pattern.cuh.
const wordStep = 2654435761

// filling is the launch of kernels that only prepare and check.
func filling(size int) cuda.LaunchConfig {
	const threads = 256
	return cuda.LaunchConfig{Grid: cuda.Dim{X: uint32(min(512, 1+size/16/threads))}, Block: cuda.Dim{X: threads}}
}

// move measures one way, pattern, size and number of SMs.
func (g *gpu) move(ctx context.Context, w Way, p Pattern, size, sms int) (Row, error) {
	to := flows(p, g.Ranks)
	row := Row{
		Op: "link", Way: w, Pattern: p, GPUs: g.Ranks, SMs: sms, Threads: w.threads(),
		Bytes: int64(size * most(to)),
	}
	row.Operations = operations(row.Bytes, sms)
	seed := g.nextSeeds()
	err := errors.Join(g.reset(ctx), g.fill(ctx, size, seed))
	var part func() error
	if err == nil {
		if w == Load || w == BulkLoad {
			part, err = g.pulls(w, turned(to)[g.Me], size, sms)
		} else {
			part, err = g.pushes(w, to[g.Me], size, sms, seed(g.Me))
		}
	}
	if err != nil {
		return row, fmt.Errorf("%s, %s: %w", w, p, err)
	}
	graph, err := g.capture(ctx, row.Operations, part)
	if err == nil {
		row.Wrong, err = g.verified(ctx, graph, &row, to, size, seed)
		err = errors.Join(err, closeGraph(graph))
	}
	if err != nil {
		return row, fmt.Errorf("%s, %s: %w", w, p, err)
	}
	row.Verified = row.Wrong == 0
	return row, nil
}

// threads are those of a block.
func (w Way) threads() int {
	switch w {
	case Engine:
		return 0
	case BulkStore, BulkLoad:
		return bulkThreads
	default:
		return 1024
	}
}

// operations are so many that a graph takes some 10 ms, if an SM moves 40 GB/s and a GPU 400.
func operations(bytes int64, sms int) int {
	speed := 400.0
	if sms > 0 {
		speed = min(speed, 40*float64(sms))
	}
	return min(max(int(10e6*speed/float64(bytes)), 2), 100)
}

// nextSeeds makes the seed of each sender for the next measurement.
func (g *gpu) nextSeeds() func(sender int) uint32 {
	g.seeds += maxGPUs
	base := g.seeds
	return func(sender int) uint32 { return (base + uint32(sender)) * 0x9E3779B1 }
}

// fill writes the data to send and clears the slots.
func (g *gpu) fill(ctx context.Context, size int, seed func(int) uint32) error {
	return errors.Join(g.Stream.Memset(g.inbox(g.Me, 0, size), 0, g.Ranks*size),
		g.run("link_fill", filling(size), g.source(g.Me), uint64(size/16), seed(g.Me)), g.synchronize(ctx))
}

// pushes is the part of a sender: it writes into its slots at the receivers.
func (g *gpu) pushes(w Way, to []int, size, sms int, seed uint32) (func() error, error) {
	var at []cuda.Pointer
	for _, receiver := range to {
		at = append(at, g.inbox(receiver, g.Me, size))
	}
	if len(at) == 0 {
		return nil, nil
	}
	switch w {
	case Engine:
		return func() error { return g.copies(at, size) }, nil
	case BulkStore:
		return g.part("link_bulk_store", sms, w.threads(), chunks*storeChunk, targetsOf(at), uint64(size),
			uint32(storeChunk), seed)
	default:
		return g.part("link_store", sms, w.threads(), 0, targetsOf(at), uint64(size/16), seed)
	}
}

// pulls is the receiver's part: it reads the senders' data.
func (g *gpu) pulls(w Way, from []int, size, sms int) (func() error, error) {
	var at []cuda.Pointer
	for _, sender := range from {
		at = append(at, g.source(sender))
	}
	if len(at) == 0 {
		return nil, nil
	}
	if w == BulkLoad {
		return g.part("link_bulk_load", sms, w.threads(), chunks*loadChunk, targetsOf(at), uint64(size), uint32(loadChunk),
			g.at(atSumming), g.at(atSum), g.lane.Group(0), g.state())
	}
	return g.part("link_load", sms, w.threads(), 0, targetsOf(at), uint64(size/16), g.at(atSum))
}

func targetsOf(at []cuda.Pointer) targets {
	t := targets{Count: uint32(len(at))}
	copy(t.At[:], at)
	return t
}

// part is a kernel on so many SMs, ready to be enqueued.
func (g *gpu) part(name string, sms, threads, shared int, arguments ...any) (func() error, error) {
	shape := cuda.LaunchConfig{Grid: cuda.Dim{X: uint32(sms)}, Block: cuda.Dim{X: uint32(threads)}, Shared: shared}
	l, err := g.functions[name].Prepare(shape, arguments...)
	if err != nil {
		return nil, err
	}
	return func() error { return l.Start(g.Stream) }, nil
}

// copies enqueues a copy to each address, all at once if there are several: one stream keeps one
// engine busy.
func (g *gpu) copies(to []cuda.Pointer, size int) error {
	if len(to) == 1 {
		return g.Stream.Copy(to[0], g.source(g.Me), size)
	}
	if err := g.fork.Record(g.Stream); err != nil {
		return err
	}
	for i, at := range to {
		s := g.side[i]
		if err := s.WaitEvent(g.fork); err != nil {
			return err
		}
		if err := s.Copy(at, g.source(g.Me), size); err != nil {
			return err
		}
		if err := g.joins[i].Record(s); err != nil {
			return err
		}
		if err := g.Stream.WaitEvent(g.joins[i]); err != nil {
			return err
		}
	}
	return nil
}

// verified replays a graph once and then as often as is timed, and checks after both. It gives how
// many words, or sums, were wrong on all GPUs.
func (g *gpu) verified(ctx context.Context, graph *cuda.GraphExec, row *Row, to [][]int, size int,
	seed func(int) uint32,
) (wrong int64, err error) {
	from := turned(to)[g.Me]
	summing := func(on uint32) error { return g.Stream.Memset32(g.at(atSumming), on, 1) }
	check := func(replays int) (int64, error) { return g.arrived(ctx, row.Way, from, size, seed) }
	if row.Way == Load || row.Way == BulkLoad {
		check = func(replays int) (int64, error) { return g.summed(from, size, seed, replays*row.Operations) }
	}
	if err := summing(1); err != nil {
		return 0, err
	}
	if _, err := g.replay(ctx, graph); err != nil {
		return 0, err
	}
	first, err := check(1)
	if err != nil {
		return 0, err
	}
	if err := summing(0); err != nil {
		return 0, err
	}
	if err := g.timed(ctx, graph, row); err != nil {
		return 0, err
	}
	replays := 1 + g.options.Replays
	if row.Way == BulkLoad { // which sums in the first replay only
		replays = 1
	}
	last, err := check(replays)
	if err != nil {
		return 0, err
	}
	return g.sum(first + last)
}

// arrived counts the wrong words in this GPU's slots.
func (g *gpu) arrived(ctx context.Context, w Way, from []int, size int, seed func(int) uint32) (int64, error) {
	period := uint32(0)
	if w == BulkStore {
		period = storeChunk / 16
	}
	if err := g.Stream.Memset(g.at(atWrong), 0, 8); err != nil {
		return 0, err
	}
	for _, sender := range from {
		if err := g.run("link_check", filling(size), g.inbox(g.Me, sender, size), uint64(size/16), seed(sender),
			period, g.at(atWrong)); err != nil {
			return 0, err
		}
	}
	if err := g.synchronize(ctx); err != nil {
		return 0, err
	}
	n, err := g.number(atWrong)
	return int64(n), err
}

// summed is 1 if this GPU's sum of so many operations is wrong.
func (g *gpu) summed(from []int, size int, seed func(int) uint32, operations int) (int64, error) {
	want := uint32(0)
	for _, sender := range from {
		want += sumOf(uint64(size/4), seed(sender))
	}
	got, err := g.number(atSum)
	if err == nil && uint32(got) != want*uint32(operations) {
		return 1, nil
	}
	return 0, err
}

// sumOf is the sum of the first words of a seed.
func sumOf(words uint64, seed uint32) uint32 {
	pairs := words / 2 * (words - 1)
	if words%2 != 0 {
		pairs = words * ((words - 1) / 2)
	}
	return uint32(pairs)*wordStep + uint32(words)*seed
}
