package ep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/ranktest"
)

// What an H200 has, and each of its SMs.
const sms, smRegisters, mostThreads = 132, 65536, 2048

// heldBy is how many blocks an SM holds, as the CUDA programming guide has it: registers are handed
// to warps, 8 a thread at a time, and the warps of a block go to the SM's four parts in turns.
func heldBy(threads, registers int) int {
	warps := (threads/32 + 3) / 4 * 4
	return min(mostThreads/threads, smRegisters/4/((registers+7)/8*8*32)*4/warps)
}

// TestRoomOnEmulatedGPUs makes handles of kernels that have many registers, until there is no room:
// all of their kernels fit on the GPU together, whichever of them run, and where the Spec says how
// many threads their blocks have, they have as many.
func TestRoomOnEmulatedGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow")
	}
	emulate.Need(t)
	cache := kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: t.TempDir(), ReadOnly: []string{}})
	for i, registers := range []int{88, 128} {
		for j, ranks := range []int{1, 2} {
			for k, asked := range []int{0, sms} {
				for l, threads := range [][2]int{{0, 0}, {64, 512}, {96, 288}, {256, 192}} {
					if (i+j+k+l)%2 != 0 && !emulate.Everything() {
						continue
					}
					t.Run(fmt.Sprintf("%d registers/%d ranks/%d SMs/%d and %d threads", registers, ranks, asked,
						threads[0], threads[1]), func(t *testing.T) {
						s := largeRows
						s.MaxTokens, s.SMs = 128, asked
						s.Tuning.Dispatch.Threads, s.Tuning.Combine.Threads = threads[0], threads[1]
						fitTogether(t, cache, s, ranks, registers)
					})
				}
			}
		}
	}
}

func fitTogether(t *testing.T, cache *kernel.Cache, s ep.Spec, ranks, registers int) {
	t.Helper()
	g := ranktest.Emulated(t, cudatest.Config{
		Registers: registers, Memory: 8 << 30, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: sms},
	}, emulate.Options{})
	ctx := testContext(t)
	e := eptest.NewDevice(g.Contexts, weft.WithKernels(cache), weft.WithDeadline(gpuDeadline)).OfSizes(ranks)
	err := e.Ranks(ranks, func(comm *weft.Comm) (err error) {
		var made []*ep.Handle
		for err == nil && len(made) < 3 {
			var h *ep.Handle
			if h, err = ep.NewHandle(ctx, comm, s); err == nil {
				made = append(made, h)
			}
		}
		if errors.Is(err, weft.ErrUnsupported) && len(made) > 0 {
			err = nil
		}
		together, held := 0, mostThreads
		for _, h := range made {
			blocks, threads := ep.Grids(h)
			most := 0
			for i := range blocks {
				fits := heldBy(threads[i], registers)
				if blocks[i] > sms*fits {
					err = errors.Join(err, fmt.Errorf("%d blocks of %d threads, of which %d SMs hold %d",
						blocks[i], threads[i], sms, sms*fits))
				}
				most, held = max(most, blocks[i]), min(held, fits)
			}
			for i, want := range []int{s.Tuning.Dispatch.Threads, s.Tuning.Combine.Threads} {
				if want != 0 && threads[i] != want {
					err = errors.Join(err, fmt.Errorf("blocks of %d threads where %d were asked for", threads[i], want))
				}
			}
			together += most * ranks
		}
		if len(made)*ranks > 1 && together > sms*held {
			err = errors.Join(err,
				fmt.Errorf("%d handles of %d ranks with %d blocks together, of which %d SMs hold %d", len(made),
					ranks, together, sms, sms*held))
		}
		for _, h := range made {
			err = errors.Join(err, h.Close())
		}
		return err
	})
	if err := errors.Join(err, e.Close()); err != nil {
		t.Error(err)
	}
}

