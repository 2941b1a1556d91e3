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

// hello sends a row and a word to the other rank, which waits for both. The row goes by put, signal
// and wait; the word as a packet. Operations use two turns of the window by turns.
const hello = `#include "channel.cuh"
using namespace weft;

struct Arguments {
	State *state;
	u32 *row; // what this rank sends: 64 words
	u32 *heard;
	Group group; // last, for its length is the domain's
};

enum { HELLO = 1 };                                      // how records call the operation
constexpr u64 ROWS = 0, SIGNAL = 512, PACKETS = 528, ROW = 256; // offsets in the window, and a row's bytes

extern "C" __global__ void hello(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, HELLO)) return;
	Wait wait(a.group, a.state, HELLO, o.epoch);
	Channel other(a.group, 1 - a.group.rank);
	Threads all = Threads::of_block();
	u64 turn = o.epoch & 1;
	for (u32 i = threadIdx.x; i < ROW / 4; i += blockDim.x) a.row[i] = 100 * (u32)(o.epoch - 1) + a.group.rank + i;
	__syncthreads();

	other.put_packets(PACKETS + turn * PACKET_BYTES, a.row, 4, o.epoch, all);
	other.put(ROWS + turn * ROW, a.row, ROW, all);
	other.signal(SIGNAL, o.epoch);

	u32 word = 0;
	bool came = other.get_packets(wait, &word, PACKETS + turn * PACKET_BYTES, 4, o.epoch, all);
	if (other.wait(wait, SIGNAL, o.epoch) && came && threadIdx.x == 0) { // else a Record says who did not come
		const u32 *row = (const u32 *)(o.own + ROWS + turn * ROW);
		if (row[0] == word) a.heard[o.epoch - 1] = word;
	}
	o.end(a.state);
}`

// arguments is Arguments.
type arguments struct {
	State, Row, Heard cuda.Pointer
	Group             device.Group
}

// Where things stand in a rank's memory.
const (
	window = 0
	state  = 1024
	record = 1152
	abort  = 1280 // in memory of the host where ranks are processes, so that their hosts can write it
	claim  = 1344
	heard  = 1408
	row    = 2048
	total  = 2304
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
		binary.LittleEndian.PutUint64(begin[state+16:], uint64(10*time.Second)) // State.timeout
		if err := c.Upload(m.Pointer(), begin); err != nil {
			return all, err
		}
		memory[i] = m
		ranks[i] = arguments{State: m.Pointer().Add(state), Row: m.Pointer().Add(row), Heard: m.Pointer().Add(heard)}
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

// Two ranks send each other a row and a packet, three times, with a kernel of their own. Here the GPUs are
// emulated; cuda.Open and the zero kernel.Options are all that real ones want otherwise.
func Example() {
	machine := emulate.New(cudatest.Config{Devices: 2}, emulate.Options{})
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
