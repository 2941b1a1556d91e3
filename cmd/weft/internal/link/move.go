package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft/cuda"
)

// wordStep is the difference between neighbouring words of the pattern: see pattern.cuh.
const wordStep = 2654435761

// filling is how what only prepares and checks is launched.
func filling(size int) cuda.LaunchConfig {
	const threads = 256
	return cuda.LaunchConfig{Grid: cuda.Dim{X: uint32(min(512, 1+size/16/threads))}, Block: cuda.Dim{X: threads}}
}

// move measures one way, pattern, size and number of SMs.
func (m *machine) move(ctx context.Context, w Way, p Pattern, size, sms int) (Row, error) {
	to := flows(p, len(m.gpus))
	row := Row{
		Op: "link", Way: w, Pattern: p, GPUs: len(m.gpus), SMs: sms, Threads: w.threads(),
		Bytes: int64(size * most(to)),
	}
	row.Operations = operations(row.Bytes, sms)
	seed := m.nextSeeds()
	if err := m.reset(ctx); err != nil {
		return row, err
	}
	if err := m.fill(ctx, size, seed); err != nil {
		return row, err
	}
	parts := m.pushes(w, to, size, sms, seed)
	if w == Load || w == BulkLoad {
		parts = m.pulls(w, turned(to), size, sms)
	}
	graphs, err := m.capture(ctx, row.Operations, parts)
	if err != nil {
		return row, fmt.Errorf("link: %s, %s: %w", w, p, err)
	}
	row.Wrong, err = m.verified(ctx, graphs, &row, to, size, seed)
	if err = errors.Join(err, graphs.close()); err != nil {
		return row, fmt.Errorf("link: %s, %s: %w", w, p, err)
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
func (m *machine) nextSeeds() func(sender int) uint32 {
	m.seeds += maxGPUs
	base := m.seeds
	return func(sender int) uint32 { return (base + uint32(sender)) * 0x9E3779B1 }
}

// fill writes what is sent and clears where it arrives.
func (m *machine) fill(ctx context.Context, size int, seed func(int) uint32) error {
	err := m.all(func(g *gpu) error {
		if err := g.stream.Memset(g.inbox(0, size), 0, len(m.gpus)*size); err != nil {
			return err
		}
		return g.run("link_fill", filling(size), g.source(), uint64(size/16), seed(g.index))
	})
	return errors.Join(err, m.settle(ctx))
}

// pushes are the parts of senders: they write into their slots at the receivers.
func (m *machine) pushes(w Way, to [][]int, size, sms int, seed func(int) uint32) func(g *gpu) (func() error, error) {
	return func(g *gpu) (func() error, error) {
		var at []cuda.Pointer
		for _, receiver := range to[g.index] {
			at = append(at, m.gpus[receiver].inbox(g.index, size))
		}
		if len(at) == 0 {
			return nil, nil
		}
		switch w {
		case Engine:
			return func() error { return g.copies(at, size) }, nil
		case BulkStore:
			return g.part("link_bulk_store", sms, w.threads(), chunks*storeChunk, targetsOf(at), uint64(size),
				uint32(storeChunk), seed(g.index))
		default:
			return g.part("link_store", sms, w.threads(), 0, targetsOf(at), uint64(size/16), seed(g.index))
		}
	}
}

// pulls are the parts of receivers: they read what the senders have.
func (m *machine) pulls(w Way, from [][]int, size, sms int) func(g *gpu) (func() error, error) {
	return func(g *gpu) (func() error, error) {
		var at []cuda.Pointer
		for _, sender := range from[g.index] {
			at = append(at, m.gpus[sender].source())
		}
		if len(at) == 0 {
			return nil, nil
		}
		if w == BulkLoad {
			return g.part("link_bulk_load", sms, w.threads(), chunks*loadChunk, targetsOf(at), uint64(size), uint32(loadChunk),
				g.at(atSumming), g.at(atSum), m.group(g), g.at(atState))
		}
		return g.part("link_load", sms, w.threads(), 0, targetsOf(at), uint64(size/16), g.at(atSum))
	}
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
	return func() error { return l.Start(g.stream) }, nil
}

// copies enqueues a copy to each address, all at once if there are several: one stream keeps one
// engine busy.
func (g *gpu) copies(to []cuda.Pointer, size int) error {
	if len(to) == 1 {
		return g.stream.Copy(to[0], g.source(), size)
	}
	if err := g.fork.Record(g.stream); err != nil {
		return err
	}
	for i, at := range to {
		s := g.side[i]
		if err := s.WaitEvent(g.fork); err != nil {
			return err
		}
		if err := s.Copy(at, g.source(), size); err != nil {
			return err
		}
		if err := g.joins[i].Record(s); err != nil {
			return err
		}
		if err := g.stream.WaitEvent(g.joins[i]); err != nil {
			return err
		}
	}
	return nil
}

// verified replays graphs once and then as often as is timed, and checks after both. It gives how
// many words, or sums, were wrong.
func (m *machine) verified(ctx context.Context, graphs graphs, row *Row, to [][]int, size int,
	seed func(int) uint32,
) (wrong int64, err error) {
	summing := func(on uint32) error {
		return m.all(func(g *gpu) error { return g.stream.Memset32(g.at(atSumming), on, 1) })
	}
	check := func(replays int) (int64, error) { return m.arrived(ctx, row.Way, to, size, seed) }
	if row.Way == Load || row.Way == BulkLoad {
		check = func(replays int) (int64, error) { return m.summed(to, size, seed, replays*row.Operations) }
	}
	if err := summing(1); err != nil {
		return 0, err
	}
	if _, err := m.replay(ctx, graphs); err != nil {
		return 0, err
	}
	first, err := check(1)
	if err != nil {
		return 0, err
	}
	if err := summing(0); err != nil {
		return 0, err
	}
	if err := m.timed(ctx, graphs, row); err != nil {
		return 0, err
	}
	replays := 1 + m.Replays
	if row.Way == BulkLoad { // which sums in the first replay only
		replays = 1
	}
	last, err := check(replays)
	return first + last, err
}

// arrived counts the wrong words in the slots of all receivers.
func (m *machine) arrived(ctx context.Context, w Way, to [][]int, size int, seed func(int) uint32) (int64, error) {
	period := uint32(0)
	if w == BulkStore {
		period = storeChunk / 16
	}
	err := m.all(func(g *gpu) error {
		if err := g.stream.Memset(g.at(atWrong), 0, 8); err != nil {
			return err
		}
		for _, sender := range turned(to)[g.index] {
			if err := g.run("link_check", filling(size), g.inbox(sender, size), uint64(size/16), seed(sender),
				period, g.at(atWrong)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, m.settle(ctx)); err != nil {
		return 0, err
	}
	var wrong int64
	for _, g := range m.gpus {
		n, err := g.number(atWrong)
		if err != nil {
			return 0, fmt.Errorf("link: GPU %d: %w", g.index, err)
		}
		wrong += int64(n)
	}
	return wrong, nil
}

// summed counts the receivers whose sum of so many operations is wrong.
func (m *machine) summed(to [][]int, size int, seed func(int) uint32, operations int) (int64, error) {
	from := turned(to)
	var wrong int64
	for _, g := range m.gpus {
		want := uint32(0)
		for _, sender := range from[g.index] {
			want += sumOf(uint64(size/4), seed(sender))
		}
		got, err := g.number(atSum)
		if err != nil {
			return 0, fmt.Errorf("link: GPU %d: %w", g.index, err)
		}
		if uint32(got) != want*uint32(operations) {
			wrong++
		}
	}
	return wrong, nil
}

// sumOf is the sum of the first words of a seed.
func sumOf(words uint64, seed uint32) uint32 {
	pairs := words / 2 * (words - 1)
	if words%2 != 0 {
		pairs = words * ((words - 1) / 2)
	}
	return uint32(pairs)*wordStep + uint32(words)*seed
}
