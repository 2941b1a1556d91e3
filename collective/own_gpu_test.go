package collective

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/layout"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/ranktest"
)

// ownGather gathers words: a rank puts its part in its scratch memory, and all get it there once they have met. Then
// it does the same of what an extra says, and adds the two.
const ownGather = `#include "weft.cuh"
#include "more.cuh"
using namespace weft;

namespace mine {

template <int K> __global__ void gather(const __grid_constant__ AlgorithmArgs a) {
	Call c(a);
	if (!c.begun) return;
	Threads all = Threads::of_grid();
	u32 *out = (u32 *)a.out, *page = (u32 *)(c.operation.own + c.turn());
	for (u64 i = threadIdx.x; i < a.count; i += blockDim.x) {
		// Every block writes all, for each waits for those of its own number alone.
		page[blockIdx.x * PAGE + i] = ((const u32 *)a.in)[i] + (u32)a.values[1];
	}
	if (c.barrier()) {
		for (u32 r = 0; r < c.ranks(); r++) {
			if (r != c.rank() && !holds(c.peers, r)) continue;
			const u32 *theirs = (const u32 *)(a.group.window[r] + c.turn()) + blockIdx.x * PAGE;
			for (u64 i = all.at; i < a.count; i += all.count) out[r * a.count + i] = theirs[i] - (u32)a.values[1];
		}
	}
	if (all.at == 0 && a.extras[0] != nullptr) *(u64 *)a.extras[0] += K + a.values[0];
	if (all.at == 0) *(u64 *)a.local += 1;
	c.end();
}

} // namespace mine
`

const (
	ownPage  = 1024     // words of a block
	ownWrong = 16 * 777 // of a broadcast that finds itself wrong
)

// ownReduce adds floats that come as packets.
const ownReduce = `#include "weft.cuh"
using namespace weft;

extern "C" __global__ void all_reduce(const __grid_constant__ AlgorithmArgs a) {
	Call c(a);
	if (!c.begun) return;
	Threads all = Threads::of_grid();
	const float *in = (const float *)a.in;
	u64 room = 2 * a.bytes;
	for (Round r = c.others(); r.more();)
		c.to(r.next()).put_packets(c.turn() + c.rank() * room, in, a.bytes, c.epoch, all);
	for (u64 i = all.at; i < a.count; i += all.count) {
		float own = in[i], sum = 0;
		for (u32 r = 0; r < c.ranks(); r++) {
			float x = own;
			if (holds(c.peers, r))
				c.to(r).get_packets(c.wait, &x, c.turn() + r * room + i * PACKET_BYTES, 4, c.epoch, {0, 1});
			if (r == c.rank() || holds(c.peers, r)) sum = add(sum, x);
		}
		if (!c.wait.over) ((float *)a.out)[i] = sum;
	}
	c.end();
}
`

// ownBroadcast has root put its operand, of whole vectors, at every other rank, once all have begun; they read their
// neighbour's from its memory as well, and compare.
const ownBroadcast = `#include "weft.cuh"
using namespace weft;

extern "C" __global__ void broadcast(const __grid_constant__ AlgorithmArgs a) {
	Call c(a);
	if (!c.begun) return;
	extern __shared__ uint4 page[];
	Share mine((u32)(a.bytes / 16));
	u64 from = (u64)mine.from * 16, bytes = (u64)(mine.to - mine.from) * 16;
	if (!c.barrier(0)) return c.end();
	if (c.rank() == a.root) {
		for (u64 i = threadIdx.x; i < bytes / 16; i += blockDim.x)
			((uint4 *)(a.out + from))[i] = ((const uint4 *)(a.in + from))[i];
		for (Round r = c.others(); r.more();) {
			u32 peer = r.next();
			c.to(peer).put(c.turn() + from, a.in + from, bytes, Threads::of_block());
			c.signal(peer, 1);
		}
	} else if (c.wait_for(a.root, 1)) {
		const char *here = c.operation.own + c.turn() + from;
		for (u64 i = threadIdx.x; i < bytes / 16; i += blockDim.x) ((uint4 *)(a.out + from))[i] = ((const uint4 *)here)[i];
	}
	if (c.barrier(2)) { // all have it in their memory, but for root
		u32 peer = next_rank(a.group, 0);
		if (peer != a.root && holds(c.peers, peer) && c.rank() != a.root && bytes > 0) {
			char *got_at = a.local + blockIdx.x * 16;
			c.to(peer).get(got_at, c.turn() + from, 16, {threadIdx.x, 1});
			if (threadIdx.x == 0) page[0] = *(const uint4 *)got_at;
			u64 want = (u64)((const u32 *)(a.out + from))[0] + a.values[0], got = page[0].x;
			if (threadIdx.x == 0 && want != got) c.fail(peer, want, got);
		}
	}
	c.barrier(PHASES - 1);
	c.end();
}
`

