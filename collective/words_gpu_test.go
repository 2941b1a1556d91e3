package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/internal/ranktest"
)

// beside is kernels that run beside collectives with words, as a matrix product would: consume copies the
// parts that have landed, produce makes the parts that are read.
const besideSource = `#include "progress.cuh"
using namespace weft;

struct Beside {
	u64 *words;        // [ranks][chunks]
	const char *from;  // produce: what it makes; consume: what it reads
	char *to;
	u64 part, size;    // bytes of a part and of a chunk
	u64 *times;        // how many calls came before: a graph is replayed with the same arguments
	u64 patience;      // in nanoseconds
	u32 *late;         // raised if a word did not come
	u32 ranks, rank, chunks, zero;
};

__device__ __forceinline__ void copy(const Beside &a, u32 r, u32 i) {
	u64 from = min(i * a.size, a.part), to = min(from + a.size, a.part);
	for (u64 at = from + threadIdx.x; at < to; at += blockDim.x) a.to[r * a.part + at] = a.from[r * a.part + at];
}

extern "C" __global__ void consume(const __grid_constant__ Beside a) {
	__shared__ bool there;
	u64 times = *a.times + 1;
	for (u32 k = 0; k < a.ranks; k++) {
		u32 r = (a.rank + k) % a.ranks;
		for (u32 i = 0; i < a.chunks; i++) {
			if (threadIdx.x == 0) there = progress_wait(a.words + r * a.chunks + i, times, a.patience);
			__syncthreads();
			if (!there) {
				*a.late = 1;
				return;
			}
			copy(a, r, i);
			__syncthreads();
		}
	}
	if (threadIdx.x == 0) *a.times = times;
}

extern "C" __global__ void produce(const __grid_constant__ Beside a) {
	__shared__ bool free;
	for (u32 k = 0; k < a.ranks; k++) {
		u32 r = (a.rank + 1 + k) % a.ranks;
		for (u32 i = 0; i < a.chunks; i++) {
			u64 *word = a.words + r * a.chunks + i;
			if (threadIdx.x == 0) free = ready_taken(word, a.patience);
			__syncthreads();
			if (!free) {
				*a.late = 1;
				return;
			}
			copy(a, r, i);
			ready_raise(word);
		}
	}
}
`

type besideArgs struct {
	words, from, to     cuda.Pointer
	part, size          uint64
	times               cuda.Pointer
	patience            uint64
	late                cuda.Pointer
	ranks, rank, chunks uint32
	_                   uint32
}

// beside is a rank's kernels, and its second stream.
type beside struct {
	program *enginegpu.Program
	stream  *cuda.Stream
	launch  [2]enginegpu.Launch[besideArgs] // consume, produce
}

func newBeside(ctx context.Context, r *gpuRank) (b *beside, err error) {
	b = &beside{}
	d := r.comm.Device()
	b.program, err = enginegpu.Load(ctx, r.comm, "test", enginegpu.Source{
		Spec:   kernel.Spec{Name: "kernels beside", Source: besideSource, Headers: device.Headers(), Arch: d.Arch()},
		Extern: []string{"consume", "produce"},
	})
	if err != nil {
		return nil, err
	}
	for i, f := range b.program.Functions(0) {
		b.launch[i], err = enginegpu.NewLaunch(f, cuda.LaunchConfig{Block: cuda.Dim{X: 64}}, besideArgs{})
		if err != nil {
			return b, err
		}
	}
	b.stream, err = d.Context().NewStream(cuda.StreamOptions{})
	return b, err
}

func (b *beside) close() error { return errors.Join(b.stream.Close(), b.program.Close()) }

// Where things of a call with words lie in a rank's memory.
const (
	wordsInput  = 0
	wordsOutput = 1 << 20
	wordsCopy   = 2 << 20
	wordsWords  = 3 << 20
	wordsTimes  = 3<<20 + 256<<10
	wordsLate   = wordsTimes + 64
)

