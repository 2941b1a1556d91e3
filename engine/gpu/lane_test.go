package gpu_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/internal/ranktest"
)

// errNoGPUs says that this machine can emulate no GPUs.
var errNoGPUs = errors.New("no GPUs can be emulated here")

const deadline = 10 * time.Second

// onGPUs runs a rank on each of so many emulated GPUs.
func onGPUs(ranks int, body func(ctx context.Context, comm *weft.Comm) error) (err error) {
	dir, err := os.MkdirTemp("", "weft-kernels")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	g, err := ranktest.Emulate(cudatest.Config{Devices: ranks}, emulate.Options{}, dir)
	if errors.Is(err, cuda.ErrUnsupported) {
		return errNoGPUs
	}
	if err != nil {
		return err
	}
	err = ranktest.Run(ranks, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(deadline))
	}, body)
	return errors.Join(err, g.Close())
}

// absent stands where no rank has put its word.
const absent = 7

// gatherOnce gathers a word, and gives what came.
func gatherOnce(ctx context.Context, comm *weft.Comm, g *Gatherer, s *weft.Stream, word uint32) (got []uint32,
	err error,
) {
	c := comm.Device().Context()
	m, err := c.Alloc(4 * (1 + comm.Size()))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	raw := binary.LittleEndian.AppendUint32(nil, word)
	for range comm.Size() {
		raw = binary.LittleEndian.AppendUint32(raw, absent)
	}
	if err := c.Upload(m.Pointer(), raw); err != nil {
		return nil, err
	}
	if err := errors.Join(g.Gather(ctx, s, m.Pointer(), m.Pointer().Add(4)), comm.Wait(ctx, s)); err != nil {
		return nil, err
	}
	if err := c.Download(raw[4:], m.Pointer().Add(4)); err != nil {
		return nil, err
	}
	for at := 4; at < len(raw); at += 4 {
		got = append(got, binary.LittleEndian.Uint32(raw[at:]))
	}
	return got, nil
}

// lanes runs ranks that have a Gatherer each.
func lanes(t *testing.T, ranks int, body func(ctx context.Context, comm *weft.Comm, g *Gatherer) error) {
	t.Helper()
	err := onGPUs(ranks, func(ctx context.Context, comm *weft.Comm) error {
		g, err := NewGatherer(ctx, comm)
		if err != nil {
			return err
		}
		return errors.Join(body(ctx, comm, g), g.Close())
	})
	if errors.Is(err, errNoGPUs) {
		t.Skip(err)
	}
	if err != nil {
		t.Error(err)
	}
}

func expect(got []uint32, err error, want ...uint32) error {
	if err == nil && !slices.Equal(got, want) {
		err = fmt.Errorf("gathered %v, want %v", got, want)
	}
	return err
}