// ownAlgorithms are an all-reduce and an all-gather of the test's own.
func ownAlgorithms() []Algorithm {
	return []Algorithm{
		{
			Name: "test/reduce", Collective: AllReduce, MaxBytes: 16 << 10,
			DTypes: []weft.DType{weft.Float32}, Ops: []weft.Op{weft.Sum},
			Kernel: &Kernel{
				Source: ownReduce, Name: "all_reduce", Blocks: 3, Threads: 64, Scratch: 4 * 8 * 16 << 10,
			},
		},
		{
			Name: "test/gather", Collective: AllGather, MaxBytes: 4 * ownPage, Tags: map[string]string{"kind": "pull"},
			Supports: func(q Request) bool { return q.DType == weft.Int32 },
			Key:      func(c *Call) string { return fmt.Sprint(c.Count % 2) },
			Prepare: func(_ context.Context, env *Env) (any, error) {
				env.Local = 64
				return env.Key, nil
			},
			Kernel: &Kernel{
				Source: ownGather, Headers: map[string]string{"more.cuh": "enum { PAGE = PAGE_WORDS };"},
				Defines: map[string]string{"PAGE_WORDS": fmt.Sprint(ownPage)}, Name: "mine::gather<40>",
				Blocks: 4, Threads: 96, Scratch: 2 * 4 * 4 * ownPage, Extras: []string{"counter"},
				Launch: func(l *Launch) error {
					l.Args.Values[0], l.Args.Values[1] = 2, uint64(len(l.Context.(string)))
					if l.Blocks > 2 && l.Call.Count < 100 {
						l.Blocks = 2
					}
					return l.Start()
				},
			},
		},
		{
			Name: "test/broadcast", Collective: Broadcast, MaxBytes: 64 << 10,
			Supports: func(q Request) bool { return q.Bytes%16 == 0 },
			Kernel: &Kernel{
				Source: ownBroadcast, Name: "broadcast", Blocks: 5, Threads: 64, Shared: 64, Scratch: 128 << 10, Local: 16 * 5,
				Launch: func(l *Launch) error {
					if l.Call.Count == ownWrong {
						l.Args.Values[0] = 1
					}
					return l.Start()
				},
			},
		},
	}
}

// checkOwn makes calls of both, by name, with a number of blocks and threads, and compares what comes.
func checkOwnCalls(ctx context.Context, r *gpuRank) error {
	counter := r.memory.Pointer().Add(gpuMemory - 4096)
	if err := r.comm.Device().Context().Upload(counter, make([]byte, 8)); err != nil {
		return err
	}
	calls := 0
	for i, count := range []int{1, 5, 0, 640, 1023, 64, 3} {
		for _, c := range []gpuCase{
			{kind: AllGather, dtype: weft.Int32, count: count, name: "test/gather", inPlace: i%2 == 0, shift: i % 3},
			{
				kind: AllReduce, dtype: weft.Float32, count: count, name: "test/reduce", marks: "halves",
				inPlace: i%2 == 0, shift: i % 3,
			},
			{kind: AllReduce, dtype: weft.Float32, count: count, name: "all-reduce/two-shot"},
			{kind: Broadcast, dtype: weft.Int8, count: 16 * count, root: r.comm.Size() - 1, name: "test/broadcast"},
		} {
			o, err := r.put(c, r.memory.Pointer())
			if err != nil {
				return err
			}
			if c.name == "test/gather" {
				o.call.Extras = map[string]uintptr{"counter": uintptr(counter)}
				calls++
			}
			if o.call.Blocks = []int{0, 1, 2}[i%3]; c.name[0] == 't' {
				o.call.Threads = []int{0, 32, 64}[i%3]
			}
			if i%2 == 0 {
				if err := r.Do(ctx, nil, o.call); err != nil {
					return fmt.Errorf("%v: %w", &c, err)
				}
				if r.Algorithm() != c.name {
					return fmt.Errorf("%v ran by %q", &c, r.Algorithm())
				}
			} else {
				w, err := r.Start(ctx, nil, o.call)
				if err != nil {
					return fmt.Errorf("%v: %w", &c, err)
				}
				if err := errors.Join(w.Wait(ctx), w.Close()); err != nil {
					return fmt.Errorf("%v: %w", &c, err)
				}
			}
			if err := r.verify(ctx, o); err != nil {
				return fmt.Errorf("%v, %d blocks of %d: %w", &c, o.call.Blocks, o.call.Threads, err)
			}
		}
	}
	raw := make([]byte, 8)
	if err := r.comm.Device().Context().Download(raw, counter); err != nil {
		return err
	}
	if got := binary.LittleEndian.Uint64(raw); got != uint64(42*calls) {
		return fmt.Errorf("the extra has %d after %d calls of 42", got, calls)
	}
	return nil
}

// TestOwnCubinOnEmulatedGPUs: a cubin does what its source does, and allocates no more than the library's kernels.
func TestOwnCubinOnEmulatedGPUs(t *testing.T) {
	g := emulatedGPUs(t, 2)
	all := ownAlgorithms()
	k := *all[1].Kernel
	var once sync.Once
	onGPUs(t, g, 2, Options{Staging: gpuStaging}, func(ctx context.Context, r *gpuRank) (err error) {
		once.Do(func() {
			d := r.comm.Device()
			headers := device.Headers()
			maps.Copy(headers, k.Headers)
			var cubin kernel.Cubin
			cubin, err = d.Kernels().Load(ctx, kernel.Spec{
				Name: "cubin", Source: k.Source, Headers: headers, Defines: k.Defines, Kernels: []string{k.Name}, Arch: d.Arch(),
			})
			k.Source, k.Headers, k.Defines = "", nil, nil
			k.Cubin, k.Name = cubin.Image(), cubin.Symbol(k.Name)
		})
		return err
	})
	all[1].Kernel = &k
	onGPUs(t, g, 2, Options{Staging: gpuStaging, SMs: 4, Algorithms: all}, checkOwnCalls)

	if raceEnabled {
		return // the race detector allocates
	}
	onGPUs(t, g, 1, Options{Staging: gpuStaging, SMs: 4, Algorithms: all}, func(ctx context.Context, r *gpuRank) error {
		x := r.tensorOf(0, weft.Float32, 100)
		allocations := func(name string) float64 {
			c := Call{Collective: AllReduce, Out: x, In: x, Algorithm: name}
			return testing.AllocsPerRun(50, func() {
				if err := r.Do(ctx, nil, c); err != nil {
					t.Error(err)
				}
			})
		}
		if library, own := allocations("all-reduce/one-shot"), allocations("test/reduce"); own > library {
			return fmt.Errorf("%v allocations, and %v of a kernel of the library's", own, library)
		}
		return nil
	})
}

