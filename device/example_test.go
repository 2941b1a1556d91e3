package device_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// hello sends a word to the other rank, which it awaits there as a value that is its own flag, and
// leaves. A word stands in one of three places in turn; the place of the operation before is
// emptied, for the one after next.
const hello = `#include "weft.cuh"
using namespace weft;

struct Arguments {
	Group group;
	State *state;
	u32 *heard;
};

extern "C" __global__ void hello(const __grid_constant__ Arguments a) {
	Count count = *count_of(a.state, blockIdx.x);
	u32 other = 1 - a.group.rank, before = (count.turn + 2) % 3;
	if (threadIdx.x == 0) {
		u32 *there = (u32 *)a.group.window[other], *here = (u32 *)a.group.window[a.group.rank];
		Wait wait(a.group, a.state, OP_BARRIER, count.epoch);
		store_relaxed_sys4(there + count.turn, clean(100 * (u32)count.epoch + a.group.rank));
		u32 word = await4(wait, other, here + count.turn);
		if (!wait.over) a.heard[count.epoch] = word; // else there is a Record of who did not come
		store_relaxed_sys4(here + before, EMPTY);
	}
	leave(a.state, count.epoch, count.turn, true);
}`

// arguments is Arguments.
type arguments struct {
	Group        device.Group
	State, Heard cuda.Pointer
}

// Where things stand in a rank's memory.
const (
	window = 0
	state  = 128
	record = 256
	abort  = 384 // in memory of the host where ranks are processes, so that their hosts can write it
	claim  = 448
	heard  = 512
	total  = 1024
)

// greet has two ranks launch hello so many times, each on its GPU, and gives what each heard.
func greet(ctx context.Context, contexts [2]*cuda.Context, cache *kernel.Cache, times int) (all [2][]uint32,
	err error,
) {
	var ranks [2]arguments
	var memory [2]*cuda.Memory
	for i, c := range contexts {
		m, err := c.Alloc(total)
		if err != nil {
			return all, err
		}
		defer m.Close()
		begin := make([]byte, total)
		for at := range 3 * 4 {
			begin[window+at] = 0xFF // EMPTY
		}
		binary.LittleEndian.PutUint64(begin[state+8:], uint64(10*time.Second)) // State.timeout
		if err := c.Upload(m.Pointer(), begin); err != nil {
			return all, err
		}
		memory[i] = m
		ranks[i] = arguments{State: m.Pointer().Add(state), Heard: m.Pointer().Add(heard)}
	}
	for i := range ranks {
		g := &ranks[i].Group
		g.Ranks, g.Rank = 2, uint32(i)
		g.Window[0], g.Window[1] = uint64(memory[0].Pointer().Add(window)), uint64(memory[1].Pointer().Add(window))
		g.Record, g.Abort = uint64(memory[i].Pointer().Add(record)), uint64(memory[i].Pointer().Add(abort))
		g.Claim = uint64(memory[i].Pointer().Add(claim))
	}

	// All is loaded before anything runs: a driver may wait for what runs before it loads.
	var starts [2]func() error
	for i, c := range contexts {
		start, end, err := load(ctx, c, cache, ranks[i])
		if err != nil {
			return all, err
		}
		defer end()
		starts[i] = start
	}
	launched := make(chan error)
	for _, start := range starts {
		go func() {
			for range times {
				if err := start(); err != nil {
					launched <- err
					return
				}
			}
			launched <- nil
		}()
	}
	if err := errors.Join(<-launched, <-launched); err != nil {
		return all, err
	}
	for i, c := range contexts {
		if err := c.Synchronize(); err != nil {
			return all, err
		}
		b := make([]byte, 4*times)
		if err := c.Download(b, memory[i].Pointer().Add(heard)); err != nil {
			return all, err
		}
		for k := range times {
			all[i] = append(all[i], binary.LittleEndian.Uint32(b[4*k:]))
		}
	}
	return all, nil
}

// load makes the kernel ready for a rank, on a stream of its own, which end waits for.
func load(ctx context.Context, c *cuda.Context, cache *kernel.Cache, a arguments) (start func() error,
	end func(), err error,
) {
	arch, err := c.Device().Architecture()
	if err != nil {
		return nil, nil, err
	}
	cubin, err := cache.Load(ctx, kernel.Spec{Name: "hello", Source: hello, Headers: device.Headers(), Arch: arch})
	if err != nil {
		return nil, nil, err
	}
	module, err := c.LoadModule(cubin.Image())
	if err != nil {
		return nil, nil, err
	}
	function, err := module.Function("hello")
	if err != nil {
		return nil, nil, errors.Join(err, module.Close())
	}
	stream, err := c.NewStream(cuda.StreamOptions{})
	if err != nil {
		return nil, nil, errors.Join(err, module.Close())
	}
	end = func() {
		_ = errors.Join(stream.Wait(ctx), stream.Close(), module.Close())
	}
	l, err := function.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 1}, Block: cuda.Dim{X: 32}}, a)
	if err != nil {
		end()
		return nil, nil, err
	}
	return func() error { return l.Start(stream) }, end, nil
}

// Two ranks tell each other a word, three times, with a kernel of their own. Here the GPUs are
// emulated; cuda.Open and the zero kernel.Options are all that real ones want otherwise.
func Example() {
	machine := cudatest.New(cudatest.Config{Devices: 2})
	emulate.Attach(machine, emulate.Options{})
	driver, err := machine.Open()
	if err != nil {
		fmt.Println(err)
		return
	}
	var contexts [2]*cuda.Context
	for i, d := range driver.Devices() {
		if contexts[i], err = d.Primary(); err != nil {
			fmt.Println(err)
			return
		}
		defer contexts[i].Close()
	}
	if err := errors.Join(contexts[0].EnablePeer(contexts[1]), contexts[1].EnablePeer(contexts[0])); err != nil {
		fmt.Println(err)
		return
	}
	cache := kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: "kernels", ReadOnly: []string{}})
	all, err := greet(context.Background(), contexts, cache, 3)
	fmt.Println(all, err) // [[1 101 201] [0 100 200]] <nil>
}
