package gpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/collective/tuning"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/simd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// arithmetic is how the host's engine reduces the types that can be reduced.
var arithmetic = map[weft.DType]simd.Type{
	weft.BFloat16: simd.BF16, weft.Float16: simd.F16, weft.Float32: simd.F32, weft.Float64: simd.F64,
	weft.Float8E4M3: simd.E4M3, weft.Float8E5M2: simd.E5M2,
	weft.Int8: simd.I8, weft.Int16: simd.I16, weft.Int32: simd.I32, weft.Int64: simd.I64,
	weft.Uint8: simd.U8, weft.Uint16: simd.U16, weft.Uint32: simd.U32, weft.Uint64: simd.U64,
}

// allTypes are the types that can be reduced.
func allTypes() []weft.DType { return slices.Sorted(maps.Keys(arithmetic)) }

// emulatedTypes are those that emulated GPUs have: a compiler takes longer for a type than calls take.
func emulatedTypes() []weft.DType {
	if emulate.Everything() {
		return allTypes()
	}
	return []weft.DType{weft.BFloat16, weft.Float64, weft.Int8}
}

// smallStaging makes operations of some KiB take several launches, and some clear themselves.
const smallStaging = 192 << 10

// A rank is a rank of a test: an engine, and memory for operands.
type rank struct {
	*Engine
	comm   *weft.Comm
	memory *cuda.Memory
	window *weft.Window // for operands of direct calls
	stream *weft.Stream // nil: the communicator's
	calls  int

	emulated bool
}

// memoryBytes is the size of a rank's memory for operands. It is allocated once: to allocate would
// wait for kernels of ranks on the same GPU.
const memoryBytes = 1 << 20

// run runs a body on ranks that have GPUs.
func run(t *testing.T, g *ranktest.GPUs, ranks, staging int, body func(ctx context.Context, r *rank) error) {
	t.Helper()
	err := ranktest.Run(ranks, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(20*time.Second))
	}, func(ctx context.Context, comm *weft.Comm) (err error) {
		m, err := comm.Device().Context().Alloc(memoryBytes)
		if err != nil {
			return err
		}
		w, err := comm.Alloc(ctx, memoryBytes)
		if err != nil {
			return errors.Join(err, m.Close())
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		e, err := New(ctx, comm, Options{Staging: staging, SMs: 4 * comm.Size(), Model: model})
		if err == nil {
			err = body(ctx, &rank{Engine: e, comm: comm, memory: m, window: w})
			_, again := e.Close()
			err = errors.Join(err, again)
		}
		return errors.Join(err, m.Close())
	})
	if err != nil {
		t.Error(err)
	}
}

// emulated runs a body on ranks with emulated GPUs, whose stores come late and torn.
func emulated(t *testing.T, ranks int, body func(ctx context.Context, r *rank) error) {
	t.Helper()
	g := ranktest.Emulated(t, cudatest.Config{Devices: ranks}, emulate.Options{Seed: 1, Tear: true})
	run(t, g, ranks, smallStaging, body)
}

// A call is one operation of a test, the same on every rank.
type call struct {
	op        uint32
	oneShot   bool // of an all-reduce
	dtype     weft.DType
	reduction weft.Op
	count     int // elements of a part
	root      int
	inPlace   bool
	shift     int // elements by which operands are off their alignment
	direct    bool
}

func (c call) String() string {
	return fmt.Sprintf("%s %v (one-shot %v) of %d %v, root %d, in place %v, shift %d", opNames[c.op], c.reduction,
		c.oneShot, c.count, c.dtype, c.root, c.inPlace, c.shift)
}

// input is what a rank brings to a call: bytes of all kinds, with many ones among them.
func (c call) input(rank, number, n int) []byte {
	r := rand.New(rand.NewPCG(uint64(rank), uint64(number)))
	b := make([]byte, n)
	for i := range b {
		if b[i] = byte(r.Uint32()); r.IntN(16) == 0 {
			for j := max(0, i-int(r.Uint32N(9))); j <= i; j++ {
				b[j] = 0xFF
			}
		}
	}
	return b
}

