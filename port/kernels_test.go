package port_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/port"
)

// source has the kernels of the tests. The memory of a rank is host memory that the GPU reaches.
const source = `#include "port.cuh"
using namespace weft;

struct Arguments {
	PortChannel channel;
	State *state;
	unsigned char *memory; // of this rank, as the GPU sees it
	u64 *result;
	u64 mode, rounds, slot, at;
	Group group;
};

enum { PING = 1 };

// ping puts slots of a pattern, round by round, and waits for the peer's; the peer checks them. Two slots by
// parity are put from and into, so the peer's signal of a round says that those of the round before are free.
extern "C" __global__ void ping(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, PING)) return;
	Wait wait(a.group, a.state, PING, o.epoch);
	__shared__ u32 wrong;
	for (u64 round = 0; round < a.rounds; round++) {
		u64 from = (2 + (round & 1)) * a.slot, to = (round & 1) * a.slot;
		if (threadIdx.x == 0) wrong = 0;
		for (u64 i = threadIdx.x; i < a.slot / 4; i += blockDim.x)
			store_relaxed_sys4(a.memory + from + 4 * i, (u32)(i * 3 + round * 7 + a.group.rank));
		__syncthreads();
		bool on = true;
		if (a.mode == 4) { // another thread flushes what one has put
			if (threadIdx.x == blockDim.x - 1) on = a.channel.put_with_signal(wait, to, from, a.slot);
			__syncthreads();
		}
		if (threadIdx.x == 0) {
			if (a.mode == 4) {
				on = a.channel.flush(wait);
				for (u64 i = 0; on && i < a.slot / 4; i++) store_relaxed_sys4(a.memory + from + 4 * i, 0);
			}
			if (a.mode == 0) on = a.channel.put(wait, to, from, a.slot) && a.channel.signal(wait) && a.channel.flush(wait);
			if (a.mode == 1) on = a.channel.put_with_signal(wait, to, from, a.slot) && a.channel.flush(wait);
			if (a.mode == 2) on = a.channel.put_with_signal_and_flush(wait, to, from, a.slot);
			if (a.mode == 3) {
				u64 position;
				on = a.channel.put_with_signal_then_flush(wait, to, from, a.slot, position) &&
					 a.channel.await_flush(wait, position);
			}
			if (on && (round & 1)) {
				while (!a.channel.poll() && (on = wait.more(a.channel.peer, round, 0))) {}
			} else {
				on = on && a.channel.wait(wait);
			}
		}
		if (__syncthreads_or(!on)) break;
		for (u64 i = threadIdx.x; i < a.slot / 4; i += blockDim.x)
			if (load_relaxed_sys4(a.memory + to + 4 * i) != (u32)(i * 3 + round * 7 + 1 - a.group.rank)) atomicAdd(&wrong, 1u);
		__syncthreads();
		if (threadIdx.x == 0 && wrong == 0) a.result[0] = a.result[0] + 1;
		__syncthreads(); // before it is set anew: all may read it, for one to use
	}
	o.end(a.state);
}

// crowd pushes adds and signals from all threads of all blocks, more than the ring holds.
extern "C" __global__ void crowd(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, PING)) return;
	Wait wait(a.group, a.state, PING, o.epoch);
	for (u64 round = 0; round < a.rounds; round++) {
		if (!a.channel.atomic_add(wait, a.at, threadIdx.x) || !a.channel.atomic_add(wait, a.at + 8, ~0ull)) break;
		if (!a.channel.signal(wait)) break;
	}
	a.channel.flush(wait);
	o.end(a.state);
}

// wrong asks for what does not fit.
extern "C" __global__ void wrong(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, PING)) return;
	Wait wait(a.group, a.state, PING, o.epoch);
	bool done = true;
	if (threadIdx.x == 0) {
		switch (a.mode) {
		case 0: done = a.channel.put(wait, a.at, 0, 1); break;
		case 1: done = a.channel.put_with_signal(wait, 0, a.at, 8); break;
		case 2: done = a.channel.put_with_signal_and_flush(wait, 0, 0, ~0ull); break;
		case 3: done = a.channel.atomic_add(wait, 4, 1); break;
		case 4: done = a.channel.atomic_add(wait, a.at, 1); break;
		case 5: done = a.channel.wait(wait); break;  // which nobody signals
		case 6: // until the channel has failed
			do done = a.channel.put_with_signal_and_flush(wait, 0, 0, 4096);
			while (done);
			break;
		}
		a.result[0] = done ? 1 : 2;
	}
	o.end(a.state);
}
`

