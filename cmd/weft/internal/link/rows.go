package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/closer"
)

// Rows of a dispatch, as it moves them when it is known where they go. Each token goes once to every GPU that has one
// of its experts, to the next free row there of its source. What a dispatch has besides is left out: that is its floor.

// RowBytes is the length of a row: 7168 elements of bf16. Tokens select rowTopK of rowExperts.
const (
	RowBytes            = 14 << 10
	rowTopK, rowExperts = 8, 256
)

// The kernel's: MOST_TARGETS and NOWHERE of rows.cu, and the threads of a block.
const (
	mostTargets = 8
	nowhere     = 1<<32 - 1
	rowThreads  = 512
)

// rowWay is a way to move rows.
type rowWay struct {
	way    Way
	parts  int // of a row
	warps  int // of a block that carry
	stages int // parts in the shared memory of each
	turned bool
	own    ownRows
}

// ownRows says how the rows that a GPU has for itself go.
type ownRows uint8

const (
	ownAsOthers ownRows = iota
	ownByStores         // ordinary stores, of the warps that do not carry
	ownNot
)

// rowWays are the ways, the dispatch's own first. Shared memory has room for 14 to 15 rows.
var rowWays = []rowWay{
	{way: RowsWhole, parts: 1, warps: 14, stages: 1},
	{way: RowsTurned, parts: 1, warps: 14, stages: 1, turned: true},
	{way: RowsAhead, parts: 1, warps: 7, stages: 2, turned: true},
	{way: RowsHalves, parts: 2, warps: 14, stages: 2, turned: true},
	{way: RowsThirds, parts: 3, warps: 14, stages: 3, turned: true},
	{way: RowsOwnStores, parts: 1, warps: 12, stages: 1, turned: true, own: ownByStores},
	{way: RowsPeers, parts: 1, warps: 14, stages: 1, turned: true, own: ownNot},
}

// chunk is the bytes of a part, at most.
func (w rowWay) chunk() int { return ((RowBytes+w.parts-1)/w.parts + 15) &^ 15 }

// shared is the dynamic shared memory of a block.
func (w rowWay) shared() int { return w.warps * w.stages * w.chunk() }

// rowShared is what the way has that needs most of it. rowOwnBytes bounds the kernel's own.
var rowShared = slices.MaxFunc(rowWays, func(a, b rowWay) int { return a.shared() - b.shared() }).shared()

const rowOwnBytes = 1 << 10

// rows is the kernel's argument: Rows of rows.cu.
type rows struct {
	X, To, Own    cuda.Pointer
	Tokens, Bytes uint32
	Parts, Chunk  uint32
	Warps, Stages uint32
	Targets       targets
}

// routed has the GPUs of a source's tokens, in the order of their first selections.
func routed(source, tokens, gpus int) [][]int {
	random := rand.New(rand.NewPCG(uint64(source), 1))
	all := make([][]int, tokens)
	for t := range all {
		for _, expert := range random.Perm(rowExperts)[:rowTopK] {
			if to := expert * gpus / rowExperts; !slices.Contains(all[t], to) {
				all[t] = append(all[t], to)
			}
		}
	}
	return all
}

// received has the tokens that a GPU receives from a source, a row each.
func received(all [][]int, gpu int) (tokens []uint32) {
	for t, to := range all {
		if slices.Contains(to, gpu) {
			tokens = append(tokens, uint32(t))
		}
	}
	return tokens
}

// lists are the kernel's lists of where the source's tokens go, and of its own rows where others store them.
func (w rowWay) lists(all [][]int, source, gpus int) (to, own []uint32) {
	used := make([]uint32, gpus)
	for t, order := range all {
		list := slices.Repeat([]uint32{nowhere}, mostTargets)
		mine := uint32(nowhere)
		if order = slices.Clone(order); w.turned { // after the source, and with another GPU for each token
			turn := func(gpu int) int { return (gpu + 2*gpus - source - 1 + gpus - t%gpus) % gpus }
			slices.SortFunc(order, func(a, b int) int { return turn(a) - turn(b) })
		}
		for k, gpu := range order {
			row := used[gpu]
			used[gpu]++
			switch {
			case gpu == source && w.own == ownByStores:
				mine = row
			case gpu == source && w.own == ownNot:
			default:
				list[k] = uint32(gpu)<<24 | row
			}
		}
		to, own = append(to, list...), append(own, mine)
	}
	return to, own
}

