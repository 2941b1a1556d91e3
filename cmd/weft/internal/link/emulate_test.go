package link

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
)

// emulated is a machine on which the kernels themselves run.
func emulated(t *testing.T, gpus int) ([]*cuda.Context, Options) {
	t.Helper()
	emulate.Need(t)
	m := cudatest.New(cudatest.Config{Devices: gpus, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 3}})
	emulate.Attach(m, emulate.Options{Seed: 1, Tear: true, Limit: time.Minute})
	t.Cleanup(func() {
		if err := m.Check(); err != nil {
			t.Error(err)
		}
	})
	cache := kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: t.TempDir(), ReadOnly: []string{}})
	// Launches run where they are enqueued, so nobody would open the gate.
	return contexts(t, m), Options{SMs: []int{1, 3}, Replays: 1, Timeout: 20 * time.Second, Cache: cache, patience: 1}
}

// The kernels move every byte: of sizes that are less than a chunk, no multiple of one, and many
// for each warp.
func TestKernelsOnAnEmulatedMachine(t *testing.T) {
	for _, gpus := range []int{1, 3} {
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

// A wait of the device ends with its deadline, and says for whom it was.
func TestDeadlineOnAnEmulatedMachine(t *testing.T) {
	all, o := emulated(t, 2)
	o, err := o.settled(3)
	if err != nil {
		t.Fatal(err)
	}
	o.Timeout, o.Bytes = time.Millisecond, []int64{64}
	m, err := open(t.Context(), all, o)
	if err != nil {
		t.Fatal(err)
	}
	g := m.gpus[0]
	if err := m.reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	// GPU 1 never comes
	err = g.run("link_barrier", cuda.LaunchConfig{Block: cuda.Dim{X: maxGPUs}}, m.group(g, 0, 0), g.at(atState),
		g.at(atDone))
	var w *WaitError
	if err := errors.Join(err, m.settle(t.Context())); !errors.As(err, &w) ||
		*w != (WaitError{GPU: 0, Peer: 1, Expected: 1}) {
		t.Errorf("%v", err)
	}
	if ended, err := g.number(atDone); err != nil || ended != 0 {
		t.Errorf("a barrier that failed counts: %d, %v", ended, err)
	}
	if err := m.close(); err != nil {
		t.Error(err)
	}
}
