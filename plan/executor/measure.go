package executor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/internal/launch"
)

// Plans are measured in so many turns, behind one that does not count. A turn has launches of so many bytes together,
// but not more than some and not fewer than a few.
const (
	measuredTurns  = 7
	measuredBytes  = 16 << 20
	fewestLaunches = 3
	mostLaunches   = 300
)

// Measure is how long a launch of each plan takes on ranks of this process, on the host: the median of several turns,
// in which plans follow each other. The plans are for the same number of ranks, and take a message of so many bytes.
func Measure(ctx context.Context, plans []*plan.File, bytes int) ([]time.Duration, error) {
	if len(plans) == 0 {
		return nil, nil
	}
	ranks, err := bootstrap.NewInProcess(len(plans[0].Ranks))
	if err != nil {
		return nil, err
	}
	took, errs := make([][]time.Duration, len(plans)), make([]error, len(ranks))
	var running sync.WaitGroup
	for r, b := range ranks {
		running.Go(func() {
			comm, err := weft.Join(ctx, weft.WithBootstrap(b))
			if err != nil {
				errs[r] = err
				return
			}
			err = measure(ctx, comm, plans, bytes, func(i int, d time.Duration) {
				if r == 0 {
					took[i] = append(took[i], d)
				}
			})
			errs[r] = errors.Join(err, comm.Close())
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err // the others say the same, or follow from it
		}
	}
	medians := make([]time.Duration, len(plans))
	for i := range medians {
		slices.Sort(took[i])
		medians[i] = took[i][len(took[i])/2]
	}
	return medians, nil
}

// measure runs the plans on one rank.
func measure(
	ctx context.Context, comm *weft.Comm, plans []*plan.File, bytes int, say func(int, time.Duration),
) (err error) {
	x, err := New(ctx, comm, Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	r, largest := comm.Rank(), 1
	loaded := make([]*Plan, len(plans))
	for i, f := range plans {
		if loaded[i], err = x.Load(ctx, f); err != nil {
			return err
		}
		_, _, size := f.Place(r, chunkOf(f, bytes))
		largest = max(largest, size)
	}
	w, err := comm.Alloc(ctx, largest)
	if err != nil {
		return err
	}
	times := max(fewestLaunches, min(mostLaunches, measuredBytes/max(bytes, 1)))
	for turn := range measuredTurns + 1 {
		for i, p := range loaded {
			f, chunk := plans[i], chunkOf(plans[i], bytes)
			in, out, _ := f.Place(r, chunk)
			ins, outs := w.Bytes()[in:][:f.Ranks[r].Input*chunk], w.Bytes()[out:][:f.Ranks[r].Output*chunk]
			t := elementsOf(p.plan, r, len(ins), len(outs))
			begun := time.Now()
			for range times {
				err := p.Execute(ctx, nil, weft.TensorAt(outs, t, len(outs)/t.Size()), weft.TensorAt(ins, t, len(ins)/t.Size()))
				if err != nil {
					return err
				}
			}
			if turn > 0 {
				say(i, time.Since(begun)/time.Duration(times))
			}
		}
	}
	return nil
}

// chunkOf is the bytes of a chunk of a message.
func chunkOf(f *plan.File, bytes int) int { return bytes / cost.Bytes(f, 1) }

// elementsOf is numbers of 32 bits, or bytes where the plan cuts those.
func elementsOf(p *launch.Plan, rank, in, out int) weft.DType {
	if p.Fits(rank, weft.Int32, in, out) == nil {
		return weft.Int32
	}
	return weft.Uint8
}