// rowTrials are the ways on every number of SMs, if they were asked for.
func (g *gpu) rowTrials() (all []trial) {
	if g.options.Tokens == 0 {
		return nil
	}
	for _, w := range rowWays {
		if g.Ranks == 1 && w.own == ownNot {
			continue
		}
		for _, sms := range g.options.SMs {
			all = append(all, func(ctx context.Context) (Row, error) {
				row, err := g.moveRows(ctx, w, g.options.Tokens, sms)
				if err != nil {
					err = fmt.Errorf("%s: %w", w.way, err)
				}
				return row, err
			})
		}
	}
	return all
}

// moveRows measures a way: the rows, and a barrier behind them.
func (g *gpu) moveRows(ctx context.Context, w rowWay, tokens, sms int) (row Row, err error) {
	var made closer.Stack
	defer func() { err = errors.Join(err, made.Close()) }()
	upload := func(words []uint32) (cuda.Pointer, error) {
		b := make([]byte, max(4, 4*len(words)))
		for i, v := range words {
			binary.LittleEndian.PutUint32(b[4*i:], v)
		}
		m, err := g.Context.Alloc(len(b))
		if err != nil {
			return 0, err
		}
		made.Add(m.Close)
		return m.Pointer(), g.Context.Upload(m.Pointer(), b)
	}

	size, seed := tokens*RowBytes, g.nextSeeds()
	row = Row{Op: "link", Way: w.way, Pattern: Routed, GPUs: g.Ranks, SMs: sms, Threads: rowThreads}
	a := rows{
		X: g.source(g.Me), Tokens: uint32(tokens), Bytes: RowBytes, Parts: uint32(w.parts), Chunk: uint32(w.chunk()),
		Warps: uint32(w.warps), Stages: uint32(w.stages), Targets: targets{Count: uint32(g.Ranks)},
	}
	arrived, of := make([]cuda.Pointer, g.Ranks), make([]int, g.Ranks)
	for source := range g.Ranks {
		all, sent := routed(source, tokens, g.Ranks), 0
		for gpu := range g.Ranks {
			if gpu != source || g.Ranks == 1 {
				sent += len(received(all, gpu))
			}
		}
		row.Bytes = max(row.Bytes, int64(sent)*RowBytes)
		a.Targets.At[source] = g.inbox(source, g.Me, size)
		here := received(all, g.Me)
		if source != g.Me || w.own != ownNot {
			of[source] = len(here)
		}
		if arrived[source], err = upload(here); err != nil {
			return row, err
		}
		if source != g.Me {
			continue
		}
		to, own := w.lists(all, source, g.Ranks)
		if a.To, err = upload(to); err != nil {
			return row, err
		}
		if w.own == ownByStores {
			if a.Own, err = upload(own); err != nil {
				return row, err
			}
		}
	}
	row.Operations = operations(row.Bytes, sms)
	if err := errors.Join(g.reset(ctx), g.fill(ctx, size, seed)); err != nil {
		return row, err
	}
	move, err := g.part("link_rows", sms, rowThreads, w.shared(), a, uint32(g.Me))
	if err != nil {
		return row, err
	}
	meet, err := g.functions["link_barrier"].Prepare(cuda.LaunchConfig{Block: cuda.Dim{X: maxGPUs}}, g.lane.Group(0),
		g.state(), g.at(atDone))
	if err != nil {
		return row, err
	}
	graph, err := g.capture(ctx, row.Operations, func() error { return errors.Join(move(), meet.Start(g.Stream)) })
	if err != nil {
		return row, err
	}
	made.Add(graph.Close)
	check := func() (int64, error) {
		err := g.Stream.Memset(g.at(atWrong), 0, 8)
		for source, n := range of {
			if n > 0 && err == nil {
				err = g.run("link_rows_check", filling(n*RowBytes), g.inbox(g.Me, source, size), arrived[source], uint32(n),
					uint32(RowBytes), seed(source), g.at(atWrong))
			}
		}
		if err := errors.Join(err, g.synchronize(ctx)); err != nil {
			return 0, err
		}
		n, err := g.number(atWrong)
		return int64(n), err
	}
	if _, err := g.replay(ctx, graph); err != nil {
		return row, err
	}
	first, err := check()
	if err != nil {
		return row, err
	}
	if err := g.timed(ctx, graph, &row); err != nil {
		return row, err
	}
	last, err := check()
	if err == nil {
		row.Wrong, err = g.sum(first + last)
	}
	row.Verified = err == nil && row.Wrong == 0
	return row, err
}