// arguments is Arguments.
type arguments struct {
	Channel                device.PortChannel
	State, Memory, Result  cuda.Pointer
	Mode, Rounds, Slot, At uint64
	Group                  device.Group
}

// A gpu is a rank with a GPU, or with a part of one.
type gpu struct {
	*rank
	context  *cuda.Context
	kernels  *port.Kernels
	stream   *cuda.Stream
	module   *cuda.Module
	pinned   *cuda.HostMemory // the record, the abort word, the result
	state    *cuda.Memory
	argument arguments
}

const (
	recordAt, abortAt, resultAt = 0, 64, 128
	claimAt                     = 256 // behind a State and a Count for each block
)

// openGPU opens this machine's driver, or skips the test by name where there is none. WEFT_REQUIRE_GPU=1 turns
// the skip into a failure.
func openGPU(t testing.TB) *cuda.Driver {
	t.Helper()
	d, err := cuda.Open()
	if err != nil {
		if os.Getenv("WEFT_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skipf("needs a GPU: %v", err)
	}
	return d
}

// A start makes two ranks, each with a memory of so many bytes.
type start func(b backend, bytes int) [2]*gpu

// onEmulated runs a test with two ranks on emulated GPUs, on networks of each kind.
func onEmulated(t *testing.T, test func(*testing.T, backend, start)) {
	emulate.Need(t)
	for _, make := range backends(1) {
		b := make()
		t.Run(b.name, func(t *testing.T) {
			machine := emulate.New(cudatest.Config{Devices: 2}, emulate.Options{Tear: true, Seed: 3})
			t.Cleanup(func() {
				if err := machine.Check(); err != nil {
					t.Error(err)
				}
			})
			d, err := machine.Open()
			if err != nil {
				t.Fatal(err)
			}
			cache := kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: kernelDir, ReadOnly: []string{}})
			b.options.Depth = 16
			test(t, b, func(b backend, bytes int) [2]*gpu { return gpus(t, d, cache, b, bytes) })
		})
	}
}

// onGPU runs it on this machine's GPUs: the first two, or both ranks on one.
func onGPU(t *testing.T, test func(*testing.T, backend, start)) {
	d := openGPU(t)
	cudatest.NVRTC(t)
	cache := kernel.New(kernel.Options{Dir: kernelDir, ReadOnly: []string{}})
	for _, make := range backends(1) {
		b := make()
		t.Run(b.name, func(t *testing.T) {
			b.options.Depth = 16
			test(t, b, func(b backend, bytes int) [2]*gpu { return gpus(t, d, cache, b, bytes) })
		})
	}
}

