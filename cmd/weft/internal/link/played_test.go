package link

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/ranktest"
)

// wordAt is word i of a seed, as kernels have it.
func wordAt(seed uint32, i int) uint32 { return seed + uint32(i)*wordStep }

// play registers Go functions for all kernels: each does as a whole what its threads do together.
func play(m *cudatest.Machine) {
	words := func(c *cudatest.Call, p cuda.Pointer, bytes uint64) []uint32 {
		return cudatest.Slice[uint32](c, p, int(bytes/4))
	}
	m.Kernel("link_fill", func(c *cudatest.Call, to cuda.Pointer, pieces uint64, seed uint32) {
		for i, w := 0, words(c, to, 16*pieces); i < len(w); i++ {
			w[i] = wordAt(seed, i)
		}
	})
	m.Kernel("link_check", func(c *cudatest.Call, from cuda.Pointer, pieces uint64, seed, period uint32,
		wrong cuda.Pointer,
	) {
		bad := uint64(0)
		for i, w := range words(c, from, 16*pieces) {
			index := i
			if period != 0 && i/4%int(period) != 0 {
				index = i % (4 * int(period))
			}
			if w != wordAt(seed, index) {
				bad++
			}
		}
		atomic.AddUint64(&cudatest.Slice[uint64](c, wrong, 1)[0], bad)
	})
	m.Kernel("link_store", func(c *cudatest.Call, t targets, pieces uint64, seed uint32) {
		for k := range t.Count {
			for i, w := 0, words(c, t.At[k], 16*pieces); i < len(w); i++ {
				w[i] = wordAt(seed, i)
			}
		}
	})
	m.Kernel("link_bulk_store", func(c *cudatest.Call, t targets, bytes uint64, chunk, seed uint32) {
		for k := range t.Count {
			for i, w := 0, words(c, t.At[k], bytes); i < len(w); i++ {
				index := i % (int(chunk) / 4)
				if index < 4 {
					index = i
				}
				w[i] = wordAt(seed, index)
			}
		}
	})
	sum := func(c *cudatest.Call, t targets, bytes uint64) (total uint32) {
		for k := range t.Count {
			for _, w := range words(c, t.At[k], bytes) {
				total += w
			}
		}
		return total
	}
	m.Kernel("link_load", func(c *cudatest.Call, t targets, pieces uint64, to cuda.Pointer) {
		cudatest.Slice[uint64](c, to, 1)[0] += uint64(sum(c, t, 16*pieces))
	})
	m.Kernel("link_bulk_load", func(c *cudatest.Call, t targets, bytes uint64, _ uint32, summing,
		to cuda.Pointer, _ device.Group, _ cuda.Pointer,
	) {
		if total := sum(c, t, bytes); cudatest.Slice[uint32](c, summing, 1)[0] != 0 {
			cudatest.Slice[uint64](c, to, 1)[0] += uint64(total)
		}
	})
	m.Kernel("timing_empty", func(*cudatest.Call) {})
	m.Kernel("timing_gate", func(*cudatest.Call, cuda.Pointer, uint32, uint64) {}) // what is enqueued runs at once
	m.Kernel("link_rows", func(*cudatest.Call) {})
	m.Kernel("link_rows_check", func(*cudatest.Call) {})
	m.Kernel("link_barrier", playBarrier)
	m.Kernel("link_ping", playPing)
}

// await is a wait of the device: it ends with the word, the abort word or the deadline, and leaves
// a record.
func await(c *cudatest.Call, g device.Group, s *device.State, peer int, p cuda.Pointer, want uint32) bool {
	word, abort := &cudatest.Slice[uint32](c, p, 1)[0], &cudatest.Slice[uint64](c, cuda.Pointer(g.Abort), 1)[0]
	for end := time.Now().Add(time.Duration(s.Timeout)); ; {
		seen := atomic.LoadUint32(word)
		if int32(seen-want) >= 0 {
			return true
		}
		cause := uint32(0)
		if atomic.LoadUint64(abort) != 0 {
			cause = device.CauseAbort
		} else if time.Now().After(end) {
			cause = device.CauseTimeout
		}
		if cause != 0 {
			r := &cudatest.Slice[device.Record](c, cuda.Pointer(g.Record), 1)[0]
			r.Rank, r.Peer = int32(g.Rank), int32(peer)
			r.Cause, r.Expected, r.Seen = cause, uint64(want), uint64(seen)
			atomic.StoreUint32(&r.State, device.RecordWritten)
			return false
		}
		runtime.Gosched()
	}
}

func playBarrier(c *cudatest.Call, g device.Group, state, done cuda.Pointer) {
	s := &cudatest.Slice[device.State](c, state, 1)[0]
	ended := &cudatest.Slice[uint64](c, done, 1)[0]
	next := uint32(*ended + 1)
	for r := range g.Ranks {
		p := cuda.Pointer(g.Window[r]).Add(lineBytes * int(g.Rank))
		atomic.StoreUint32(&cudatest.Slice[uint32](c, p, 1)[0], next)
	}
	for r := range int(g.Ranks) {
		if !await(c, g, s, r, cuda.Pointer(g.Window[g.Rank]).Add(lineBytes*r), next) {
			return
		}
	}
	*ended++
}

func playPing(c *cudatest.Call, g device.Group, state cuda.Pointer, side, rounds, _ uint32, times, seen cuda.Pointer) {
	s := &cudatest.Slice[device.State](c, state, 1)[0]
	if c.Grid.X == 2 { // both sides, one after the other's steps
		copy(cudatest.Slice[uint32](c, seen, 2), []uint32{rounds, rounds})
	} else {
		other := &cudatest.Slice[uint32](c, cuda.Pointer(g.Window[side^1]), 1)[0]
		for round := uint32(1); round <= rounds; round++ {
			if side == 0 {
				atomic.StoreUint32(other, round)
			}
			if !await(c, g, s, int(side^1), cuda.Pointer(g.Window[side]), round) {
				break
			}
			if side == 1 {
				atomic.StoreUint32(other, round)
			}
			cudatest.Slice[uint32](c, seen, 2)[side] = round
		}
	}
	if side == 0 {
		copy(cudatest.Slice[uint64](c, times, 2), []uint64{1000, 1000 + 3*uint64(rounds-skipped)*1000})
	}
}

// A plain compiler gives images that only the played machine loads.
type plain struct{}

func (plain) Compile(context.Context, kernel.Spec) (kernel.Code, error) {
	return kernel.Code{Image: []byte("image")}, nil
}
func (plain) Version() string { return "none" }

func cache(t *testing.T) *kernel.Cache {
	return kernel.New(kernel.Options{
		Dir: t.TempDir(), ReadOnly: []string{},
		Compiler: func() (kernel.Compiler, error) { return plain{}, nil },
	})
}

// played is a machine with so many devices on which all kernels are played, and which must be clean
// at the end of the test.
func played(t *testing.T, config cudatest.Config) (*cudatest.Machine, []*cuda.Context) {
	t.Helper()
	g := ranktest.Fake(t, config)
	play(g.Machine)
	return g.Machine, g.Contexts
}

var _ = [1]struct{}{}[unsafe.Sizeof(targets{})-520] // as the Targets of pattern.cuh
