package gpu

import (
	"context"
	_ "embed"
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

//go:embed clock.cu
var clockSource string

// clockKernel is the kernel that answers the host's questions for the time.
func clockKernel(arch string) kernel.Spec {
	return kernel.Spec{Name: "clock", Source: clockSource, Headers: device.Headers(), Arch: arch}
}

// clockArgs are ClockArgs.
type clockArgs struct {
	asked, answer, step uint64
	patience            uint64
	questions, steps    uint32
}

const (
	clockQuestions = 24
	clockSteps     = 2000 // readings of which the smallest step is taken
	clockPatience  = 2 * time.Millisecond
	// clockStart is how long a GPU may take to run the kernel. One that is busy with kernels that wait takes longer,
	// and is asked another time.
	clockStart = 20 * time.Millisecond
)

// reading is the time of a GPU beside that of the host.
type reading struct {
	own    uint64 // nanoseconds of %globaltimer
	unix   int64
	within uint64 // how far the two may be apart, in nanoseconds
}

// gpuClock reads the clock of a GPU. Its methods are for one goroutine at a time.
type gpuClock struct {
	program *Program
	memory  *cuda.HostMemory
	launch  Launch[clockArgs]
	stream  *cuda.Stream
	step    uint64 // the smallest step that was seen, in nanoseconds; 0: not known yet
	out     bool   // a kernel was started that may still run
}

// words of the pinned memory, each in a line of its own.
const (
	clockAsked = iota * 128
	clockAnswer
	clockStep
	clockBytes
)

func newClock(ctx context.Context, c *cuda.Context, cache *kernel.Cache, arch string) (*gpuClock, error) {
	k := &gpuClock{}
	err := func() (err error) {
		source := Source{Spec: clockKernel(arch), Extern: []string{"weft_clock"}}
		if k.program, err = LoadLocal(ctx, c, cache, source); err != nil {
			return err
		}
		if k.memory, err = c.AllocHost(clockBytes, cuda.HostOptions{}); err != nil {
			return err
		}
		clear(k.memory.Bytes())
		at := func(offset int) uint64 { return uint64(k.memory.Pointer().Add(offset)) }
		k.launch, err = NewLaunch(k.program.Functions(0)[0], cuda.LaunchConfig{}, clockArgs{
			asked: at(clockAsked), answer: at(clockAnswer), step: at(clockStep), patience: uint64(clockPatience),
			questions: clockQuestions, steps: clockSteps,
		})
		if err != nil {
			return err
		}
		k.stream, err = c.NewStream(cuda.StreamOptions{})
		return err
	}()
	if err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

func (k *gpuClock) word(at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&k.memory.Bytes()[at]))
}

// read reads the clock. ok is false if the GPU has not answered in time.
func (k *gpuClock) read() (best reading, ok bool, err error) {
	if k.out {
		if ended, err := k.stream.Query(); !ended || err != nil {
			return best, false, err
		}
		k.out = false
	}
	asked, answer := k.word(clockAsked), k.word(clockAnswer)
	asked.Store(0)
	answer.Store(0)
	if err := k.launch.Start(k.stream); err != nil {
		return best, false, err
	}
	k.out = true
	defer asked.Store(math.MaxUint64) // whatever is left of the kernel ends
	best.within = math.MaxUint64
	const top = 1 << 63
	for n, limit := uint64(1), time.Now().Add(clockStart); n <= clockQuestions; n++ {
		before := time.Now()
		asked.Store(n)
		var v uint64
		for polls := 1; ; polls++ {
			if v = answer.Load(); v != 0 && v>>63 == n&1 {
				break
			}
			if polls%1024 != 0 {
				continue
			}
			if time.Now().After(limit) {
				return best, ok, nil
			}
			runtime.Gosched()
		}
		trip := time.Since(before)
		if half := uint64(trip+1) / 2; half < best.within {
			best, ok = reading{v &^ top, before.UnixNano() + int64(trip/2), half}, true
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), clockStart)
	defer cancel()
	if k.stream.Wait(ctx) == nil {
		k.out, k.step = false, k.word(clockStep).Load()
	}
	best.within += k.step
	return best, ok, nil
}

// close frees the clock, when nothing of it runs.
func (k *gpuClock) close() error {
	var errs []error
	if k.stream != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := k.stream.Wait(ctx); err != nil {
			return err // the memory stays: the kernel may still look at it
		}
		errs = append(errs, k.stream.Close())
	}
	if k.memory != nil {
		errs = append(errs, k.memory.Close())
	}
	return errors.Join(append(errs, k.program.Close())...)
}
