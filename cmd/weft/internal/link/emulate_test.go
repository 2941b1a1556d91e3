package link

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/closer"
	"github.com/weftgo/weft/internal/ranktest"
)

// emulated is a machine on which the kernels themselves run.
func emulated(t *testing.T, gpus int) ([]*cuda.Context, Options) {
	t.Helper()
	g := ranktest.Emulated(t, cudatest.Config{
		Devices: gpus, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 3},
	}, emulate.Options{Seed: 1, Tear: true, Limit: time.Minute})
	// Launches run where they are enqueued, so nothing would open the gate.
	return g.Contexts, Options{SMs: []int{1, 3}, Replays: 1, Timeout: 20 * time.Second, Cache: g.Kernels, patience: 1}
}

// The kernels move every byte: of sizes that are less than a chunk, no multiple of one, and many
// for each warp.
func TestKernelsOnAnEmulatedMachine(t *testing.T) {
	sizes := []int{1, 2}
	if emulate.Everything() {
		sizes = []int{1, 2, 3}
	}
	for _, gpus := range sizes {
		t.Run(fmt.Sprint(gpus), func(t *testing.T) {
			all, o := emulated(t, gpus)
			switch {
			case gpus > 1:
				o.Bytes, o.SMs = []int64{5*storeChunk + 48}, []int{3}
			case testing.Short():
				o.Bytes, o.SMs = []int64{18*loadChunk + 16}, []int{1}
			case !emulate.Everything():
				o.Bytes = []int64{16, 5*storeChunk + 48}
			default:
				o.Bytes = []int64{16, 5*storeChunk + 48, 18*loadChunk + 16}
			}
			c, err := Measure(t.Context(), all, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range c.Rows {
				if !r.Verified || r.Wrong != 0 {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// Every way moves all rows: of fewer tokens than there are warps, and of so many that each warp fills its stages again.
func TestRowsOnAnEmulatedMachine(t *testing.T) {
	for gpus, tokens := range map[int]int{1: 3, 2: 30} {
		t.Run(fmt.Sprint(gpus), func(t *testing.T) {
			all, o := emulated(t, gpus)
			o.Tokens, o.SMs, o.Movers, o.Bytes = tokens, []int{1}, []Way{Engine}, []int64{16}
			c, err := Measure(t.Context(), all, o)
			if err != nil {
				t.Fatal(err)
			}
			rows := 0
			for _, r := range c.Rows {
				if !r.Verified || r.Wrong != 0 {
					t.Errorf("%+v", r)
				}
				if r.Pattern == Routed {
					rows++
				}
			}
			if want := len(rowWays) - max(0, 2-gpus); rows != want {
				t.Errorf("%d ways moved rows, want %d", rows, want)
			}
		})
	}
}

// GPUs without room for rows are measured as before, and refuse to move rows.
func TestNoRoomForRows(t *testing.T) {
	g := ranktest.Emulated(t, cudatest.Config{Devices: 2, Attributes: map[cuda.Attribute]int{
		cuda.MultiprocessorCount: 2, cuda.SharedMemoryPerBlockOptIn: 99 << 10,
	}}, emulate.Options{Limit: time.Minute})
	o := Options{
		SMs: []int{1}, Bytes: []int64{16}, Replays: 1, Timeout: 20 * time.Second, Cache: g.Kernels, patience: 1,
		Movers: []Way{Engine},
	}
	if _, err := Measure(t.Context(), g.Contexts, o); err != nil {
		t.Error(err)
	}
	o.Tokens = 1
	if _, err := Measure(t.Context(), g.Contexts, o); !errors.Is(err, cuda.ErrUnsupported) {
		t.Errorf("rows: %v", err)
	}
}

// A wait of the device ends with its deadline, and says for whom it was. What goes before it has the same deadline, on
// a machine that has more to do.
func TestDeadlineOnAnEmulatedMachine(t *testing.T) {
	all, o := emulated(t, 2)
	on, err := timing.GPUs{Contexts: all, Deadline: 4 * time.Second, Cache: o.Cache, Patience: 1}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	err = on.Run(t.Context(), func(ctx context.Context, of *timing.GPU) (err error) {
		var made closer.Stack
		defer func() { err = errors.Join(err, made.Close()) }()
		g := &gpu{GPU: of, options: o, sms: 3}
		if err := errors.Join(g.open(ctx, 64, &made), g.Meet(nil)); err != nil {
			return err
		}
		if g.Me == 1 { // never comes
			return g.Meet(nil)
		}
		err = g.run("link_barrier", cuda.LaunchConfig{Block: cuda.Dim{X: maxGPUs}}, g.lane.Group(0), g.state(), g.at(atDone))
		waited := g.Comm.Wait(ctx, g.Work)
		if p, ok := errors.AsType[*weft.PeerError](waited); !ok || p.Rank != 1 || !errors.Is(waited, weft.ErrTimeout) {
			t.Errorf("%v", waited)
		}
		if ended, err := g.number(atDone); err != nil || ended != 0 {
			t.Errorf("a barrier that failed counts: %d, %v", ended, err)
		}
		return errors.Join(err, g.Meet(nil))
	})
	if err != nil {
		t.Error(err)
	}
}