// TestLaneInGraphs: operations may be replayed among eager ones, in graphs of several.
func TestLaneInGraphs(t *testing.T) {
	lanes(t, 3, func(ctx context.Context, comm *weft.Comm, g *Gatherer) (err error) {
		c := comm.Device().Context()
		stream, err := c.NewStream(cuda.StreamOptions{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stream.Close()) }()
		s := weft.StreamOf(stream)
		const operations = 2
		m, err := c.Alloc(4 * (1 + operations*comm.Size()))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		graph, err := stream.Capture(func() error {
			for i := range operations {
				if err := g.Gather(ctx, s, m.Pointer(), m.Pointer().Add(4*(1+i*comm.Size()))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		exec, err := graph.Instantiate()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, exec.Close(), graph.Close()) }()
		for round := range uint32(5) {
			word := 10*round + uint32(comm.Rank())
			if err := c.Upload(m.Pointer(), binary.LittleEndian.AppendUint32(nil, word)); err != nil {
				return err
			}
			if err := errors.Join(exec.Launch(stream), comm.Wait(ctx, s)); err != nil {
				return err
			}
			raw := make([]byte, 4*operations*comm.Size())
			if err := c.Download(raw, m.Pointer().Add(4)); err != nil {
				return err
			}
			for i := range operations * comm.Size() {
				if got, want := binary.LittleEndian.Uint32(raw[4*i:]), 10*round+uint32(i%comm.Size()); got != want {
					return fmt.Errorf("replay %d: word %d is %d, want %d", round, i, got, want)
				}
			}
			got, err := gatherOnce(ctx, comm, g, s, 100+word)
			if err := expect(got, err, 100+10*round, 101+10*round, 102+10*round); err != nil {
				return fmt.Errorf("between replays: %w", err)
			}
		}
		return nil
	})
}

// TestLaneAfterMask: a rank that does not come is named, and the others go on without it in other
// memory.
func TestLaneAfterMask(t *testing.T) {
	var gathered, named sync.WaitGroup
	gathered.Add(3)
	named.Add(2)
	lanes(t, 3, func(ctx context.Context, comm *weft.Comm, g *Gatherer) error {
		got, err := gatherOnce(ctx, comm, g, nil, uint32(comm.Rank()))
		gathered.Done()
		if err := expect(got, err, 0, 1, 2); err != nil {
			return err
		}
		gathered.Wait()
		if comm.Rank() == 1 {
			comm.Abort()
			named.Wait()
			return nil
		}
		_, err = gatherOnce(ctx, comm, g, nil, 0)
		named.Done()
		var peer *weft.PeerError
		if !errors.As(err, &peer) || peer.Rank != 1 {
			return fmt.Errorf("%v, want an error that names rank 1", err)
		}
		if err := comm.SetMask(ctx, 1); err != nil {
			return err
		}
		got, err = gatherOnce(ctx, comm, g, nil, uint32(comm.Rank()))
		return expect(got, err, 0, absent, 2)
	})
}

// TestLaneRefuses: a second half that is to come, and a lane that is closed, are told in words.
func TestLaneRefuses(t *testing.T) {
	lanes(t, 1, func(ctx context.Context, _ *weft.Comm, g *Gatherer) error {
		half := g.lane.Sent("gather", nil)
		_, err := g.lane.Enter(ctx, "gather", nil)
		if !errors.Is(err, weft.ErrInvalid) ||
			!strings.Contains(err.Error(), "the gatherer's gather has been sent and not received") {
			return fmt.Errorf("with a half to come: %w", err)
		}
		if _, err := half.Resume(); err != nil {
			return err
		}
		if _, err := g.lane.Enter(ctx, "gather", nil); err != nil {
			return err
		}
		if err := g.Close(); err != nil {
			return err
		}
		if _, err := g.lane.Enter(ctx, "gather", nil); !errors.Is(err, weft.ErrClosed) ||
			!strings.Contains(err.Error(), "gather: gatherer") {
			return fmt.Errorf("when closed: %w", err)
		}
		return nil
	})
}

// TestLoadRefuses: kernels that one rank cannot load are loaded on none.
func TestLoadRefuses(t *testing.T) {
	err := onGPUs(2, func(ctx context.Context, comm *weft.Comm) error {
		spec := kernel.Spec{Name: "gather", Source: gatherSource, Arch: comm.Device().Arch()} // no headers
		if comm.Rank() == 0 {
			spec.Source = `extern "C" __global__ void gather() {}`
		}
		_, err := gpu.Load(ctx, comm, "test", gpu.Source{Spec: spec, Extern: []string{"gather"}})
		if err == nil {
			return errors.New("loaded on one of two ranks")
		}
		var peer *weft.PeerError
		if comm.Rank() == 0 && (!errors.As(err, &peer) || peer.Rank != 1) {
			return fmt.Errorf("%w: does not name rank 1", err)
		}
		return nil
	})
	if errors.Is(err, errNoGPUs) {
		t.Skip(err)
	}
	if err != nil {
		t.Error(err)
	}
}