// want is what the rank's output holds after a call, or nil if it has none.
func (c call) want(me, ranks int, inputs [][]byte) []byte {
	part := c.count * c.dtype.Size()
	partOf := func(b []byte, r int) []byte { return b[r*part:][:part] }
	var out []byte
	switch c.op {
	case opAllReduce:
		return c.reduce(inputs)
	case opReduceScatter:
		var rows [][]byte
		for _, in := range inputs {
			rows = append(rows, partOf(in, me))
		}
		return c.reduce(rows)
	case opReduce:
		if me == c.root {
			return c.reduce(inputs)
		}
	case opAllGather:
		out = bytes.Join(inputs, nil)
	case opAllToAll:
		for _, in := range inputs {
			out = append(out, partOf(in, me)...)
		}
	case opBroadcast:
		out = inputs[c.root]
	case opGather:
		if me == c.root {
			out = bytes.Join(inputs, nil)
		}
	case opScatter:
		out = partOf(inputs[c.root], me)
	}
	return out
}

func (c call) reduce(rows [][]byte) []byte {
	out := make([]byte, len(rows[0]))
	op := map[weft.Op]simd.Op{weft.Prod: simd.Prod, weft.Min: simd.Min, weft.Max: simd.Max}[c.reduction]
	simd.Reduce(op, arithmetic[c.dtype], c.reduction == weft.Avg, out, rows...)
	return out
}

func (c call) inParts() bool {
	return c.op == opReduceScatter || c.op == opAllToAll || c.op == opScatter
}

func (c call) outParts() bool { return c.op == opAllGather || c.op == opAllToAll || c.op == opGather }

// sizes are how many bytes the operands have.
func (c call) sizes(ranks int) (in, out int) {
	in = c.count * c.dtype.Size()
	out = in
	if c.inParts() {
		in *= ranks
	}
	if c.outParts() {
		out *= ranks
	}
	return in, out
}

// make makes a call, and compares what comes of it, and what stands around it.
func (r *rank) make(ctx context.Context, c call) error {
	r.calls++
	if c.op == opBarrier {
		stream, err := r.Enter(ctx, opNames[c.op], r.stream)
		if err != nil {
			return err
		}
		return errors.Join(r.Barrier(stream), r.Finish(ctx, r.stream))
	}
	ranks, me, device := r.comm.Size(), r.comm.Rank(), r.comm.Device().Context()
	inBytes, outBytes := c.sizes(ranks)
	const around = 64
	at, shift := around, c.shift*c.dtype.Size()
	inAt := at + shift
	outAt := (inAt+inBytes+around+15)&^15 + shift
	if c.inPlace {
		outAt = inAt
		switch {
		case c.op == opAllGather || c.op == opGather:
			inAt += me * inBytes
		case c.op == opReduceScatter || c.op == opScatter:
			outAt += me * outBytes
		}
	}
	end := max(inAt+inBytes, outAt+outBytes) + around
	if end > memoryBytes {
		return fmt.Errorf("%d bytes of operands", end)
	}
	memory := r.memory.Pointer()
	if c.direct {
		memory = r.window.Pointer()
	}
	before := bytes.Repeat([]byte{0xA5}, end)
	inputs := make([][]byte, ranks)
	for i := range inputs {
		inputs[i] = c.input(i, r.calls, inBytes)
	}
	copy(before[inAt:], inputs[me])
	if err := device.Upload(memory, before); err != nil {
		return err
	}
	base := uint64(memory)
	if err := r.start(ctx, c, base+uint64(inAt), base+uint64(outAt)); err != nil {
		return err
	}
	if err := r.comm.Wait(ctx, r.stream); err != nil {
		return err
	}
	after := make([]byte, end)
	if err := device.Download(after, memory); err != nil {
		return err
	}
	want := bytes.Clone(before)
	result := c.want(me, ranks, inputs)
	copy(want[outAt:], result)
	if !bytes.Equal(after, want) {
		i := 0
		for after[i] == want[i] {
			i++
		}
		return fmt.Errorf("byte %d (output at %d, %d bytes) is %x, want %x", i, outAt, len(result), after[i:min(i+8, end)],
			want[i:min(i+8, end)])
	}
	return nil
}

// startDirect runs a call by its direct algorithm.
func (r *rank) startDirect(ctx context.Context, c call, in, out uint64) error {
	kind := map[uint32]spec.Collective{
		opAllReduce: spec.AllReduce, opReduceScatter: spec.ReduceScatter, opAllGather: spec.AllGather,
		opAllToAll: spec.AllToAll,
	}[c.op]
	ins, outs := c.sizes(r.comm.Size())
	s := &spec.Call{
		Collective: kind, Op: c.reduction, Symmetric: true,
		In:  weft.DeviceTensor(cuda.Pointer(in), c.dtype, ins/c.dtype.Size()),
		Out: weft.DeviceTensor(cuda.Pointer(out), c.dtype, outs/c.dtype.Size()),
	}
	if err := s.Check(r.comm.Rank(), r.comm.Size()); err != nil {
		return err
	}
	name, err := r.Run(ctx, r.stream, s, nil)
	if want := kind.String() + "/direct"; err == nil && name != want {
		return fmt.Errorf("%s ran", name)
	}
	return err
}

