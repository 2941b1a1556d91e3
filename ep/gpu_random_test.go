package ep_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestRandomOperationsOnGPUs has operations of all kinds on one handle in random order, of batches
// that come back: what one leaves, in slots, words and the memory of received rows, must not show
// in another. The handle, its batches and their order follow from the seed, after which each test
// is named, so that one can be run alone.
func TestRandomOperationsOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		for seed := range uint64(m.times(2, 60)) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				// of the two handles that emulated GPUs have, one is packed, the other direct
				rng := rand.New(rand.NewPCG(seed, 34))
				ranks := 2 + rng.IntN(4)
				if !m.holds(ranks) {
					t.Skip("ranks would share a GPU")
				}
				s := drawSpec(rng, ranks)
				t.Logf("%d ranks, %+v", ranks, s)
				batches := drawBatches(rng, s, ranks)
				steps := drawSteps(rng, len(batches), m.times(20, 100))
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context,
					r *member,
				) error {
					return r.perform(ctx, batches, steps)
				})
			})
		}
	})
}

// drawn is one of the values.
func drawn[T any](rng *rand.Rand, values ...T) T { return values[rng.IntN(len(values))] }

// drawSpec draws a small handle of any layout and tuning that there can be for so many ranks.
func drawSpec(rng *rand.Rand, ranks int) ep.Spec {
	for {
		s := drawn(rng,
			ep.Spec{Layout: ep.ExpertMajor, Reduction: ep.Exact},
			ep.Spec{Layout: ep.ExpertMajor, Reduction: drawn(rng, ep.Partial, ep.PartialBySelection)},
			ep.Spec{Layout: ep.RankMajor, Reduction: ep.Partial, Weighting: ep.Plain},
			ep.Spec{Layout: ep.ExpertPacked, Reduction: ep.Exact, Alignment: 4},
			ep.Spec{
				Layout:    ep.TokenMajor,
				Reduction: drawn(rng, ep.Partial, ep.PartialBySelection), Weighting: ep.Plain,
			},
		)
		s.MaxTokens = drawn(rng, 1, 2, 8, 9, 31, 33, 40) // around what one warp has, and what kernels for few tokens have
		s.Experts, s.TopK, s.Counts = 3*ranks, 1+rng.IntN(4), ep.DeviceCounts
		s.SMs = ranks * (2 + rng.IntN(3)) // room for the two blocks that a rank has at least, also where all are on one GPU
		s.Hidden = drawn(rng, 40, 128, 640)
		if rng.IntN(2) == 0 {
			s.Payload, s.Hidden = ep.FP8, max(s.Hidden, ep.ScaleBlock)
			s.Quantize = drawn(rng, weft.InvalidDType, weft.BFloat16)
			s.ScaleOrder = drawn(rng, ep.RowMajorScales, ep.ColumnMajorScales)
		}
		s.Tuning = drawTuning(rng, s)
		// Not all that is drawn goes together: so many threads or units are not for all rows.
		if s.ValidateOn(ep.GPUEngine, ranks) == nil {
			return s
		}
	}
}

// drawTuning draws how kernels work, in such ways as the layout has.
func drawTuning(rng *rand.Rand, s ep.Spec) (t ep.Tuning) {
	t.Dispatch, t.Combine = drawSlots(rng), drawSlots(rng)
	switch s.Layout {
	case ep.ExpertPacked:
		t.Dispatch = drawDirect(rng, s.Quantize != weft.InvalidDType)
	case ep.TokenMajor:
		t.Dispatch, t.Combine = drawDirect(rng, s.Quantize != weft.InvalidDType), drawDirect(rng, false)
	default: // rows go through slots, of which a dispatch has units
		t.Dispatch.Units = drawn(rng, 0, 1, 2)
	}
	return t
}

func drawSlots(rng *rand.Rand) ep.KernelTuning {
	return ep.KernelTuning{
		Protocol:  drawn(rng, ep.ChosenProtocol, ep.ValueProtocol, ep.FlagProtocol),
		Senders:   drawn(rng, 0, -1, 1, 8, 15),
		Dependent: drawn(rng, 0, -1, 1),
		Threads:   drawn(rng, 0, 64, 96, 256, 512),
	}
}

// drawDirect draws the same for direct mode. Those that are quantised on the way never go
// by bulk copies.
func drawDirect(rng *rand.Rand, quantised bool) ep.KernelTuning {
	k := ep.KernelTuning{Blocks: drawn(rng, 0, 1, 2, 7), Threads: drawn(rng, 0, 64, 96, 512)}
	if quantised {
		return k
	}
	if k.Bulk = drawn(rng, 0, 1, -1); k.Bulk >= 0 {
		k.Parts, k.Warps = rng.IntN(5), rng.IntN(3)
	}
	return k
}

// drawBatches draws batches that ranks have unlike numbers of tokens of: none and as many as there
// can be are frequent.
func drawBatches(rng *rand.Rand, s ep.Spec, ranks int) []*eptest.Batch {
	var batches []*eptest.Batch
	for range 5 {
		tokens := make([]int, ranks)
		for r := range tokens {
			tokens[r] = drawn(rng, 0, s.MaxTokens, rng.IntN(s.MaxTokens+1), rng.IntN(s.MaxTokens+1))
		}
		seed := rng.Uint64()
		c := routed(s, seed, tokens, spread(s, seed))
		c.Ones = rng.IntN(3) == 0 // also where rows are their own flags
		batches = append(batches, c.Batch())
	}
	return batches
}

