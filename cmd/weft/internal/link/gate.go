package link

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// A Gate keeps streams, of any GPUs, until the host has enqueued everything that is to be timed:
// then they begin together, and the host's part is not in the time.
type Gate struct {
	memory   *cuda.HostMemory
	patience time.Duration
}

// NewGate makes a gate, which the caller closes when no stream is held any more. A GPU waits for it
// no longer than patience, and then goes on.
func NewGate(c *cuda.Context, patience time.Duration) (*Gate, error) {
	memory, err := c.AllocHost(64, cuda.HostOptions{})
	if err != nil {
		return nil, fmt.Errorf("gate: %w", err)
	}
	clear(memory.Bytes())
	return &Gate{memory, patience}, nil
}

// Open lets pass what is held for this turn and those before it. Turns ascend from 1.
func (g *Gate) Open(turn uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&g.memory.Bytes()[0])), turn) // aligned: the memory begins at a page
}

// Close gives the gate's memory back.
func (g *Gate) Close() error { return g.memory.Close() }

// A Door is the gate's part on one GPU.
type Door struct {
	gate        *Gate
	program     *enginegpu.Program
	hold, empty *cuda.Function
}

// Door loads the kernels that hold streams of a context. The caller closes it before the gate.
func (g *Gate) Door(ctx context.Context, c *cuda.Context, cache *kernel.Cache) (*Door, error) {
	arch, err := c.Device().Architecture()
	if err != nil {
		return nil, fmt.Errorf("gate: %w", err)
	}
	for _, spec := range Kernels(arch) {
		if spec.Name != "link latency" {
			continue
		}
		p, err := enginegpu.LoadLocal(ctx, c, cache,
			enginegpu.Source{Spec: spec, Extern: []string{"link_gate", "link_empty"}})
		if err != nil {
			return nil, fmt.Errorf("gate: %w", err)
		}
		return &Door{gate: g, program: p, hold: p.Functions(0)[0], empty: p.Functions(0)[1]}, nil
	}
	return nil, fmt.Errorf("gate: no kernels for %s", arch)
}

// Hold keeps what is enqueued from now on until the gate opens for the turn.
func (d *Door) Hold(s *cuda.Stream, turn uint32) error {
	l, err := d.hold.Prepare(cuda.LaunchConfig{}, d.gate.memory.Pointer(), turn, uint64(d.gate.patience))
	if err != nil {
		return err
	}
	return l.Start(s)
}

// Empty is a kernel that does nothing: the least that any can take.
func (d *Door) Empty() (*cuda.Launch, error) { return d.empty.Prepare(cuda.LaunchConfig{}) }

// Close unloads the kernels.
func (d *Door) Close() error { return d.program.Close() }