// TestSerialGroupOnGPUs makes handles that take turns, and one that may run beside them, and has them
// exchange rows one after another. Those that take turns have room where one has.
func TestSerialGroupOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		if !m.holds(ranks) {
			t.Skip("ranks would share a GPU")
		}
		specs := []ep.Spec{tokenRows, exactRows, packedRows, directRows, largeRows, tokenRows}
		asked := 1024
		if m.emulated {
			asked = 2 // of 16: a handle of another group is to have room beside all of this one
		}
		for i := range specs {
			specs[i] = sized(specs[i], ranks)
			specs[i].SMs, specs[i].SerialGroup = asked, 3
		}
		members(t, m, ranks, specs[0], gpuDeadline, func(ctx context.Context, r *member) (err error) {
			handles := []*member{r}
			defer func() {
				for _, o := range handles[1:] {
					err = errors.Join(err, o.handle.Close())
				}
			}()
			open := func(s ep.Spec) error {
				h, err := ep.NewHandle(ctx, r.Comm, s)
				if err == nil {
					handles = append(handles, &member{r.Comm, r.e, h, r.stream})
				}
				return err
			}
			for _, s := range specs[1:] {
				if err := open(s); err != nil {
					return err
				}
			}
			// Of those that have been there another changes nothing, but one that may run beside
			// them.
			room := func() (int, error) {
				fit, err := enginegpu.Fit(ctx, r.Comm, enginegpu.Want{Op: "test", Cost: 1024, SMs: 1024})
				if err != nil {
					return 0, err
				}
				return fit.Blocks, nil
			}
			before, err := room()
			if err != nil {
				return err
			}
			for _, s := range specs {
				if err := errors.Join(open(s), eptest.Meet(r.Comm)); err != nil {
					return err
				}
			}
			if now, err := room(); err != nil || now != before {
				return fmt.Errorf("room for %d blocks, and for %d before there were as many handles of the "+
					"serial group again (%v)", now, before, err)
			}
			beside := specs[0]
			beside.SerialGroup = 4
			if err := errors.Join(eptest.Meet(r.Comm), open(beside), eptest.Meet(r.Comm)); err != nil {
				return err
			}
			if now, err := room(); err != nil || now >= before {
				return fmt.Errorf("room for %d blocks beside a handle of another serial group, and for %d before (%v)",
					now, before, err)
			}
			specs := append(slices.Concat(specs, specs), beside)
			var rounds []*eptest.Round
			for i, o := range handles {
				batch := evenly(specs[i], ranks, uint64(i), min(specs[i].MaxTokens, 9)).Batch()
				round, err := batch.Round(r.e, r.Comm, o.handle)
				if err != nil {
					return err
				}
				rounds = append(rounds, round)
			}
			if err := errors.Join(r.e.Sync(r.Comm), eptest.Meet(r.Comm)); err != nil {
				return err
			}
			for range m.times(2, 50) {
				for i := range rounds { // nothing waits between them
					if err := rounds[i].PrepareDispatch(ctx, r.stream); err != nil {
						return err
					}
					if err := rounds[i].Combine(ctx, r.stream); err != nil {
						return err
					}
				}
			}
			if err := r.rest(ctx); err != nil {
				return err
			}
			for _, round := range rounds {
				err = errors.Join(err, round.Check(), round.Free())
			}
			return err
		})
	})
}

// TestSerialGroupOnSharedGPU: ranks that share a GPU have as much for the later handles of a SerialGroup as
// for the first.
func TestSerialGroupOnSharedGPU(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow")
	}
	const ranks = 4
	s := sized(largeRows, ranks)
	s.SMs, s.SerialGroup = 1024, 1
	members(t, emulatedMachine(t, 1, emulate.Options{}), ranks, s, gpuDeadline,
		func(ctx context.Context, r *member) error {
			first, _ := ep.Grids(r.handle)
			for range 3 {
				h, err := ep.NewHandle(ctx, r.Comm, s)
				if err != nil {
					return err
				}
				defer h.Close()
				if blocks, _ := ep.Grids(h); blocks != first {
					return fmt.Errorf("%v blocks, and the first handle had %v", blocks, first)
				}
			}
			return eptest.Meet(r.Comm)
		})
}