// TestDirectOnEmulatedGPUs makes direct calls of several kinds, mixed with others.
func TestDirectOnEmulatedGPUs(t *testing.T) {
	emulated(t, 3, func(ctx context.Context, r *rank) error {
		r.emulated = true
		return directCalls(ctx, r)
	})
}

// model is that of the GPUs which most figures are of.
var model = tuning.Builtin("h200-nvswitch").Model()

// TestDirectOnGPUs is the same on real ones.
func TestDirectOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{2, 3, 4, 8} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { run(t, g, ranks, smallStaging, directCalls) })
	}
}

func directCalls(ctx context.Context, r *rank) error {
	var direct []string
	for _, a := range algorithms {
		if strings.HasSuffix(a.Name, "/direct") {
			direct = append(direct, a.Name)
		}
	}
	r.chooseBy(direct, model)
	outside := weft.DeviceTensor(r.memory.Pointer(), weft.Float32, 16)
	refused := &spec.Call{Collective: spec.AllReduce, In: outside, Out: outside, Symmetric: true}
	if err := refused.Check(r.comm.Rank(), r.comm.Size()); err != nil {
		return err
	}
	if _, err := r.Run(ctx, r.stream, refused, nil); !errors.Is(err, weft.ErrInvalid) {
		return fmt.Errorf("a symmetric call on memory outside windows: %w", err)
	}
	n := 0
	types := []weft.DType{weft.BFloat16, weft.Int64, weft.Float32, weft.Uint8}
	if r.emulated {
		types = types[:2]
	}
	for _, op := range []uint32{opAllReduce, opReduceScatter, opAllGather, opAllToAll} {
		for _, d := range types {
			for _, count := range []int{1, 7, 4099} {
				n++
				c := call{
					op: op, dtype: d, reduction: []weft.Op{weft.Sum, weft.Avg, weft.Max}[n%3], count: count, direct: true,
					inPlace: op != opAllToAll && n%3 == 0, shift: []int{0, 1, 0, 3}[n%4],
				}
				if err := r.make(ctx, c); err != nil {
					return fmt.Errorf("call %d, %v, direct: %w", n, c, err)
				}
				c.direct, c.count = false, 33
				if err := r.make(ctx, c); n%4 == 0 && err != nil {
					return fmt.Errorf("call %d, %v: %w", n, c, err)
				}
			}
		}
	}
	return nil
}

// start enqueues a call.
func (r *rank) start(ctx context.Context, c call, in, out uint64) error {
	if c.direct {
		return r.startDirect(ctx, c, in, out)
	}
	stream, err := r.Enter(ctx, opNames[c.op], r.stream)
	if err != nil {
		return err
	}
	reduction := &Reduction{Out: out, In: in, Elements: c.count, DType: c.dtype, Op: c.reduction}
	move := Transfer{Out: out, In: in, Part: c.count * c.dtype.Size(), DType: c.dtype}
	switch c.op {
	case opAllReduce, opReduceScatter, opReduce:
		err = r.Prepare(ctx, opNames[c.op], c.dtype)
	}
	if err != nil {
		return err
	}
	switch c.op {
	case opAllReduce:
		if c.oneShot {
			err = r.oneShot(stream, reduction)
		} else {
			err = r.twoShot(stream, reduction)
		}
	case opReduceScatter:
		err = r.ReduceScatter(stream, reduction)
	case opReduce:
		err = r.Reduce(stream, reduction, c.root)
	case opAllGather:
		err = r.AllGather(stream, move)
	case opAllToAll:
		err = r.AllToAll(stream, move)
	case opBroadcast:
		err = r.Broadcast(stream, move, c.root)
	case opGather:
		err = r.Gather(stream, move, c.root)
	case opScatter:
		err = r.Scatter(stream, move, c.root)
	}
	return errors.Join(err, r.Finish(ctx, r.stream))
}

// random is a call of any kind.
func random(r *rand.Rand, ranks int, types []weft.DType) call {
	c := call{op: 1 + r.Uint32N(opBarrier), root: r.IntN(ranks), inPlace: r.IntN(3) == 0, oneShot: r.IntN(2) == 0}
	c.dtype = types[r.IntN(len(types))]
	c.reduction = weft.Op(r.IntN(int(weft.Avg) + 1))
	c.count = []int{1, 2, 3, 7, 96, 31, 100, 257, 1536, 4099}[r.IntN(10)]
	if r.IntN(3) == 0 {
		c.shift = r.IntN(16)
	}
	return c
}

