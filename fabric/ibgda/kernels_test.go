package ibgda_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric/ibgda"
	"github.com/weftgo/weft/fabric/softnic"
	"github.com/weftgo/weft/fabric/verbstest"
)

// source has a kernel whose threads share a queue pair. In a round each writes 64 bytes and a word, and adds to two
// words that all add to.
const source = `#include "nic.cuh"
using namespace weft;

struct Arguments {
	State *state;
	u64 *result;
	u64 rounds;
	NicMemory dst, src;
	NicQueue queue;
	Group group;
};

enum { WORK = 1 };

extern "C" __global__ void work(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, WORK)) return;
	Wait w(a.group, a.state, WORK, o.epoch);
	u64 me = blockIdx.x * blockDim.x + threadIdx.x, done = 0;
	for (; done < a.rounds; done++) {
		if (!a.queue.put(w, a.dst, 128 * me, a.src, 64 * me, 64, NIC_DEFER) ||
			!a.queue.add4(w, a.dst, 8192, 3, NIC_DEFER) || !a.queue.add8(w, a.dst, 8200, me + 1, NIC_DEFER) ||
			!a.queue.put8(w, a.dst, 128 * me + 64, done + 1))
			break;
	}
	if (!a.queue.flush(w)) done = 0;
	a.result[me] = done;
	o.end(a.state);
}
`

// arguments is Arguments of the kernel.
type arguments struct {
	State, Result cuda.Pointer
	Rounds        uint64
	Dst, Src      device.NicMemory
	Queue         device.NicQueue
	Group         device.Group
}

// TestKernels: kernels drive queue pairs that were set up by libibverbs and libmlx5, and those of the card made of Go.
// The GPU is emulated, and its stores to the host are kept back.
func TestKernels(t *testing.T) {
	emulate.Need(t)
	cache := kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: t.TempDir(), ReadOnly: []string{}})
	for _, name := range []string{"hardware", "software"} {
		t.Run(name, func(t *testing.T) {
			l := verbstest.New(t, verbstest.Options{Softnic: softnic.Options{Seed: 3}})
			l.Add(roce("mlx5_0", "10.0.0.1"))
			m := emulate.New(cudatest.Config{}, emulate.Options{Tear: true, Seed: 2, Limit: time.Minute})
			d, err := m.Open()
			check(t, err)
			c, err := d.Devices()[0].Primary()
			check(t, err)
			open := func() (ibgda.Card, error) { return ibgda.OpenSoftware(c), nil }
			if name == "hardware" {
				open = func() (ibgda.Card, error) { return ibgda.Open(c, "mlx5_0") }
			}
			near, err := open()
			check(t, err)
			far, err := open()
			check(t, err)
			drive(t, c, cache, near, far)
			check(t, errors.Join(near.Close(), far.Close(), c.Close(), m.Check()))
		})
	}
}

// drive has a kernel write from one card to another.
func drive(t *testing.T, c *cuda.Context, cache *kernel.Cache, near, far ibgda.Card) {
	const (
		blocks, threads, rounds  = 2, 8, 40
		recordAt, abortAt        = 0, 64
		resultAt, homeAt, fromAt = 128, 512, 1024
		claimAt                  = device.StateBytes + blocks*device.CountBytes
		ownAt                    = (claimAt + 64 + 63) &^ 63
	)
	arch, err := c.Device().Architecture()
	check(t, err)
	image, err := cache.Load(t.Context(), kernel.Spec{
		Name: "card", Source: source, Headers: device.Headers(), Arch: arch,
	})
	check(t, err)
	module, err := c.LoadModule(image.Image())
	check(t, err)
	stream, err := c.NewStream(cuda.StreamOptions{})
	check(t, err)
	host := func() *cuda.HostMemory {
		h, err := c.AllocHost(16<<10, cuda.HostOptions{})
		check(t, err)
		clear(h.Bytes())
		return h
	}
	own, theirs := host(), host()
	source, err := near.RegisterHost(own)
	check(t, err)
	target, err := far.RegisterHost(theirs)
	check(t, err)
	q, err := near.NewQueue(8)
	check(t, err)
	peer, err := far.NewQueue(8)
	check(t, err)
	check(t, errors.Join(q.Connect(far.Address(), peer.Number()), peer.Connect(near.Address(), q.Number())))

	queue := q.Kernel()
	state, err := c.Alloc(ownAt + device.NicStateBytes + int(queue.Mask+1)*device.NicMarkBytes)
	check(t, err)
	begin := make([]byte, state.Size())
	binary.LittleEndian.PutUint64(begin[16:], uint64(30*time.Second)) // State.timeout
	check(t, c.Upload(state.Pointer(), begin))
	queue.State, queue.Ready = uint64(state.Pointer().Add(ownAt)), uint64(state.Pointer().Add(ownAt+device.NicStateBytes))
	queue.Home, queue.HomeKey, queue.Peer = source.Address+homeAt, source.LocalKey, 1
	a := arguments{
		State: state.Pointer(), Result: own.Pointer().Add(resultAt), Rounds: rounds, Queue: queue, Src: source.Near(),
		Dst: device.NicMemory{Address: target.Address, Bytes: target.Bytes, Key: target.PeersKey, Atomic: 1},
	}
	a.Src.Address += fromAt
	a.Src.Bytes -= fromAt
	a.Group.Ranks, a.Group.Record = 2, uint64(own.Pointer().Add(recordAt))
	a.Group.Abort, a.Group.Claim = uint64(own.Pointer().Add(abortAt)), uint64(state.Pointer().Add(claimAt))
	for i := range 64 * blocks * threads {
		own.Bytes()[fromAt+i] = byte(i%251 + 1)
	}
	f, err := module.Function("work")
	check(t, err)
	launch, err := f.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: blocks}, Block: cuda.Dim{X: threads}}, a)
	check(t, err)
	check(t, errors.Join(launch.Start(stream), stream.Wait(t.Context())))

	if r := (*device.Record)(unsafe.Pointer(&own.Bytes()[recordAt])); r.State != device.RecordEmpty {
		t.Errorf("a wait ended with %+v", *r)
	}
	word := func(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	for i := range blocks * threads {
		at := 128 * i
		if word(own.Bytes(), resultAt+8*i) != rounds || word(theirs.Bytes(), at+64) != rounds ||
			!bytes.Equal(theirs.Bytes()[at:at+64], own.Bytes()[fromAt+64*i:][:64]) {
			t.Errorf("thread %d: %d rounds, the word %d, or other bytes", i, word(own.Bytes(), resultAt+8*i),
				word(theirs.Bytes(), at+64))
		}
	}
	const n = blocks * threads
	fours, eights := word(theirs.Bytes(), 8192), word(theirs.Bytes(), 8200)
	if fours != 3*n*rounds || eights != rounds*n*(n+1)/2 {
		t.Errorf("sums %d and %d", fours, eights)
	}
	check(t, errors.Join(q.Close(), peer.Close(), source.Close(), target.Close(), state.Close(), own.Close(),
		theirs.Close(), stream.Close(), module.Close()))
}
