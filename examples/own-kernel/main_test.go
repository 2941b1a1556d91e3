package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// check adds floats in place.
func check(ctx context.Context, comm *weft.Comm, group *collective.Group, memory *cuda.Memory, n int,
) error {
	ranks, raw := comm.Size(), make([]byte, 4*n)
	for i := range n {
		x := float32(comm.Rank()*i) + 0.5
		binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(x))
	}
	device := comm.Device().Context()
	t := weft.DeviceTensor(memory.Pointer(), weft.Float32, n)
	if err := errors.Join(device.Upload(memory.Pointer(), raw), group.AllReduce(ctx, nil, t, t, weft.Sum),
		device.Download(raw, memory.Pointer())); err != nil {
		return err
	}
	if own := group.Algorithm() == "example/packets"; own != (4*n <= most) {
		return fmt.Errorf("%d floats by %s", n, group.Algorithm())
	}
	for i := range n {
		x := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		if want := float32(ranks*(ranks-1)/2*i) + 0.5*float32(ranks); x != want {
			return fmt.Errorf("%d floats by %s: x[%d] = %v, want %v", n, group.Algorithm(), i, x, want)
		}
	}
	return nil
}

// adds runs the example, and checks sums and which algorithm made them.
func adds(t *testing.T, g *ranktest.GPUs, ranks int) {
	t.Helper()
	err := ranktest.Run(ranks, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(20*time.Second))
	}, func(ctx context.Context, comm *weft.Comm) error {
		if err := run(ctx, comm); err != nil {
			return err
		}
		memory, err := comm.Device().Context().Alloc(2 * most) // now: later it could wait for kernels of a rank beside
		if err != nil {
			return err
		}
		group, err := newGroup(ctx, comm)
		if err != nil {
			return err
		}
		for _, n := range []int{1, 7, 513, most / 4, most/4 + 1} {
			if err := check(ctx, comm, group, memory, n); err != nil {
				return err
			}
		}
		return errors.Join(group.Close(), memory.Close())
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOnEmulatedGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow")
	}
	for _, ranks := range []int{2, 3} {
		adds(t, ranktest.Emulated(t, cudatest.Config{Devices: ranks}, emulate.Options{Seed: 1, Tear: true}), ranks)
	}
}

// TestOwnKernelOnGPUs is the same on real ones.
func TestOwnKernelOnGPUs(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		adds(t, ranktest.Real(t), ranks)
	}
}