// onGPU makes a call of each kind, eagerly or as a graph that is replayed, with a kernel beside it that waits for
// the call or that the call waits for.
func (c *wordsCase) onGPU(ctx context.Context, r *gpuRank, b *beside, kind Collective, replays int) error {
	ctxt, base, me, ranks := r.comm.Device().Context(), r.memory.Pointer(), r.comm.Rank(), r.comm.Size()
	n := c.count * c.dtype.Size()
	in, out := base.Add(wordsInput+16), base.Add(wordsOutput+16)
	words := weft.DeviceTensor(base.Add(wordsWords), weft.Int64, ranks*c.chunks)
	call := Call{Collective: kind, Algorithm: c.name}
	args := besideArgs{
		words: words.Pointer(), part: uint64(n), size: uint64(max(1, spec16(n, c.chunks))), times: base.Add(wordsTimes),
		patience: uint64(20 * time.Second), late: base.Add(wordsLate), ranks: uint32(ranks), rank: uint32(me),
		chunks: uint32(c.chunks),
	}
	zeros := make([]byte, 8*ranks*c.chunks+64)
	fill := bytes.Repeat([]byte{0xA5}, ranks*n+64)
	ok := errors.Join(ctxt.Upload(words.Pointer(), zeros), ctxt.Upload(args.times, zeros[:64]),
		ctxt.Upload(args.late, zeros[:64]))
	var parts, want []byte
	var launch enginegpu.Launch[besideArgs]
	if kind == AllGather {
		if c.inPlace {
			in = out.Add(me * n)
		}
		parts, want = fill, c.gathered(ranksUpTo(ranks), ranks)
		call.In, call.Out = weft.DeviceTensor(in, c.dtype, c.count), weft.DeviceTensor(out, c.dtype, ranks*c.count)
		call.Words.Progress = words
		launch, args.from, args.to = b.launch[0], out, base.Add(wordsCopy)
	} else {
		if c.inPlace {
			out = in.Add(me * n)
		}
		for to := range ranks {
			parts = append(parts, c.part(me, to)...)
		}
		want = c.reduced(me, ranksUpTo(ranks))
		call.In, call.Out = weft.DeviceTensor(in, c.dtype, ranks*c.count), weft.DeviceTensor(out, c.dtype, c.count)
		call.Words.Ready = words
		launch, args.from, args.to = b.launch[1], base.Add(wordsCopy), in
	}
	ok = errors.Join(ok, ctxt.Upload(in, fill[:n]), ctxt.Upload(base.Add(wordsCopy), append(parts, 0)))
	*launch.Args = args
	check := func() error {
		late, result := make([]byte, 4), make([]byte, len(want)+1)
		if err := errors.Join(ctxt.Download(late, args.late), ctxt.Download(result, call.Out.Pointer())); err != nil {
			return err
		}
		if !bytes.Equal(result[:len(want)], want) || late[0] != 0 {
			return fmt.Errorf("the result differs, late %d", late[0])
		}
		if kind != AllGather {
			return nil
		}
		err := ctxt.Download(result, args.to)
		if !bytes.Equal(result[:len(want)], want) {
			err = errors.Join(err, errors.New("what was read beside differs"))
		}
		return err
	}
	if ok != nil {
		return ok
	}
	for i := range replays {
		if kind == AllGather {
			ok = ctxt.Upload(in, c.part(me, 0))
		}
		started := make(chan error, 1) // emulated kernels run where they are started
		go func() { started <- launch.Start(b.stream) }()
		ok = errors.Join(ok, r.Do(ctx, nil, call), <-started, b.stream.Wait(ctx))
		if ok = errors.Join(ok, check()); ok != nil {
			return fmt.Errorf("call %d of %d: %w", i, replays, ok)
		}
	}
	return c.inGraph(ctx, r, b, launch, call, replays, check)
}

// inGraph replays the call and the kernel beside it, which are two branches of a graph.
func (c *wordsCase) inGraph(ctx context.Context, r *gpuRank, b *beside, launch enginegpu.Launch[besideArgs], call Call,
	replays int, check func() error,
) error {
	ctxt, me := r.comm.Device().Context(), r.comm.Rank()
	fork, err := ctxt.NewEvent(cuda.EventOptions{})
	if err != nil {
		return err
	}
	join, err := ctxt.NewEvent(cuda.EventOptions{})
	if err != nil {
		return errors.Join(err, fork.Close())
	}
	err = r.capture(func(s *weft.Stream) error {
		err := errors.Join(fork.Record(s.CUDA()), b.stream.WaitEvent(fork))
		if call.Collective == AllGather { // an emulated graph is a list
			err = errors.Join(err, r.Do(ctx, s, call), launch.Start(b.stream))
		} else {
			err = errors.Join(err, launch.Start(b.stream), r.Do(ctx, s, call))
		}
		return errors.Join(err, join.Record(b.stream), s.CUDA().WaitEvent(join))
	}, func(s *cuda.Stream, g *cuda.GraphExec) error {
		for i := range replays {
			var err error
			if call.Collective == AllGather {
				err = ctxt.Upload(call.In.Pointer(), c.part(me, 0))
			}
			if err := errors.Join(err, g.Launch(s), r.comm.Wait(ctx, weft.StreamOf(s)), check()); err != nil {
				return fmt.Errorf("replay %d: %w", i, err)
			}
		}
		return nil
	})
	return errors.Join(err, fork.Close(), join.Close())
}

func spec16(part, chunks int) int { return (part + 16*chunks - 1) / (16 * chunks) * 16 }

