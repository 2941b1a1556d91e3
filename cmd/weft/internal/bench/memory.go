package bench

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/topology"
)

// Copier measures how fast some processors together copy memory that is in no cache.
type Copier struct {
	threads int
	cpus    []int
	src     [][]byte
	dst     [][]byte
}

// copyBytes is the size of each thread's copy in a pass: with source and destination, several times
// a last-level cache.
const copyBytes = 64 << 20

// NewCopier makes a copier of up to threads threads; no more than there are processors.
func NewCopier(threads int) *Copier {
	cpus, err := topology.Allowed()
	if err != nil {
		cpus = make([]int, runtime.NumCPU())
	}
	c := &Copier{threads: min(threads, len(cpus)), cpus: cpus}
	for range c.threads {
		src, dst := make([]byte, copyBytes), make([]byte, copyBytes)
		for i := 0; i < copyBytes; i += 4096 {
			src[i], dst[i] = byte(i>>12), 1
		}
		c.src, c.dst = append(c.src, src), append(c.dst, dst)
	}
	return c
}

// Measure returns the bytes that are read and written in a second, by all threads
// together: the median of a few passes.
func (c *Copier) Measure() float64 {
	const passes = 5
	times := make([][]time.Duration, c.threads)
	// All threads copy at the same time: they meet before each pass. They sleep until then, since one that spins may
	// keep the last to come from its processor.
	var meet [passes]sync.WaitGroup
	for pass := range meet {
		meet[pass].Add(c.threads)
	}
	var end sync.WaitGroup
	for i := range c.threads {
		end.Go(func() {
			defer pinned(c.cpus[i : i+1])()
			for pass := range passes {
				meet[pass].Done()
				meet[pass].Wait()
				began := time.Now()
				copy(c.dst[i], c.src[i])
				times[i] = append(times[i], time.Since(began))
			}
		})
	}
	end.Wait()
	s, err := measure.Summarize(times)
	if err != nil || s.P50 <= 0 {
		return 0
	}
	return 2 * copyBytes * float64(c.threads) / s.P50.Seconds()
}

// PingPong measures how long a cache line takes from one processor to another: half
// the median round trip of a word between two pinned threads. It is zero with fewer
// than two processors.
func PingPong() time.Duration {
	cpus, err := topology.Allowed()
	if err != nil || len(cpus) < 2 {
		return 0
	}
	const rounds, batch = 20_000, 20
	var word struct {
		_ [64]byte
		v atomic.Uint64
		_ [64]byte
	}
	var end sync.WaitGroup
	end.Go(func() {
		defer pinned(cpus[1:2])()
		for i := uint64(1); i < 2*rounds; i += 2 {
			for word.v.Load() != i {
			}
			word.v.Store(i + 1)
		}
	})
	var times []time.Duration
	end.Go(func() {
		defer pinned(cpus[0:1])()
		began := time.Now()
		for i := uint64(1); i < 2*rounds; i += 2 {
			word.v.Store(i)
			for word.v.Load() != i+1 {
			}
			if i/2%batch == batch-1 {
				now := time.Now()
				times = append(times, now.Sub(began)/batch)
				began = now
			}
		}
	})
	end.Wait()
	s, err := measure.Summarize([][]time.Duration{times})
	if err != nil {
		return 0
	}
	return s.P50 / 2
}

// pinned ties the calling goroutine to a thread and that to cpus, until the returned
// function is called. Where the system refuses, the goroutine runs where it may.
func pinned(cpus []int) (undo func()) {
	runtime.LockOSThread()
	before, err := topology.Allowed()
	if err != nil || topology.Pin(cpus) != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		if topology.Pin(before) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
	}
}