func gpus(t testing.TB, d *cuda.Driver, cache *kernel.Cache, b backend, bytes int) (all [2]*gpu) {
	t.Helper()
	var contexts [2]*cuda.Context
	var memories [2][]byte
	for i := range contexts {
		devices := d.Devices()
		c, err := devices[i%len(devices)].Primary()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		contexts[i] = c
		m, err := c.AllocHost(bytes, cuda.HostOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		clear(m.Bytes())
		memories[i] = m.Bytes()
		all[i] = &gpu{context: c}
		all[i].argument.Memory = m.Pointer()
	}
	b.memories = memories[:]
	ranks := b.ranks(t, 2, bytes)
	for i, g := range all {
		g.rank = ranks[i]
		g.load(t, cache)
	}
	return all
}

// specOf is the kernels of these tests.
func specOf(arch string) kernel.Spec {
	return kernel.Spec{Name: "port", Source: timingSource(), Headers: device.Headers(), Arch: arch}
}

// load makes a rank's kernels ready.
func (g *gpu) load(t testing.TB, cache *kernel.Cache) {
	t.Helper()
	c := g.context
	arch, err := c.Device().Architecture()
	if err != nil {
		t.Fatal(err)
	}
	cubin, err := cache.Load(t.Context(), specOf(arch))
	if err != nil {
		t.Fatal(err)
	}
	closes := func(f func() error) {
		t.Cleanup(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	if g.module, err = c.LoadModule(cubin.Image()); err != nil {
		t.Fatal(err)
	}
	closes(g.module.Close)
	if g.stream, err = c.NewStream(cuda.StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	closes(g.stream.Close)
	if g.pinned, err = c.AllocHost(resultAt+8, cuda.HostOptions{}); err != nil {
		t.Fatal(err)
	}
	closes(g.pinned.Close)
	clear(g.pinned.Bytes())
	if g.state, err = c.Alloc(claimAt + 64); err != nil {
		t.Fatal(err)
	}
	closes(g.state.Close)
	g.reset(t, 30*time.Second)
	if g.kernels, err = g.Kernels(c); err != nil {
		t.Fatal(err)
	}
	closes(g.kernels.Close)
	a := &g.argument
	a.Channel, err = g.kernels.Channel(g.channel(t, 1-g.index, 0))
	if err != nil {
		t.Fatal(err)
	}
	a.State, a.Result = g.state.Pointer(), g.pinned.Pointer().Add(resultAt)
	a.Group.Ranks, a.Group.Rank = 2, uint32(g.index)
	a.Group.Record, a.Group.Abort = uint64(g.pinned.Pointer().Add(recordAt)), uint64(g.pinned.Pointer().Add(abortAt))
	a.Group.Claim = uint64(g.state.Pointer().Add(claimAt))
}

// reset begins the rank's State anew.
func (g *gpu) reset(t testing.TB, timeout time.Duration) {
	t.Helper()
	begin := make([]byte, claimAt+64)
	binary.LittleEndian.PutUint64(begin[16:], uint64(timeout)) // State.timeout
	if err := g.context.Upload(g.state.Pointer(), begin); err != nil {
		t.Fatal(err)
	}
	clear(g.pinned.Bytes())
}

// run runs a kernel to its end.
func (g *gpu) run(t testing.TB, name string, blocks, threads uint32) error {
	f, err := g.module.Function(name)
	if err != nil {
		return err
	}
	l, err := f.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: blocks}, Block: cuda.Dim{X: threads}}, g.argument)
	if err != nil {
		return err
	}
	return errors.Join(l.Start(g.stream), g.stream.Wait(t.Context()))
}

func (g *gpu) result() uint64 { return binary.LittleEndian.Uint64(g.pinned.Bytes()[resultAt:]) }

// record is the cause and the peer of the record that a kernel left.
func (g *gpu) record() (cause, peer uint32) {
	b := g.pinned.Bytes()[recordAt:]
	return binary.LittleEndian.Uint32(b[24:]), binary.LittleEndian.Uint32(b[20:])
}

// both runs a kernel on both ranks.
func both(t *testing.T, all [2]*gpu, name string, blocks, threads uint32) {
	t.Helper()
	errs := make(chan error, 2)
	for _, g := range all {
		go func() { errs <- g.run(t, name, blocks, threads) }()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Fatal(err)
	}
}

// TestSourceCompiles: NVRTC takes the kernels of these tests without a warning, for GPUs of each kind.
func TestSourceCompiles(t *testing.T) {
	cudatest.NVRTC(t)
	c, err := kernel.NVRTC()
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100a"} {
		code, err := c.Compile(t.Context(), specOf(arch))
		if err != nil || code.Log != "" {
			t.Errorf("%s: %v %s", arch, err, code.Log)
		}
	}
}

// TestKernels: kernels of two ranks put to each other, signal, flush, poll and wait, and see the other's bytes.
func TestKernels(t *testing.T) { onEmulated(t, exchanges) }

func TestKernelsOnGPU(t *testing.T) { onGPU(t, exchanges) }