// withWords makes calls with words, among others.
func withWords(types []weft.DType, replays int) func(ctx context.Context, r *gpuRank) error {
	return func(ctx context.Context, r *gpuRank) (err error) {
		b, err := newBeside(ctx, r)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.close()) }()
		number := 0
		for _, d := range types {
			// Loads kernels, which would wait for those beside.
			n, m := weft.DeviceTensor(r.memory.Pointer(), weft.Int64, r.comm.Size()), weft.DeviceTensor(r.memory.Pointer(), d, 0)
			if err := errors.Join(r.AllGatherProgress(ctx, nil, m, m, n), r.comm.Device().Context().Upload(n.Pointer(),
				bytes.Repeat([]byte{1}, n.Bytes())), r.ReduceScatterReady(ctx, nil, m, m, n, weft.Sum)); err != nil {
				return err
			}
			for _, count := range []int{0, 1, 37, 1000, 9000} {
				c := wordsCase{
					dtype: d, count: count, inPlace: number%2 == 1, chunks: 1 + number%4*3 + r.comm.Rank(), number: number,
				}
				for _, kind := range []Collective{AllGather, ReduceScatter} {
					if err := c.onGPU(ctx, r, b, kind, replays); err != nil {
						return fmt.Errorf("%v, %+v: %w", kind, c, err)
					}
				}
				other := gpuCase{kind: []Collective{AllReduce, Broadcast, AllGather}[number%3], dtype: types[0], count: 400}
				if err := r.check(ctx, other); err != nil {
					return fmt.Errorf("after %+v: %v: %w", c, &other, err)
				}
				number++
			}
		}
		return nil
	}
}

func TestWordsOnEmulatedGPUs(t *testing.T) {
	types, replays := []weft.DType{weft.BFloat16, weft.Int32}, 2
	if emulate.Everything() {
		types, replays = []weft.DType{weft.BFloat16, weft.Int32, weft.Float32, weft.Float64, weft.Uint8}, 6
	}
	onGPUs(t, emulatedKernels(t, 3), 3, Options{Staging: gpuStaging, SMs: 4}, withWords(types, replays))
}

// TestWordsOnGPUs is the same on real ones.
func TestWordsOnGPUs(t *testing.T) {
	types := []weft.DType{weft.BFloat16, weft.Int32, weft.Float32, weft.Float64, weft.Uint8}
	for _, ranks := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			onGPUs(t, ranktest.Real(t), ranks, Options{Staging: gpuStaging, SMs: 4}, withWords(types, 50))
		})
	}
}

// testWordsAbsent: a word that is not raised, and a rank that does not call, end at the deadline.
func testWordsAbsent(t *testing.T, g *ranktest.GPUs) {
	const ranks, absent = 3, 2
	o := Options{Staging: gpuStaging, SMs: 4}
	calls := func(ctx context.Context, r *gpuRank, ready uint64) error {
		base := r.memory.Pointer()
		words := []uint64{ready, 1, 1}
		s := weft.TensorOf(words)
		if err := r.comm.Device().Context().Upload(base, s.Raw()); err != nil {
			return err
		}
		x := weft.DeviceTensor(base.Add(4096), weft.BFloat16, 300)
		return r.ReduceScatterReady(ctx, nil, weft.DeviceTensor(base.Add(8192), weft.BFloat16, 100), x,
			weft.DeviceTensor(base, weft.Uint64, ranks), weft.Sum)
	}
	gather := func(ctx context.Context, r *gpuRank) error {
		base := r.memory.Pointer()
		return r.AllGatherProgress(ctx, nil, weft.DeviceTensor(base.Add(8192), weft.BFloat16, 300),
			weft.DeviceTensor(base.Add(4096), weft.BFloat16, 100), weft.DeviceTensor(base, weft.Uint64, ranks))
	}
	warm := func(ctx context.Context, r *gpuRank) error { return errors.Join(calls(ctx, r, 1), gather(ctx, r)) }
	onGPUs(t, g, ranks, o, warm) // compiles the kernels
	withDeadline(t, g, ranks, time.Second, o, func(ctx context.Context, r *gpuRank) error {
		if err := warm(ctx, r); err != nil {
			return err
		}
		again := func() error {
			return errors.Join(r.host.Barrier(ctx, nil), r.comm.SetMask(ctx))
		}
		ready := uint64(1)
		if r.comm.Rank() == absent {
			ready = 0
		}
		err := calls(ctx, r, ready)
		late, ok := errors.AsType[*weft.PeerError](err)
		if !ok || late.Rank != absent || !errors.Is(err, weft.ErrTimeout) ||
			!strings.Contains(err.Error(), "reduce-scatter") {
			return fmt.Errorf("rank %d, not ready: %w", r.comm.Rank(), err)
		}
		if err := again(); err != nil {
			return err
		}
		if r.comm.Rank() != absent {
			err := gather(ctx, r)
			late, ok := errors.AsType[*weft.PeerError](err)
			if !ok || late.Rank != absent || !errors.Is(err, weft.ErrTimeout) || !strings.Contains(err.Error(), "all-gather") {
				return fmt.Errorf("rank %d, without one: %w", r.comm.Rank(), err)
			}
		}
		if err := again(); err != nil {
			return err
		}
		return warm(ctx, r)
	})
}

func TestWordsAbsentRankOnEmulatedGPUs(t *testing.T) { testWordsAbsent(t, emulatedGPUs(t, 3)) }

// TestWordsAbsentRankOnGPUs is the same on real ones.
func TestWordsAbsentRankOnGPUs(t *testing.T) { testWordsAbsent(t, ranktest.Real(t)) }