// ownReal are this machine's GPUs, for which kernels are compiled in the test.
func ownReal(t *testing.T) *ranktest.GPUs {
	t.Helper()
	g := ranktest.Real(t)
	cudatest.NVRTC(t)
	return g
}

func testOwn(t *testing.T, g *ranktest.GPUs, ranks int) {
	o := Options{Staging: gpuStaging, SMs: 4, Algorithms: ownAlgorithms()}
	onGPUs(t, g, ranks, o, checkOwnCalls)
}

func TestOwnKernelsOnEmulatedGPUs(t *testing.T) {
	for _, ranks := range []int{1, 3} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { testOwn(t, emulatedGPUs(t, ranks), ranks) })
	}
}

// TestOwnKernelsOnGPUs is the same on real ones.
func TestOwnKernelsOnGPUs(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { testOwn(t, ownReal(t), ranks) })
	}
}

// noKernels are ranks whose GPUs only have memory.
func noKernels(t *testing.T, ranks int, body func(ctx context.Context, comm *weft.Comm) error) {
	t.Helper()
	if err := ranktest.Run(ranks, emulatedGPUs(t, ranks).Options, body); err != nil {
		t.Error(err)
	}
}

// TestOwnMismatchOnEmulatedGPUs: what ranks say of their algorithms is compared when the group is made, and what is
// wrong with them is refused.
func TestOwnMismatchOnEmulatedGPUs(t *testing.T) {
	noKernels(t, 2, func(ctx context.Context, comm *weft.Comm) error {
		for name, change := range map[string]func(a *Algorithm){
			"MaxBytes":  func(a *Algorithm) { a.MaxBytes++ },
			"InPlace":   func(a *Algorithm) { a.InPlace = OnlyApart },
			"WorldSize": func(a *Algorithm) { a.WorldSize = 2 },
			"DTypes":    func(a *Algorithm) { a.DTypes = []weft.DType{weft.Int32} },
			"Ops":       func(a *Algorithm) { a.Ops = []weft.Op{weft.Sum} },
			"Source":    func(a *Algorithm) { a.Kernel.Source += " " },
			"Defines":   func(a *Algorithm) { a.Kernel.Defines["PAGE_WORDS"] = "2048" },
			"Extras":    func(a *Algorithm) { a.Kernel.Extras = []string{"other"} },
			"Key":       func(a *Algorithm) { a.Key = nil },
			"Scratch":   func(a *Algorithm) { a.Kernel.Scratch *= 2 },
			"opt-in":    func(a *Algorithm) { a.Tags = map[string]string{"opt-in": "rounds often"} },
		} {
			all := ownAlgorithms()
			if comm.Rank() == 1 {
				change(&all[1])
			}
			_, err := New(ctx, comm, Options{Staging: gpuStaging, Algorithms: all})
			if !errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), "test/gather") {
				return fmt.Errorf("another %s: %w", name, err)
			}
		}
		fewer := ownAlgorithms()[comm.Rank():]
		if _, err := New(ctx, comm, Options{Algorithms: fewer}); !errors.Is(err, weft.ErrMismatch) {
			return fmt.Errorf("fewer algorithms: %w", err)
		}
		for name, change := range map[string]func(a *Algorithm){
			"a name of the library's": func(a *Algorithm) { a.Name = "all-reduce/one-shot" },
			"the same name twice":     func(a *Algorithm) { a.Name = "test/reduce" },
			"no name":                 func(a *Algorithm) { a.Name = "" },
			"no kernel":               func(a *Algorithm) { a.Kernel = nil },
			"no source":               func(a *Algorithm) { a.Kernel.Source = "" },
			"no function":             func(a *Algorithm) { a.Kernel.Name = "" },
			"no collective":           func(a *Algorithm) { a.Collective = 99 },
			"an eager one":            func(a *Algorithm) { a.Eager = true },
			"a variant":               func(a *Algorithm) { a.Variant = spec.WithWords },
			"windows of a root":       func(a *Algorithm) { a.Collective, a.Needs = Gather, Outputs },
			"placement of a rooted":   func(a *Algorithm) { a.Collective, a.InPlace = Gather, OnlyApart },
			"no operands to need":     func(a *Algorithm) { a.Needs = InPlace },
			"a range":                 func(a *Algorithm) { a.MinBytes = a.MaxBytes + 1 },
			"no type":                 func(a *Algorithm) { a.DTypes = []weft.DType{weft.Float32, 99} },
			"no reduction":            func(a *Algorithm) { a.Ops = []weft.Op{99} },
			"scratch of no GPU":       func(a *Algorithm) { a.Kernel.Scratch = 1 << 62 },
			"local memory of no GPU":  func(a *Algorithm) { a.Kernel.Local = 1 << 62 },
			"many threads":            func(a *Algorithm) { a.Kernel.Threads = 1025 },
			"many extras":             func(a *Algorithm) { a.Kernel.Extras = strings.Fields("a b c d e f g h i") },
			"an extra twice":          func(a *Algorithm) { a.Kernel.Extras = []string{"x", "x"} },
			"counts without a hook":   func(a *Algorithm) { a.Collective, a.Kernel.Launch = AllGatherV, nil },
		} {
			all := ownAlgorithms()
			change(&all[1])
			if _, err := New(ctx, comm, Options{Algorithms: all}); !errors.Is(err, weft.ErrInvalid) {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	job := newJob(t, 2)
	for _, err := range job.each(t, func(ctx context.Context, r int) error {
		_, err := New(ctx, job.comms[r], Options{Algorithms: ownAlgorithms()})
		return err
	}) {
		if !errors.Is(err, weft.ErrUnsupported) {
			t.Errorf("on the host: %v", err)
		}
	}
}

// TestOwnSourceOnEmulatedGPUs: what the compiler says of a source is in every rank's error.
func TestOwnSourceOnEmulatedGPUs(t *testing.T) {
	noKernels(t, 2, func(ctx context.Context, comm *weft.Comm) error {
		for _, source := range []string{
			"#include \"weft.cuh\"\nextern \"C\" __global__ void mine() { nonsense(); }", "#include \"nonsense.cuh\"",
		} {
			all := []Algorithm{{
				Name: "test/broken", Collective: AllReduce, Kernel: &Kernel{Source: source, Name: "mine"},
			}}
			_, err := New(ctx, comm, Options{Staging: gpuStaging, Algorithms: all})
			if err == nil || !strings.Contains(err.Error(), "test/broken") || !strings.Contains(err.Error(), "nonsense") {
				return fmt.Errorf("a source that does not compile: %w", err)
			}
		}
		return nil
	})
}

// TestOwnRefusalsOnEmulatedGPUs: calls that an algorithm cannot make are refused before anything is enqueued.
func TestOwnRefusalsOnEmulatedGPUs(t *testing.T) {
	o := Options{Staging: gpuStaging, SMs: 4, Algorithms: ownAlgorithms()}
	o.Algorithms[0].InPlace = OnlyInPlace
	onGPUs(t, emulatedGPUs(t, 2), 2, o, func(ctx context.Context, r *gpuRank) error {
		x, y := r.tensorOf(0, weft.Float32, 8), r.tensorOf(1024, weft.Float32, 8)
		in, out := r.tensorOf(0, weft.Int32, 8), r.tensorOf(1024, weft.Int32, 16)
		counter := map[string]uintptr{"counter": 0}
		for i, c := range []Call{
			{Collective: AllReduce, Out: x, In: x, Algorithm: "test/reduce", Blocks: 4},
			{Collective: AllReduce, Out: x, In: x, Algorithm: "test/reduce", Threads: 65},
			{Collective: AllReduce, Out: x, In: x, Algorithm: "test/reduce", Blocks: -1},
			{Collective: AllReduce, Out: x, In: x, Algorithm: "test/reduce", Extras: counter},
			{Collective: AllReduce, Out: y, In: x, Algorithm: "test/reduce"},
			{Collective: AllReduce, Out: x, In: x, Algorithm: "test/reduce", Op: weft.Max},
			{Collective: AllReduce, Out: x, In: x, Algorithm: "test/gather"},
			{Collective: AllReduce, Out: x, In: x, Threads: 64},
			{Collective: AllReduce, Out: x, In: x, Extras: counter},
			{Collective: AllGather, Out: out, In: in, Algorithm: "test/gather"},
			{Collective: AllGather, Out: out, In: in, Algorithm: "test/gather", Extras: map[string]uintptr{"x": 0}},
			{
				Collective: AllGather, Out: out, In: in, Algorithm: "test/gather",
				Extras: map[string]uintptr{"counter": 0, "x": 0},
			},
			{
				Collective: AllGather, Out: r.tensorOf(1024, weft.Int64, 16), In: r.tensorOf(0, weft.Int64, 8),
				Algorithm: "test/gather", Extras: counter,
			},
		} {
			err := r.Do(ctx, nil, c)
			if !errors.Is(err, weft.ErrInvalid) && !errors.Is(err, weft.ErrUnsupported) {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		return r.check(ctx, gpuCase{
			kind: AllReduce, dtype: weft.Float32, count: 9, inPlace: true, marks: "halves", name: "test/reduce",
		})
	})
}

// TestRequestsOnEmulatedGPUs: where operands lie differs between ranks, and what they choose by does not.
func TestRequestsOnEmulatedGPUs(t *testing.T) {
	const ranks = 2
	all := ownAlgorithms()[:1]
	all[0].InPlace = OnlyApart // so ranks look
	var requests [ranks][]Request
	g := emulatedGPUs(t, ranks)
	onGPUs(t, g, ranks, Options{Staging: gpuStaging, SMs: 4, Algorithms: all}, func(ctx context.Context, r *gpuRank,
	) (err error) {
		w, err := r.comm.Alloc(ctx, 4096)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		me := r.comm.Rank()
		outside := func(at, n int) weft.Tensor { return r.tensorOf(at, weft.Float32, n) }
		inside := func(at, n int) weft.Tensor { return weft.DeviceTensor(w.Pointer().Add(4*at), weft.Float32, n) }
		const n = 8
		gather := Call{Collective: Gather, In: outside(0, n), Out: outside(100, n*ranks)}
		scatter := Call{Collective: Scatter, In: outside(100, n*ranks), Out: outside(0, n)}
		if me == 0 { // the root is in place
			gather.In, scatter.Out = outside(100, n), outside(100, n)
		}
		rootWindows := gather
		if rootWindows.Symmetric, rootWindows.In = true, inside(0, n); me == 0 {
			rootWindows.Out = inside(100, n*ranks)
		}
		counts := Counts{Recv: []int{0, n}}
		gatherV := Call{
			Collective: AllGatherV, Counts: counts, Symmetric: true, In: outside(100, counts.Recv[me]), Out: inside(0, n),
		}
		inPlaceV := gatherV
		inPlaceV.In = inside(0, counts.Recv[me])
		scatterV := Call{
			Collective: ReduceScatterV, Counts: Counts{Send: []int{n, 0}}, Symmetric: true, In: inside(0, n),
			Out: outside(100, n-n*me),
		}
		toAllV := Call{Collective: AllToAllV, Symmetric: true, In: outside(0, 0), Out: inside(0, n)}
		toAllV.Counts.Send, toAllV.Counts.Recv = []int{0, 0}, []int{0, n}
		if me == 1 {
			toAllV.In, toAllV.Out = inside(0, n), outside(0, 0)
			toAllV.Counts.Send, toAllV.Counts.Recv = []int{n, 0}, []int{0, 0}
		}
		for _, c := range []Call{gather, scatter, rootWindows, gatherV, inPlaceV, scatterV, toAllV} {
			if err := r.Group.check(&c); err != nil {
				return err
			}
			q, err := r.engine.Request(&c)
			if err != nil {
				return fmt.Errorf("%v: %w", &c, err)
			}
			requests[me] = append(requests[me], q)
		}
		return nil
	})
	for i, q := range requests[0] {
		if other := requests[1][i]; q != other {
			t.Errorf("rank 0 chooses by %+v, rank 1 by %+v", q, other)
		}
	}
}

// TestOwnKeysOnEmulatedGPUs: each key has its context, there are so many at most, a capture makes none, and the group
// closes all.
func TestOwnKeysOnEmulatedGPUs(t *testing.T) {
	const ranks = 2
	made, ended := make([]int, ranks), make([]int, ranks)
	all := ownAlgorithms()[:1]
	all[0].Key = func(c *Call) string { return fmt.Sprint(c.Count) }
	all[0].Prepare = func(ctx context.Context, env *Env) (any, error) {
		err := env.Comm.Operations().VerifySame(ctx, "prepare", env.Key, nil)
		if env.Key == "13" && env.Comm.Rank() == 1 {
			err = errors.New("unlucky")
		}
		env.Scratch = 4 * 4 * ranks * (env.Call.Count + 15)
		made[env.Comm.Rank()]++
		return closed(func() { ended[env.Comm.Rank()]++ }), err
	}
	o := Options{Staging: gpuStaging, SMs: 4, Algorithms: all}
	onGPUs(t, emulatedKernels(t, ranks), ranks, o, func(ctx context.Context, r *gpuRank) error {
		call := func(count int) error {
			return r.check(ctx, gpuCase{
				kind: AllReduce, dtype: weft.Float32, count: count, marks: "halves", name: "test/reduce",
			})
		}
		x := r.tensorOf(0, weft.Float32, 70)
		c := Call{Collective: AllReduce, Out: x, In: x, Algorithm: "test/reduce"}
		captured := r.capture(func(s *weft.Stream) error { return r.Do(ctx, s, c) }, nil)
		if !errors.Is(captured, weft.ErrUnsupported) || !strings.Contains(captured.Error(), "captured") {
			return fmt.Errorf("the first call of a key in a capture: %w", captured)
		}
		for count := 1; count <= 12; count++ {
			if err := call(count); err != nil {
				return err
			}
		}
		if err := call(13); err == nil || !strings.Contains(err.Error(), "unlucky") {
			return fmt.Errorf("a Prepare that fails: %w", err)
		}
		for count := 14; count <= 65; count++ {
			if err := call(count); err != nil {
				return err
			}
		}
		if err := call(66); !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "64 keys") {
			return fmt.Errorf("one key more: %w", err)
		}
		if err := call(65); err != nil {
			return err
		}
		if n := made[r.comm.Rank()]; n != 65 { // and one that came to nothing
			return fmt.Errorf("%d contexts", n)
		}
		return nil
	})
	if fmt.Sprint(ended) != fmt.Sprint(made) {
		t.Errorf("%v contexts were made, and %v closed", made, ended)
	}
}

type closed func()

func (f closed) Close() error {
	f()
	return nil
}

// testOwnGraphs replays calls of the test's own, and of the library's, of several contexts, among others.
func testOwnGraphs(t *testing.T, g *ranktest.GPUs, ranks, times int) {
	o := Options{Staging: gpuStaging, SMs: 4, Algorithms: ownAlgorithms(), DTypes: []weft.DType{weft.Float32}}
	onGPUs(t, g, ranks, o, func(ctx context.Context, r *gpuRank) error {
		if err := checkOwnCalls(ctx, r); err != nil { // both keys have their context now
			return err
		}
		cases := []gpuCase{
			{kind: AllReduce, dtype: weft.Float32, count: 100, marks: "halves", name: "test/reduce"},
			{kind: AllGather, dtype: weft.Int32, count: 50, name: "test/gather"},
			{kind: AllReduce, dtype: weft.Float32, count: 1000, marks: "halves", name: "all-reduce/one-shot"},
			{kind: AllGather, dtype: weft.Int32, count: 401, name: "test/gather", inPlace: true},
			{kind: AllReduce, dtype: weft.Float32, count: 3, marks: "halves", name: "test/reduce", inPlace: true},
		}
		calls := make([]*gpuOperands, len(cases))
		put := func() (err error) {
			for i, c := range cases {
				var again error
				calls[i], again = r.put(c, r.memory.Pointer().Add((i+1)*(256<<10)))
				if c.kind == AllGather {
					calls[i].call.Extras = map[string]uintptr{"counter": 0}
				}
				err = errors.Join(err, again)
			}
			return err
		}
		if err := put(); err != nil {
			return err
		}
		return r.capture(func(s *weft.Stream) error {
			for _, o := range calls {
				if err := r.Do(ctx, s, o.call); err != nil {
					return err
				}
			}
			return nil
		}, func(s *cuda.Stream, g *cuda.GraphExec) error {
			for replay := range times {
				if err := put(); err != nil {
					return err
				}
				if err := errors.Join(g.Launch(s), r.comm.Wait(ctx, weft.StreamOf(s))); err != nil {
					return err
				}
				for i, o := range calls {
					if err := r.verify(ctx, o); err != nil {
						return fmt.Errorf("replay %d, %v: %w", replay, &cases[i], err)
					}
				}
				if replay%2 == 0 {
					if err := r.check(ctx, cases[replay%5/2*2]); err != nil && cases[replay%5/2*2].kind == AllReduce {
						return err
					}
				}
			}
			return nil
		})
	})
}

func TestOwnGraphsOnEmulatedGPUs(t *testing.T) { testOwnGraphs(t, emulatedGPUs(t, 2), 2, 6) }

// TestOwnGraphsOnGPUs is the same on real ones.
func TestOwnGraphsOnGPUs(t *testing.T) { testOwnGraphs(t, ownReal(t), 4, 1000) }

// testOwnAbsent: a wait in a user's kernel ends at the deadline, and names the rank that did not come; then all go
// on, and without a rank that is masked.
func testOwnAbsent(t *testing.T, g *ranktest.GPUs) {
	const ranks, absent = 3, 1
	o := Options{Staging: gpuStaging, SMs: 4, Algorithms: ownAlgorithms()}
	onGPUs(t, g, ranks, o, func(context.Context, *gpuRank) error { return nil }) // compiles the kernels
	withDeadline(t, g, ranks, 2*time.Second, o, func(ctx context.Context, r *gpuRank) error {
		if err := checkOwnCalls(ctx, r); err != nil {
			return err
		}
		x, in, out := r.tensorOf(0, weft.Float32, 20), r.tensorOf(4096, weft.Int32, 20), r.tensorOf(8192, weft.Int32, 60)
		for _, c := range []Call{
			{Collective: AllReduce, Out: x, In: x, Algorithm: "test/reduce"},
			{Collective: AllGather, Out: out, In: in, Algorithm: "test/gather", Extras: map[string]uintptr{"counter": 0}},
		} {
			if r.comm.Rank() != absent {
				err := r.Do(ctx, nil, c)
				late, ok := errors.AsType[*weft.PeerError](err)
				if !ok || late.Rank != absent || !errors.Is(err, weft.ErrTimeout) ||
					!strings.Contains(err.Error(), c.Collective.String()) {
					return fmt.Errorf("%s without rank %d: %w", c.Algorithm, absent, err)
				}
			}
			if err := errors.Join(r.host.Barrier(ctx, nil), r.comm.SetMask(ctx)); err != nil {
				return err
			}
			if err := checkOwnCalls(ctx, r); err != nil {
				return fmt.Errorf("after %s: %w", c.Algorithm, err)
			}
		}
		return r.host.Barrier(ctx, nil)
	})
	onGPUs(t, g, ranks, o, func(ctx context.Context, r *gpuRank) error {
		if r.comm.Rank() == absent {
			time.Sleep(20 * time.Millisecond)
			r.comm.Abort()
		} else {
			x := r.tensorOf(0, weft.Float32, 20)
			err := r.Do(ctx, nil, Call{Collective: AllReduce, Out: x, In: x, Algorithm: "test/reduce"})
			if late, ok := errors.AsType[*weft.PeerError](err); !ok || late.Rank != absent || !errors.Is(err, weft.ErrAborted) {
				return fmt.Errorf("rank %d aborts: %w", absent, err)
			}
		}
		return errors.Join(r.host.Barrier(ctx, nil), r.comm.SetMask(ctx), checkOwnCalls(ctx, r))
	})
	var survivors sync.WaitGroup
	survivors.Add(ranks - 1)
	waits := make(chan struct{})
	onGPUs(t, g, ranks, o, func(ctx context.Context, r *gpuRank) error {
		if err := errors.Join(checkOwnCalls(ctx, r), r.host.Barrier(ctx, nil)); err != nil {
			return err
		}
		if r.comm.Rank() == absent {
			close(waits)
			survivors.Wait()
			return nil
		}
		<-waits // it has come out of the barrier
		defer survivors.Done()
		beside := r.beside.SetMask(ctx, absent)
		if err := errors.Join(beside, r.comm.SetMask(ctx, absent), checkOwnCalls(ctx, r)); err != nil {
			return fmt.Errorf("rank %d is masked: %w", absent, err)
		}
		return nil
	})
}

// testOwnFails: a kernel that finds its data wrong ends the operation, with what it says in the error.
func testOwnFails(t *testing.T, g *ranktest.GPUs) {
	o := Options{Staging: gpuStaging, SMs: 4, Algorithms: ownAlgorithms()}
	onGPUs(t, g, 3, o, func(ctx context.Context, r *gpuRank) error {
		x := r.tensorOf(0, weft.Int8, ownWrong)
		err := r.Do(ctx, nil, Call{Collective: Broadcast, Out: x, In: x, Root: 2, Algorithm: "test/broadcast"})
		if r.comm.Rank() == 0 && (!errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), "user's algorithm")) {
			return fmt.Errorf("a kernel that fails: %w", err)
		}
		if err := errors.Join(r.host.Barrier(ctx, nil), r.comm.SetMask(ctx)); err != nil {
			return err
		}
		return checkOwnCalls(ctx, r)
	})
}

func TestOwnFailsOnEmulatedGPUs(t *testing.T) { testOwnFails(t, emulatedGPUs(t, 3)) }

// TestOwnFailsOnGPUs is the same on real ones.
func TestOwnFailsOnGPUs(t *testing.T) { testOwnFails(t, ownReal(t)) }

func TestOwnAbsentRankOnEmulatedGPUs(t *testing.T) { testOwnAbsent(t, emulatedGPUs(t, 3)) }

// TestOwnAbsentRankOnGPUs is the same on real ones.
func TestOwnAbsentRankOnGPUs(t *testing.T) { testOwnAbsent(t, ownReal(t)) }

// ownPull gathers what lies in windows: it reads it there.
const ownPull = `#include "weft.cuh"
using namespace weft;

extern "C" __global__ void pull(const __grid_constant__ AlgorithmArgs a) {
	Call c(a);
	if (!c.begun) return;
	Threads all = Threads::of_grid();
	if (c.barrier(0)) { // every rank's input is as its stream has left it
		for (u32 r = 0; r < c.ranks(); r++) {
			if (r != c.rank() && !holds(c.peers, r)) continue;
			for (u64 i = all.at; i < a.count; i += all.count)
				((u32 *)a.out)[r * a.count + i] = load_relaxed_sys4(a.ins[r] + 4 * i);
		}
	}
	c.barrier(1); // no rank changes its input before all have read it
	c.end();
}
`

// testOwnPull: a kernel that needs inputs in windows finds every rank's, also those that lie in outputs.
func testOwnPull(t *testing.T, g *ranktest.GPUs, ranks int) {
	const words = 500
	o := Options{Staging: gpuStaging, SMs: 4, Algorithms: []Algorithm{{
		Name: "test/pull", Collective: AllGather, Needs: Inputs, WorldSize: ranks,
		Kernel: &Kernel{Source: ownPull, Name: "pull", Blocks: 3, Threads: 64},
	}}}
	onGPUs(t, g, ranks, o, func(ctx context.Context, r *gpuRank) (err error) {
		w, err := r.comm.Alloc(ctx, 4*(1+ranks)*words)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		c := Call{
			Collective: AllGather, In: weft.DeviceTensor(w.Pointer(), weft.Uint32, words),
			Out: r.tensorOf(0, weft.Uint32, ranks*words), Algorithm: "test/pull",
		}
		if err := r.Do(ctx, nil, c); !errors.Is(err, weft.ErrUnsupported) {
			return fmt.Errorf("a call that is not symmetric: %w", err)
		}
		c.Symmetric = true
		raw := make([]byte, 4*ranks*words)
		for round := range 5 {
			if round == 3 { // in place
				whole := w.Pointer().Add(4 * words)
				c.Out = weft.DeviceTensor(whole, weft.Uint32, ranks*words)
				c.In = weft.DeviceTensor(whole.Add(4*words*r.comm.Rank()), weft.Uint32, words)
			}
			for i := range words {
				binary.LittleEndian.PutUint32(raw[4*i:], uint32(round<<20|r.comm.Rank()<<16|i))
			}
			device := r.comm.Device().Context()
			if err := errors.Join(device.Upload(c.In.Pointer(), raw[:4*words]), r.Do(ctx, nil, c),
				device.Download(raw, c.Out.Pointer())); err != nil {
				return err
			}
			for i := range ranks * words {
				want := uint32(round<<20 | i/words<<16 | i%words)
				if got := binary.LittleEndian.Uint32(raw[4*i:]); got != want {
					return fmt.Errorf("round %d, word %d is %#x, want %#x", round, i, got, want)
				}
			}
		}
		return nil
	})
}

func TestOwnPullOnEmulatedGPUs(t *testing.T) { testOwnPull(t, emulatedGPUs(t, 3), 3) }

// TestOwnPullOnGPUs is the same on real ones.
func TestOwnPullOnGPUs(t *testing.T) { testOwnPull(t, ownReal(t), 4) }

// TestBlocksOnEmulatedGPUs: a call's bound on blocks holds for the library's kernels, and changes no result.
func TestBlocksOnEmulatedGPUs(t *testing.T) {
	onGPUs(t, emulatedGPUs(t, 3), 3, Options{Staging: gpuStaging, SMs: 4}, func(ctx context.Context, r *gpuRank) error {
		for _, kind := range kindsOnGPUs() {
			for _, blocks := range []int{1, 3, 1 << 20} {
				o, err := r.put(gpuCase{kind: kind, dtype: weft.BFloat16, count: 1001, root: 1}, r.memory.Pointer())
				if err != nil {
					return err
				}
				o.call.Blocks = blocks
				if err := r.Do(ctx, nil, o.call); err != nil {
					return err
				}
				if err := r.verify(ctx, o); err != nil {
					return fmt.Errorf("%v with %d blocks: %w", kind, blocks, err)
				}
			}
		}
		return nil
	})
}

// TestSelectOnEmulatedGPUs: a selector chooses among what fits, unless a call names its algorithm.
func TestSelectOnEmulatedGPUs(t *testing.T) {
	o := Options{Staging: gpuStaging, SMs: 4, Algorithms: ownAlgorithms()[:1]}
	o.Select = func(q Request, fit []Algorithm) string {
		for _, a := range fit {
			if a.Kernel != nil && q.Count%2 == 0 || q.Count > 5000 && a.Name == "all-reduce/two-shot" {
				return a.Name
			}
		}
		if q.Count == 3 {
			return "test/reduce/no such"
		}
		return ""
	}
	onGPUs(t, emulatedGPUs(t, 2), 2, o, func(ctx context.Context, r *gpuRank) error {
		for _, c := range []struct {
			count       int
			named, want string
		}{
			{count: 8, want: "test/reduce"},
			{count: 7, want: "all-reduce/one-shot"},
			{count: 8, named: "all-reduce/two-shot", want: "all-reduce/two-shot"},
			{count: 5002, want: "all-reduce/two-shot"},
		} {
			x := gpuCase{kind: AllReduce, dtype: weft.Float32, count: c.count, name: c.named, marks: "halves"}
			if err := r.check(ctx, x); err != nil {
				return err
			}
			if got := r.Algorithm(); got != c.want {
				return fmt.Errorf("%d elements, %q named: %s, want %s", c.count, c.named, got, c.want)
			}
		}
		x := r.tensorOf(0, weft.Float32, 3)
		if err := r.AllReduce(ctx, nil, x, x, weft.Sum); !errors.Is(err, weft.ErrInvalid) {
			return fmt.Errorf("a selector that names what is not there: %w", err)
		}
		return nil
	})
	o.Select = nil
	onGPUs(t, emulatedGPUs(t, 2), 2, o, func(ctx context.Context, r *gpuRank) error {
		if err := r.check(ctx, gpuCase{kind: AllReduce, dtype: weft.Float32, count: 9}); err != nil {
			return err
		}
		if r.Algorithm() == "test/reduce" {
			return errors.New("an algorithm without a cost runs where nobody chose it")
		}
		return nil
	})
	o.Algorithms[0].Cost = func(q Request, _ *Model) float64 { return float64(q.Bytes) / 1e6 }
	onGPUs(t, emulatedGPUs(t, 2), 2, o, func(ctx context.Context, r *gpuRank) error {
		if err := r.check(ctx, gpuCase{kind: AllReduce, dtype: weft.Float32, count: 9, marks: "halves"}); err != nil {
			return err
		}
		if r.Algorithm() != "test/reduce" {
			return fmt.Errorf("the cheapest is not chosen, but %s", r.Algorithm())
		}
		return r.check(ctx, gpuCase{kind: AllReduce, dtype: weft.Float32, count: 9, op: weft.Max})
	})
	job := newJob(t, 2)
	groups := job.group(t, Options{Select: func(_ Request, fit []Algorithm) string { return fit[len(fit)-1].Name }})
	job.must(t, func(ctx context.Context, r int) error {
		x := []float32{float32(r), 1}
		err := groups[r].AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Sum)
		if got := groups[r].Algorithm(); err == nil && (x[0] != 1 || x[1] != 2 || got == "all-reduce/eager") {
			err = fmt.Errorf("%v by %s", x, got)
		}
		return errors.Join(err, groups[r].Close())
	})
}