// beginning is how a step takes up a batch.
type beginning struct {
	name  string
	known bool // it goes by the routing that an earlier step has left
	bare  bool // nothing is received
	begin func(round *eptest.Round, ctx context.Context, s *weft.Stream) error
}

var beginnings = []beginning{
	{name: "prepare", bare: true, begin: (*eptest.Round).Prepare},
	{name: "prepare and dispatch at once", begin: (*eptest.Round).PrepareDispatch},
	{name: "prepare, then dispatch", begin: func(round *eptest.Round, ctx context.Context, s *weft.Stream) error {
		if err := round.Prepare(ctx, s); err != nil {
			return err
		}
		return round.Dispatch(ctx, s)
	}},
	{
		name: "prepare and send at once, receive",
		begin: func(round *eptest.Round, ctx context.Context, s *weft.Stream) error {
			if err := round.SendPrepareDispatch(ctx, s); err != nil {
				return err
			}
			return round.Receive(ctx)
		},
	},
	{name: "dispatch", known: true, begin: (*eptest.Round).Dispatch},
	{name: "send, receive", known: true, begin: func(round *eptest.Round, ctx context.Context, s *weft.Stream) error {
		if err := round.SendDispatch(ctx, s); err != nil {
			return err
		}
		return round.Receive(ctx)
	}},
}

// step is what all ranks do next, with one of the batches.
type step struct {
	batch int
	beginning
	blank                     bool // poison is put where results will stand
	combine, halves, backward bool // halves: combine sends, then receives
}

func (s step) String() string {
	return fmt.Sprintf("%s (blank %v, combine %v, halves %v, backward %v) of batch %d", s.name, s.blank,
		s.combine, s.halves, s.backward, s.batch)
}

// drawSteps draws n steps of a handle with so many batches. Fewer of the same seed are the first of
// them.
func drawSteps(rng *rand.Rand, batches, n int) []step {
	known := make([]bool, batches)
	var steps []step
	for len(steps) < n {
		s := step{
			batch: rng.IntN(batches), beginning: drawn(rng, beginnings...), blank: rng.IntN(3) == 0,
			halves: rng.IntN(2) == 0, backward: rng.IntN(3) == 0,
		}
		s.combine = !s.bare && rng.IntN(4) > 0
		if s.known && !known[s.batch] {
			continue
		}
		known[s.batch] = true
		steps = append(steps, s)
	}
	return steps
}

// perform takes the steps, and looks at what comes out of each.
func (r *member) perform(ctx context.Context, batches []*eptest.Batch, steps []step) error {
	return r.performAfter(ctx, batches, steps, func() {})
}

// performAfter is perform that calls pause before each step.
func (r *member) performAfter(ctx context.Context, batches []*eptest.Batch, steps []step, pause func()) (err error) {
	rounds := make([]*eptest.Round, len(batches))
	for i, b := range batches {
		if rounds[i], err = b.Round(r.e, r.Comm, r.handle); err != nil {
			return err
		}
	}
	for i, s := range steps {
		pause()
		if err := r.take(ctx, rounds[s.batch], s); err != nil {
			return fmt.Errorf("step %d, %v: %w", i, s, err)
		}
		rounds[s.batch].Lend() // where rows are direct they have to be given back in turn
	}
	for _, round := range rounds {
		err = errors.Join(err, round.Free())
	}
	return err
}

// take enqueues one step. Only where it puts poison do ranks wait for each other: otherwise one may
// be a step ahead.
func (r *member) take(ctx context.Context, round *eptest.Round, s step) error {
	if s.blank {
		if err := errors.Join(r.e.Sync(r.Comm), eptest.Meet(r.Comm), round.Blank(), eptest.Meet(r.Comm)); err != nil {
			return err
		}
	}
	if err := s.enqueue(ctx, round, r.stream); err != nil {
		return err
	}
	if err := r.Wait(ctx, r.stream); err != nil {
		return err
	}
	err := round.Describe()
	if !s.bare {
		err = errors.Join(err, round.CheckReceived())
	}
	if s.combine {
		err = errors.Join(err, round.CheckCombined())
	}
	if s.backward {
		err = errors.Join(err, round.CheckGradients())
	}
	return err
}

// enqueue makes the step's calls.
func (s step) enqueue(ctx context.Context, round *eptest.Round, stream *weft.Stream) error {
	if err := s.begin(round, ctx, stream); err != nil {
		return err
	}
	if s.combine {
		if err := s.bringHome(ctx, round, stream); err != nil {
			return err
		}
	}
	if s.backward {
		return round.Backward(ctx, stream)
	}
	return nil
}

// bringHome combines, at once or in halves.
func (s step) bringHome(ctx context.Context, round *eptest.Round, stream *weft.Stream) error {
	if !s.halves {
		return round.Combine(ctx, stream)
	}
	sent, err := round.SendCombine(ctx, stream)
	if err != nil {
		return err
	}
	return sent.Wait(ctx)
}