func exchanges(t *testing.T, b backend, begin start) {
	const rounds = 12
	all := begin(b, 4*1000)
	for mode := range uint64(5) {
		for _, g := range all {
			g.argument.Mode, g.argument.Rounds, g.argument.Slot = mode, rounds, 1000-4*mode
		}
		both(t, all, "ping", 1, 64)
		for _, g := range all {
			if cause, peer := g.record(); g.result() != rounds || cause != 0 {
				t.Fatalf("mode %d, rank %d: %d rounds of %d passed; cause %d, peer %d", mode, g.index, g.result(), rounds,
					cause, peer)
			}
			g.pinned.Bytes()[resultAt] = 0
		}
	}
}

// TestCrowd: all threads of several blocks push more than the ring holds; all adds are counted, and all signals. A warp
// has more threads than the ring has slots.
func TestCrowd(t *testing.T) {
	onEmulated(t, func(t *testing.T, b backend, begin start) { crowds(t, b, begin, 32) })
}

func TestCrowdOnGPU(t *testing.T) {
	onGPU(t, func(t *testing.T, b backend, begin start) { crowds(t, b, begin, 256) })
}

func crowds(t *testing.T, b backend, begin start, threads uint32) {
	const blocks, rounds, at = 2, 4, 64
	b.spread = false
	all := begin(b, 128)
	for _, g := range all {
		g.argument.Rounds, g.argument.At = rounds, at
	}
	both(t, all, "crowd", blocks, threads)
	for _, g := range all {
		if cause, peer := g.record(); cause != 0 {
			t.Fatalf("rank %d: cause %d, peer %d", g.index, cause, peer)
		}
		sum, ones := word(g.memory, at).Load(), word(g.memory, at+8).Load()
		if want := uint64(blocks * rounds * threads * (threads - 1) / 2); sum != want {
			t.Errorf("rank %d: the sum is %d, want %d", g.index, sum, want)
		}
		if want := uint64(blocks * rounds * threads); -ones != want {
			t.Errorf("rank %d: %d times one was taken away, want %d", g.index, -ones, want)
		}
	}
}

// TestKernelWaits: what does not fit is refused, and waits of kernels end at their deadline, by the abort word
// and with their channel. The record says why, and names the peer.
func TestKernelWaits(t *testing.T) { onEmulated(t, ends) }

func TestKernelWaitsOnGPU(t *testing.T) { onGPU(t, ends) }

func ends(t *testing.T, b backend, begin start) {
	b.spread = false
	all := begin(b, 4096)
	g := all[0]
	before := bytes.Clone(all[1].memory)
	want := func(mode, at uint64, timeout time.Duration, cause uint32) {
		t.Helper()
		g.reset(t, timeout)
		if cause == device.CauseAbort {
			g.pinned.Bytes()[abortAt] = 1
		}
		g.argument.Mode, g.argument.At = mode, at
		if err := g.run(t, "wrong", 1, 32); err != nil {
			t.Fatal(err)
		}
		if got, peer := g.record(); g.result() != 2 || got != cause || peer != 1 {
			t.Errorf("mode %d at %d: result %d, cause %d, peer %d; want cause %d", mode, at, g.result(), got, peer, cause)
		}
	}
	for _, at := range []uint64{4096, 4097, 1 << 48, ^uint64(0)} {
		want(0, at, time.Minute, device.CauseInvalid)
		want(1, at, time.Minute, device.CauseInvalid)
		want(4, at, time.Minute, device.CauseInvalid)
	}
	want(1, 4089, time.Minute, device.CauseInvalid)
	want(2, 0, time.Minute, device.CauseInvalid)
	want(3, 0, time.Minute, device.CauseInvalid)
	want(4, 4090, time.Minute, device.CauseInvalid)
	want(5, 0, 50*time.Millisecond, device.CauseTimeout)
	want(5, 0, time.Minute, device.CauseAbort)
	if !bytes.Equal(before, all[1].memory) {
		t.Error("something was put all the same")
	}
	reason := errors.New("the peer's heartbeat stopped")
	stop := time.AfterFunc(20*time.Millisecond, func() { g.Abort(reason) })
	defer stop.Stop()
	want(6, 0, time.Minute, device.CauseLost)
	want(5, 0, time.Minute, device.CauseLost)
	if _, err := g.kernels.Channel(all[1].channel(t, 0, 7)); !errors.Is(err, fabric.ErrInvalid) {
		t.Errorf("a channel of another proxy: %v", err)
	}
}