// TestOwnKernelsCompile compiles users' kernels, and with them the headers that they include, for GPUs without a
// warning. The numbers in the headers are Go's.
func TestOwnKernelsCompile(t *testing.T) {
	numbers := layout.Constants(map[string]int{
		"BFLOAT16": int(weft.BFloat16), "FLOAT8_E4M3": int(weft.Float8E4M3), "UE8M0": int(weft.UE8M0),
		"INT8": int(weft.Int8), "UINT8": int(weft.Uint8), "UINT64": int(weft.Uint64), "BOOL": int(weft.Bool),
		"SUM": int(weft.Sum), "MIN": int(weft.Min), "MAX": int(weft.Max), "PROD": int(weft.Prod),
		"AVG": int(weft.Avg), "PRE_MUL_SUM": int(weft.PreMulSum),
	})
	cudatest.NVRTC(t)
	c, err := kernel.NVRTC()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range ownAlgorithms() {
		for _, arch := range []string{"sm_80", "sm_90a", "sm_100a"} {
			headers := device.Headers()
			maps.Copy(headers, a.Kernel.Headers)
			code, err := c.Compile(t.Context(), kernel.Spec{
				Name: a.Name, Source: a.Kernel.Source + numbers, Headers: headers, Defines: a.Kernel.Defines,
				Kernels: []string{a.Kernel.Name}, Arch: arch,
			})
			if err != nil || code.Log != "" {
				t.Errorf("%s for %s: %v %s", a.Name, arch, err, code.Log)
			}
		}
	}
}