// TestEveryCallOnEmulatedGPUs makes calls of every kind and reduction, in a type of each encoding; with WEFT_TEST_ALL=1
// in all types, which package collective's tests have as well.
func TestEveryCallOnEmulatedGPUs(t *testing.T) {
	sizes := []int{3}
	if emulate.Everything() {
		sizes = []int{1, 2, 3, 4, 9} // nine have loops that are not unrolled
	}
	for _, ranks := range sizes {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			emulated(t, ranks, func(ctx context.Context, r *rank) error { return everyCall(ctx, r, emulatedTypes()) })
		})
	}
}

// TestEveryCallOnGPUs is the same on real ones, which ranks share.
func TestEveryCallOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{1, 2, 3, 4, 7, 8} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			run(t, g, ranks, smallStaging, func(ctx context.Context, r *rank) error { return everyCall(ctx, r, allTypes()) })
		})
	}
}

func everyCall(ctx context.Context, r *rank, types []weft.DType) error {
	for op := uint32(1); op <= opBarrier; op++ {
		for _, d := range types {
			for reduction := weft.Sum; reduction <= weft.Avg; reduction++ {
				n := r.calls
				c := call{
					op: op, dtype: d, reduction: reduction, count: []int{1, 7, 1536, 1000, 33, 96, 6144}[n%7], root: n % r.comm.Size(),
					inPlace: n%3 == 0, shift: []int{0, 1, 0, 2}[n%4], oneShot: n%2 == 0,
				}
				if err := r.make(ctx, c); err != nil {
					return fmt.Errorf("call %d, %v: %w", n, c, err)
				}
				if op >= opAllGather && reduction == weft.Prod {
					break // there is nothing to reduce
				}
			}
		}
	}
	return nil
}

// TestSequencesOnEmulatedGPUs makes calls in an order that the seed gives, so that every kind of operation comes
// after every other.
func TestSequencesOnEmulatedGPUs(t *testing.T) {
	seeds := uint64(1)
	if emulate.Everything() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			emulated(t, 3, func(ctx context.Context, r *rank) error { return sequence(ctx, r, seed, 150, emulatedTypes()) })
		})
	}
}

// TestSequencesOnGPUs is the same on real ones.
func TestSequencesOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{2, 4, 5} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			run(t, g, ranks, smallStaging, func(ctx context.Context, r *rank) error {
				return sequence(ctx, r, 7, 3000, allTypes())
			})
		})
	}
}

func sequence(ctx context.Context, r *rank, seed uint64, calls int, types []weft.DType) error {
	order := rand.New(rand.NewPCG(seed, 0))
	own := rand.New(rand.NewPCG(seed, uint64(r.comm.Rank())))
	for i := range calls {
		c := random(order, r.comm.Size(), types)
		if own.IntN(20) == 0 {
			time.Sleep(time.Duration(own.IntN(3000)) * time.Microsecond)
		}
		if err := r.make(ctx, c); err != nil {
			return fmt.Errorf("call %d, %v: %w", i, c, err)
		}
	}
	return nil
}

// from makes the next operation of every rank that of a number, as if so many full ones had been: no rank
// has ever said that it begins one.
func (r *rank) from(ctx context.Context, epoch uint64) error {
	c, before := r.comm.Device().Context(), epoch-1
	counts := make([]device.Count, r.blocks)
	for i := range counts {
		counts[i] = device.Count{Epoch: before, Turn: uint32(before % turns), Left: 1 << 31} // full, nothing to clear
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&counts[0])), len(counts)*device.CountBytes)
	return errors.Join(c.Upload(r.lane.Local(device.StateBytes), raw),
		r.comm.Operations().VerifySame(ctx, "test", "counted", nil))
}

// TestManyOperationsOnEmulatedGPUs: operations go on where their number does not fit 31 or 32 bits any more.
func TestManyOperationsOnEmulatedGPUs(t *testing.T) {
	for _, epoch := range []uint64{1<<31 - 5, 1<<32 - 5, 1<<32 + 1<<31 - 5} {
		emulated(t, 3, func(ctx context.Context, r *rank) error {
			if err := r.from(ctx, epoch); err != nil {
				return err
			}
			if err := sequence(ctx, r, epoch, 40, emulatedTypes()); err != nil {
				return fmt.Errorf("from %d on: %w", epoch, err)
			}
			return nil
		})
	}
}
