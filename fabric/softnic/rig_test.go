package softnic_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/bits"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric/mlx5"
	"github.com/weftgo/weft/fabric/softnic"
)

// kernelDir is where compiled kernels are, for all tests of a run.
var kernelDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "softnic")
	if err != nil {
		panic(err)
	}
	kernelDir = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(dir); err != nil && code == 0 {
			code = 1
		}
		os.Exit(code)
	}))
}

// A machine is GPUs, emulated or this machine's, and what compiles for them.
type machine struct {
	driver *cuda.Driver
	cache  *kernel.Cache
}

// emulated is a machine whose stores to the host are kept back and reordered.
func emulated(t testing.TB, seed uint64) machine {
	t.Helper()
	emulate.Need(t)
	m := emulate.New(cudatest.Config{}, emulate.Options{Tear: true, Seed: seed, Limit: 10 * time.Minute})
	t.Cleanup(func() {
		if err := m.Check(); err != nil {
			t.Error(err)
		}
	})
	d, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	return machine{d, kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: kernelDir, ReadOnly: []string{}})}
}

// real is this machine, or skips the test by name where it has no GPU. WEFT_REQUIRE_GPU=1 turns the skip into a
// failure.
func real(t testing.TB) machine {
	t.Helper()
	d, err := cuda.Open()
	if err != nil {
		if os.Getenv("WEFT_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skipf("needs a GPU: %v", err)
	}
	cudatest.NVRTC(t)
	return machine{d, kernel.New(kernel.Options{Dir: kernelDir, ReadOnly: []string{}})}
}

// Where things lie in the rig's memories: in pinned memory of the host, and in the GPU's.
const (
	recordAt, abortAt, resultAt = 0, 64, 128
	homesAt                     = 512 // of queue pairs
	queuesAt                    = 1024
	claimAt                     = device.StateBytes + maxBlocks*device.CountBytes
	statesAt                    = 1024
	maxBlocks                   = 16
	maxQueues                   = 8
	homeKey                     = 0x4444
	windowBytes                 = 64 << 10
	countsAt                    = windowBytes - 64 // words that all add to
)

// arguments is Arguments of the kernels.
type arguments struct {
	State, Near, Far, Result cuda.Pointer
	Rounds, Mode, At         uint64
	Peer                     device.NicPeer
	Group                    device.Group
}

// A rig is a GPU, and a card with queue pairs whose memory is the host's.
type rig struct {
	t         testing.TB
	context   *cuda.Context
	nic       *softnic.NIC
	queues    []*softnic.Queue
	memories  []softnic.Memory
	pairs     []device.NicQueue
	stream    *cuda.Stream
	module    *cuda.Module
	pinned    []byte
	state     *cuda.Memory
	near, far []byte
	argument  arguments
	serving   sync.WaitGroup
	stop      context.CancelFunc
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newRig makes queue pairs of a depth, and serves them if it is told to.
func newRig(t testing.TB, m machine, headers map[string]string, o softnic.Options, pairs, depth int) *rig {
	t.Helper()
	c, err := m.driver.Devices()[0].Primary()
	check(t, err)
	closes := func(f func() error) {
		t.Cleanup(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	closes(c.Close)
	r := &rig{t: t, context: c, nic: softnic.New(o)}
	arch, err := c.Device().Architecture()
	check(t, err)
	cubin, err := m.cache.Load(t.Context(), kernel.Spec{Name: "nic", Source: source, Headers: headers, Arch: arch})
	check(t, err)
	r.module, err = c.LoadModule(cubin.Image())
	check(t, err)
	closes(r.module.Close)
	r.stream, err = c.NewStream(cuda.StreamOptions{})
	check(t, err)
	closes(r.stream.Close)
	host := func(n int) ([]byte, cuda.Pointer) {
		h, err := c.AllocHost(n, cuda.HostOptions{})
		check(t, err)
		closes(h.Close)
		clear(h.Bytes())
		return h.Bytes(), h.Pointer()
	}
	size := depth*(mlx5.EntryBytes+mlx5.CompletionBytes) + 256
	size = (size + 4095) &^ 4095
	pinned, at := host(queuesAt + pairs*size)
	r.pinned = pinned
	marks := statesAt + maxQueues*device.NicStateBytes
	descriptions := (marks + pairs*depth*device.NicMarkBytes + 63) &^ 63 // they have words of 8 bytes
	r.state, err = c.Alloc(descriptions + maxQueues*int(unsafe.Sizeof(device.NicQueue{})))
	check(t, err)
	closes(r.state.Close)

	var nearPointer, farPointer cuda.Pointer
	r.near, nearPointer = host(windowBytes)
	r.far, farPointer = host(windowBytes)
	access := softnic.RemoteWrite | softnic.RemoteAtomic
	for _, g := range []softnic.Region{
		{Key: nearKey, Address: uint64(nearPointer), Bytes: r.near},
		{Key: farKey, Address: uint64(farPointer), Bytes: r.far, Access: access},
		{Key: homeKey, Address: uint64(at.Add(homesAt)), Bytes: pinned[homesAt:][:8*maxQueues]},
	} {
		check(t, r.nic.Register(g))
	}
	for i := range pairs {
		from := queuesAt + i*size
		part := func(offset, n int) []byte { return pinned[from+offset:][:n:n] }
		m := softnic.Memory{
			Record: part(0, 8), Consumer: part(64, 8), Register: part(128, 8),
			Send: part(256, depth*mlx5.EntryBytes), Completions: part(256+depth*mlx5.EntryBytes, depth*mlx5.CompletionBytes),
		}
		q, err := r.nic.Connect(uint32(number+i), m)
		check(t, err)
		base := at.Add(from)
		r.queues, r.memories = append(r.queues, q), append(r.memories, m)
		r.pairs = append(r.pairs, device.NicQueue{
			Entries: uint64(base.Add(256)), Completions: uint64(base.Add(256 + depth*mlx5.EntryBytes)),
			Record: uint64(base.Add(4 * mlx5.SendRecordAt)), Consumer: uint64(base.Add(64)), Doorbell: uint64(base.Add(128)),
			State: uint64(r.state.Pointer().Add(statesAt + i*device.NicStateBytes)),
			Ready: uint64(r.state.Pointer().Add(marks + i*depth*device.NicMarkBytes)),
			Home:  uint64(at.Add(homesAt + 8*i)), HomeKey: homeKey,
			Mask: uint32(depth - 1), Log: uint32(bits.TrailingZeros(uint(depth))), Number: uint32(number + i), Peer: 1,
		})
	}
	a := &r.argument
	a.State, a.Near, a.Far, a.Result = r.state.Pointer(), nearPointer, farPointer, at.Add(resultAt)
	a.Peer = device.NicPeer{
		Queues: uint64(r.state.Pointer().Add(descriptions)), Count: uint32(pairs),
		Dst: device.NicMemory{Address: uint64(farPointer), Bytes: windowBytes, Key: farKey, Atomic: 1},
		Src: device.NicMemory{Address: uint64(nearPointer), Bytes: windowBytes, Key: nearKey},
	}
	a.Group.Ranks, a.Group.Rank = 2, 0
	a.Group.Record, a.Group.Abort = uint64(at.Add(recordAt)), uint64(at.Add(abortAt))
	a.Group.Claim = uint64(r.state.Pointer().Add(claimAt))
	check(t, c.Upload(r.state.Pointer(), make([]byte, descriptions)))
	r.describe()
	r.reset(30 * time.Second)
	t.Cleanup(r.halt)
	return r
}

// describe hands the queue pairs' descriptions to the GPU.
func (r *rig) describe() {
	r.t.Helper()
	size := int(unsafe.Sizeof(device.NicQueue{}))
	check(r.t, r.context.Upload(cuda.Pointer(r.argument.Peer.Queues),
		unsafe.Slice((*byte)(unsafe.Pointer(&r.pairs[0])), len(r.pairs)*size)))
}

// reset begins the State of operations anew.
func (r *rig) reset(timeout time.Duration) {
	r.t.Helper()
	begin := make([]byte, claimAt+64)
	binary.LittleEndian.PutUint64(begin[16:], uint64(timeout)) // State.timeout
	check(r.t, r.context.Upload(r.state.Pointer(), begin))
	clear(r.pinned[:homesAt])
}

// serve lets the card work on a goroutine of its own, until halt.
func (r *rig) serve() {
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	r.serving.Add(1)
	go func() {
		defer r.serving.Done()
		r.nic.Serve(ctx)
	}()
}

func (r *rig) halt() {
	if r.stop != nil {
		r.stop()
		r.serving.Wait()
		r.stop = nil
	}
}

// run runs a kernel to its end.
func (r *rig) run(name string, blocks, threads uint32) {
	r.t.Helper()
	f, err := r.module.Function(name)
	check(r.t, err)
	l, err := f.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: blocks}, Block: cuda.Dim{X: threads}}, r.argument)
	check(r.t, err)
	check(r.t, errors.Join(l.Start(r.stream), r.stream.Wait(r.t.Context())))
}

// result is a word that kernels left.
func (r *rig) result(i int) uint64 { return binary.LittleEndian.Uint64(r.pinned[resultAt+8*i:]) }

// record is what a kernel's wait left.
func (r *rig) record() *device.Record { return (*device.Record)(unsafe.Pointer(&r.pinned[recordAt])) }

// fine reports mistakes that the card has found, and waits that ended without what they were for.
func (r *rig) fine() {
	r.t.Helper()
	if err := r.nic.Check(); err != nil {
		r.t.Error(err)
	}
	if w := r.record(); w.State != device.RecordEmpty {
		r.t.Errorf("a wait ended with %+v", *w)
	}
}
