package timing

import (
	"context"
	_ "embed"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

//go:embed kernels/gate.cu
var gateSource string

// Kernels are the kernels for timing on an architecture, such as sm_90a.
func Kernels(arch string) []kernel.Spec {
	return []kernel.Spec{{Name: "timing gate", Source: gateSource, Headers: device.Headers(), Arch: arch}}
}

// A gate keeps streams, of any GPUs, until the host has enqueued everything that is to be timed:
// then they begin together, and the host's part is not in the time.
type gate struct {
	memory   *cuda.HostMemory
	patience time.Duration
}

// newGate makes a gate, which the caller closes when no stream is held any more. A GPU waits for it
// no longer than patience, and then goes on.
func newGate(c *cuda.Context, patience time.Duration) (*gate, error) {
	memory, err := c.AllocHost(64, cuda.HostOptions{})
	if err != nil {
		return nil, fmt.Errorf("gate: %w", err)
	}
	clear(memory.Bytes())
	return &gate{memory, patience}, nil
}

// Open releases the work that is held for this turn and earlier ones. Turns ascend from 1.
func (g *gate) Open(turn uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&g.memory.Bytes()[0])), turn) // aligned: the memory begins at a page
}

// Close gives the gate's memory back.
func (g *gate) Close() error { return g.memory.Close() }

// A door is the gate's part on one GPU.
type door struct {
	gate        *gate
	program     *enginegpu.Program
	hold, empty *cuda.Function
}

// door loads the kernels that hold streams of a context. The caller closes it before the gate.
func (g *gate) door(ctx context.Context, c *cuda.Context, cache *kernel.Cache) (*door, error) {
	arch, err := c.Device().Architecture()
	if err != nil {
		return nil, fmt.Errorf("gate: %w", err)
	}
	source := enginegpu.Source{Spec: Kernels(arch)[0], Extern: []string{"timing_gate", "timing_empty"}}
	p, err := enginegpu.LoadLocal(ctx, c, cache, source)
	if err != nil {
		return nil, fmt.Errorf("gate: %w", err)
	}
	return &door{gate: g, program: p, hold: p.Functions(0)[0], empty: p.Functions(0)[1]}, nil
}

// Hold holds work that is enqueued from now on until the gate opens for the turn.
func (d *door) Hold(s *cuda.Stream, turn uint32) error {
	l, err := d.hold.Prepare(cuda.LaunchConfig{}, d.gate.memory.Pointer(), turn, uint64(d.gate.patience))
	if err != nil {
		return err
	}
	return l.Start(s)
}

// Close unloads the kernels.
func (d *door) Close() error { return d.program.Close() }
