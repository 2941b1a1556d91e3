package collective

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/simd"
)

// gpuStaging makes calls of some thousand elements take several turns of slots.
const gpuStaging = 72 << 10

// gpuDeadline bounds the waits of ranks on GPUs, which take milliseconds. On emulated GPUs a rank may wait for one
// that compiles a kernel, on processors that others use.
const gpuDeadline = time.Minute

// gpuRank is a rank of a test: a group on a GPU, one on the host beside it, and memory for operands.
type gpuRank struct {
	*Group
	comm   *weft.Comm
	beside *weft.Comm // of the same ranks on the host
	host   *Group
	memory *cuda.Memory
	heap   []byte // instead, if the rank is on the host
	calls  int
	span   bool // the ranks are on several hosts, and those beside them, too
}

// base is where the rank's memory for operands begins.
func (r *gpuRank) base() cuda.Pointer {
	if r.memory == nil {
		return cuda.Pointer(uintptr(unsafe.Pointer(unsafe.SliceData(r.heap))))
	}
	return r.memory.Pointer()
}

// write and read copy to the rank's memory for operands, and from it.
func (r *gpuRank) write(at cuda.Pointer, b []byte) error {
	if r.memory == nil {
		copy(r.heap[at-r.base():], b)
		return nil
	}
	return r.comm.Device().Context().Upload(at, b)
}

func (r *gpuRank) read(b []byte, at cuda.Pointer) error {
	if r.memory == nil {
		copy(b, r.heap[at-r.base():])
		return nil
	}
	return r.comm.Device().Context().Download(b, at)
}

// gpuMemory is the size of a rank's memory for operands, which is allocated once: to allocate would wait
// for kernels of ranks on the same GPU.
const gpuMemory = 4 << 20

// onGPUs runs a body on ranks that have GPUs, with a host communicator beside them.
func onGPUs(t *testing.T, g *ranktest.GPUs, ranks int, o Options, body func(ctx context.Context, r *gpuRank) error) {
	t.Helper()
	withDeadline(t, g, ranks, gpuDeadline, o, body)
}

func withDeadline(t *testing.T, g *ranktest.GPUs, ranks int, deadline time.Duration, o Options,
	body func(ctx context.Context, r *gpuRank) error,
) {
	t.Helper()
	o.SMs *= (ranks + len(g.Contexts) - 1) / len(g.Contexts) // those of all ranks on a GPU
	onGPURanks(t, ranktest.New(t, ranks), func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(deadline))
	}, o, body)
}

// onGPURanks runs a test as ranks with GPUs, which join with the options, and each of which has a group of the host
// beside it, by one of the communicators.
func onGPURanks(t *testing.T, beside []*weft.Comm, options func(rank int) []weft.Option, o Options,
	body func(ctx context.Context, r *gpuRank) error,
) {
	t.Helper()
	err := ranktest.Run(len(beside), options, func(ctx context.Context, comm *weft.Comm) (err error) {
		r := &gpuRank{comm: comm, beside: beside[comm.Rank()]}
		if r.memory, err = comm.Device().Context().Alloc(gpuMemory); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.memory.Close()) }()
		if r.host, err = New(ctx, r.beside, Options{}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.host.Close()) }()
		if r.Group, err = New(ctx, comm, o); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		return body(ctx, r)
	})
	if err != nil {
		t.Error(err)
	}
}

// emulatedGPUs are GPUs whose stores come late and torn, one a rank.
func emulatedGPUs(t *testing.T, ranks int) *ranktest.GPUs {
	t.Helper()
	return ranktest.Emulated(t, cudatest.Config{Devices: ranks}, emulate.Options{Seed: 1, Tear: true})
}

// emulatedKernels are the same for tests of what kernels compute and not of what runs at once in Go. Short tests
// leave those out, which the race detector has.
func emulatedKernels(t *testing.T, ranks int) *ranktest.GPUs {
	t.Helper()
	if testing.Short() {
		t.Skip("emulated kernels are slow: of them the short tests run what fails, and what is refused")
	}
	return emulatedGPUs(t, ranks)
}

// gpuCase is one call of a test, the same on every rank.
type gpuCase struct {
	kind     Collective
	dtype    weft.DType
	op       weft.Op
	count    int // elements of a part; V forms have parts of 0, 1 and 2 times as many
	root     int
	inPlace  bool
	shift    int    // elements by which operands are off their alignment
	onDevice bool   // the scalar of a pre-multiplied sum
	name     string // of the algorithm; empty: the fastest
	marks    string // bits that inputs are made of, and that look like "not there yet"; or numbers
	windows  bool   // operands lie in windows, at the same place on all ranks
	skew     int    // elements by which an output that is not the input is off its alignment, beside the shift
}

func (c *gpuCase) String() string {
	return fmt.Sprintf("%v %v of %d %v, root %d, in place %t, shift %d, %s", c.kind, c.op, c.count, c.dtype, c.root,
		c.inPlace, c.shift, c.name)
}

// counts are those of a rank's call, and lay its output out with gaps, from the end on, if the shift is odd.
func (c *gpuCase) counts(me, ranks int) (n Counts) {
	if !c.kind.Varies() {
		return n
	}
	for r := range ranks {
		send, recv := c.count*((me+2*r+c.root)%3), c.count*((r+2*me+c.root)%3)
		if c.kind != AllToAllV {
			send = c.count * ((r + c.root) % 3)
			recv = send
		}
		n.Send, n.Recv = append(n.Send, send), append(n.Recv, recv)
	}
	if c.shift%2 == 1 && c.kind != ReduceScatterV {
		n.RecvAt = make([]int, ranks)
		at := 0
		for r := ranks - 1; r >= 0; r-- {
			n.RecvAt[r] = at
			at += n.Recv[r] + 1
		}
	}
	switch c.kind {
	case AllGatherV:
		n.Send = nil
	case ReduceScatterV:
		n.Recv = nil
	}
	return n
}

func sum(n []int) (s int) {
	for _, k := range n {
		s += k
	}
	return s
}

// call is a rank's call, whose operands lie behind base, and where they do, from base on.
func (c *gpuCase) call(me, ranks int, base cuda.Pointer) (call Call, inAt, outAt, end int) {
	n := c.counts(me, ranks)
	in, out := c.count, c.count
	switch c.kind {
	case AllGather, Gather:
		out *= ranks
	case ReduceScatter, Scatter:
		in *= ranks
	case AllToAll:
		in, out = in*ranks, out*ranks
	case AllGatherV:
		in, out = n.Recv[me], sum(n.Recv)+ranks
	case ReduceScatterV:
		in, out = sum(n.Send), n.Send[me]
	case AllToAllV:
		in, out = sum(n.Send), sum(n.Recv)+ranks
	}
	const around = 64
	size := c.dtype.Size()
	inAt = around + c.shift*size
	outAt = (inAt+in*size+around+15)&^15 + (c.shift+c.skew)*size
	call = Call{Collective: c.kind, Op: c.op, Root: c.root, Counts: n, Algorithm: c.name, Symmetric: c.windows}
	if c.inPlace && c.kind != AllToAllV {
		outAt = inAt
		part := func(counts, at []int) int {
			switch {
			case counts == nil:
				return me * c.count
			case at != nil:
				return at[me]
			}
			return sum(counts[:me])
		}
		switch c.kind {
		case AllGather, AllGatherV, Gather:
			inAt += part(n.Recv, n.RecvAt) * size
		case ReduceScatter, ReduceScatterV, Scatter:
			outAt += part(n.Send, nil) * size
		}
	}
	call.In = weft.DeviceTensor(base.Add(inAt), c.dtype, in)
	call.Out = weft.DeviceTensor(base.Add(outAt), c.dtype, out)
	return call, inAt, outAt, max(inAt+in*size, outAt+out*size) + around
}

// input is what a rank brings to a call: bytes of all kinds, with many ones among them.
func (c *gpuCase) input(rank, number, n int) []byte {
	r := rand.New(rand.NewPCG(uint64(rank), uint64(number)))
	b := make([]byte, n)
	if c.marks == "whole" { // small numbers: sums are exact in any order
		for at := 0; at < n; at += c.dtype.Size() {
			putWhole(b[at:], c.dtype, r.IntN(16))
		}
		return b
	}
	for i := range b {
		if b[i] = byte(r.Uint32()); c.marks == "ones" || c.marks == "low ones" && i%8 < 4 {
			b[i] = 0xFF
		} else if c.marks == "zeros" {
			b[i] = 0
		} else if c.marks == "halves" { // numbers of fp32
			if i%4 == 3 {
				binary.LittleEndian.PutUint32(b[i-3:], math.Float32bits(float32(r.IntN(1000))/2))
			}
		} else if r.IntN(16) == 0 {
			for j := max(0, i-int(r.Uint32N(9))); j <= i; j++ {
				b[j] = 0xFF
			}
		}
	}
	return b
}

// gpuOperands are a call that is made, with its operands behind base.
type gpuOperands struct {
	gpuCase
	call          Call
	base          cuda.Pointer
	number, outAt int
	before        []byte // all that lies there
	in, scalar    []byte
}

// put uploads the operands of a call.
func (r *gpuRank) put(c gpuCase, base cuda.Pointer) (*gpuOperands, error) {
	r.calls++
	me := r.comm.Rank()
	o := &gpuOperands{gpuCase: c, base: base, number: r.calls, scalar: c.input(7, r.calls, 8)}
	var inAt, end int
	o.call, inAt, o.outAt, end = c.call(me, r.comm.Size(), base)
	if !c.windows && int(base-r.base())+end > gpuMemory-64 {
		return nil, fmt.Errorf("%d bytes of operands", end)
	}
	if c.op == weft.PreMulSum {
		t := scalarType(c.dtype)
		o.call.Scalar = weft.TensorAt(o.scalar, t, 1)
		if o.call.ScalarOnDevice = c.onDevice; c.onDevice {
			at := r.base().Add(gpuMemory - 64 + t.Size()) // no more aligned than it must be
			o.call.Scalar = weft.DeviceTensor(at, t, 1)
			if err := r.write(at, o.scalar[:t.Size()]); err != nil {
				return nil, err
			}
		}
	}
	o.before = bytes.Repeat([]byte{0xA5}, end)
	o.in = c.input(me, o.number, o.call.In.Bytes())
	copy(o.before[inAt:], o.in)
	return o, r.write(base, o.before)
}

// verify compares the output of a call that has run, and the memory around it.
func (r *gpuRank) verify(ctx context.Context, o *gpuOperands) error {
	if o.kind == Barrier {
		return nil
	}
	after := make([]byte, len(o.before))
	if err := r.read(after, o.base); err != nil {
		return err
	}
	want := bytes.Clone(o.before)
	if err := r.expect(ctx, o, want[o.outAt:]); err != nil {
		return err
	}
	if !bytes.Equal(after, want) {
		i := 0
		for after[i] == want[i] {
			i++
		}
		end := min(i+8, len(after))
		return fmt.Errorf("byte %d (output at %d) is %x, want %x", i, o.outAt, after[i:end], want[i:end])
	}
	return nil
}

// check makes a call.
func (r *gpuRank) check(ctx context.Context, c gpuCase) error {
	o, err := r.put(c, r.base())
	if err != nil {
		return err
	}
	if err := r.Do(ctx, nil, o.call); err != nil {
		return err
	}
	return r.verify(ctx, o)
}

func scalarType(d weft.DType) weft.DType {
	if isFloat(d) && d != weft.Float64 {
		return weft.Float32
	}
	return d
}

// expect writes what a call must give to where the output lies.
func (r *gpuRank) expect(ctx context.Context, o *gpuOperands, out []byte) error {
	ranks, me := r.comm.Size(), r.comm.Rank()
	calls, ins := make([]Call, ranks), make([][]byte, ranks)
	var live [][]byte
	var hosts []int
	for p := range ranks {
		calls[p], _, _, _ = o.gpuCase.call(p, ranks, 1<<20)
		calls[p].Scalar = weft.TensorAt(o.scalar, scalarType(o.dtype), 1)
		if err := calls[p].Check(p, ranks); err != nil {
			return err
		}
		ins[p] = o.input(p, o.number, calls[p].In.Bytes())
		if !r.comm.Masked(p) {
			live, hosts = append(live, ins[p]), append(hosts, r.comm.Host(p))
		}
	}
	own := &calls[me]
	if o.kind.Reduces() {
		result, err := r.reduced(ctx, o, live, hosts)
		if err == nil && o.kind.HasOutput(me, o.root) {
			from, n := own.InputPart(me)
			copy(out, result[from:][:n])
		}
		return err
	}
	for p := range ranks {
		if !o.kind.HasInput(p, o.root) || !o.kind.HasOutput(me, o.root) || r.comm.Masked(p) {
			continue
		}
		from, n := calls[p].InputPart(me)
		at, room := own.OutputPart(p)
		if n != room {
			return fmt.Errorf("a part of %d bytes for one of %d", n, room)
		}
		copy(out[at:], ins[p][from:][:n])
	}
	return nil
}

// reduced is the reduction of all inputs: by the host's group, or by a loop where that has none.
func (r *gpuRank) reduced(ctx context.Context, o *gpuOperands, ins [][]byte, hosts []int) ([]byte, error) {
	n := len(o.in) / o.dtype.Size()
	out := make([]byte, len(o.in))
	switch {
	case r.host == nil:
		return byHost(o.op, o.dtype, o.scalar, ins, hosts, strings.HasSuffix(o.name, "/hierarchical-exact")), nil
	case o.dtype == weft.Bool:
		for i := range out {
			some, all := false, true
			for _, in := range ins {
				some, all = some || in[i] != 0, all && in[i] != 0
			}
			if (o.op == weft.Sum || o.op == weft.Max) && some || (o.op == weft.Prod || o.op == weft.Min) && all {
				out[i] = 1
			}
		}
		return out, nil
	case r.span:
		name := "all-reduce"
		if _, form, named := strings.Cut(o.name, "/"); named {
			name += "/" + form
		} else {
			name = ""
		}
		return out, r.host.Do(ctx, nil, Call{
			Collective: AllReduce, Out: weft.TensorAt(out, o.dtype, n), In: weft.TensorAt(o.in, o.dtype, n), Op: o.op,
			Scalar: weft.TensorAt(o.scalar, scalarType(o.dtype), 1), Algorithm: name,
		})
	case o.op == weft.PreMulSum:
		for at := 0; at < len(out); at += o.dtype.Size() {
			preMultiplied(o.dtype, out, ins, o.scalar, at)
		}
		return out, nil
	}
	in := weft.TensorAt(o.in, o.dtype, n)
	return out, r.host.AllReduce(ctx, nil, weft.TensorAt(out, o.dtype, n), in, o.op)
}

func preMultiplied(d weft.DType, out []byte, ins [][]byte, scalar []byte, at int) {
	switch {
	case d == weft.Float64:
		acc := 0.0
		for _, in := range ins {
			acc = math.FMA(load64(scalar), load64(in[at:]), acc)
		}
		bits := math.Float64bits(acc)
		if acc != acc {
			bits = 1<<63 - 1
		}
		binary.LittleEndian.PutUint64(out[at:], bits)
	case isFloat(d):
		acc, by := float32(0), math.Float32frombits(binary.LittleEndian.Uint32(scalar))
		for _, in := range ins {
			acc = simd.FMA32(by, float32(load32(d, in[at:])), acc)
		}
		store32(d, out[at:], acc)
	default:
		load := func(b []byte) uint64 { // what is above the element is cut off in the end
			var word [8]byte
			copy(word[:], b[:d.Size()])
			return binary.LittleEndian.Uint64(word[:])
		}
		acc := uint64(0)
		for _, in := range ins {
			acc += load(in[at:]) * load(scalar)
		}
		copy(out[at:at+d.Size()], binary.LittleEndian.AppendUint64(nil, acc))
	}
}

// kinds are all collectives that the engine has.
func kindsOnGPUs() (all []Collective) {
	for _, a := range GPUAlgorithms() {
		if !slices.Contains(all, a.Collective) {
			all = append(all, a.Collective)
		}
	}
	return all
}

// everyCase makes calls of every kind, of some types, with every reduction, count and place.
func everyCase(ctx context.Context, r *gpuRank, types []weft.DType) error {
	ranks := r.comm.Size()
	counts := []int{1, 257, 0, 7, 5003, 96, 1, 33, 1536}
	number := 0
	for _, kind := range kindsOnGPUs() {
		for _, d := range types {
			for op := weft.Sum; op <= weft.PreMulSum; op++ {
				if d == weft.Bool && op >= weft.Avg && kind.Reduces() || !kind.Reduces() && op > weft.Prod {
					continue
				}
				c := gpuCase{
					kind: kind, dtype: d, op: op, count: counts[number%len(counts)], root: number % ranks,
					inPlace: number%2 == 0, shift: []int{0, 1, 3, 0}[number%4], onDevice: number%3 == 0,
				}
				if kind == AllReduce {
					c.name = []string{"", "all-reduce/two-shot", "all-reduce/one-shot"}[number%3]
				}
				if err := r.check(ctx, c); err != nil {
					return fmt.Errorf("call %d, %v: %w", number, &c, err)
				}
				number++
			}
		}
	}
	return nil
}

// allTypes are the types that can be reduced, and fewTypes one of each encoding.
var (
	allTypes = dtypes
	fewTypes = []weft.DType{weft.BFloat16, weft.Float64, weft.Int8, weft.Bool}
)

// TestEveryCollectiveOnEmulatedGPUs has every type on some number of ranks; with WEFT_TEST_ALL=1 on each of 1 to 4.
func TestEveryCollectiveOnEmulatedGPUs(t *testing.T) {
	for ranks := 1; ranks <= 9; ranks++ { // nine have loops that are not unrolled
		types := fewTypes
		switch {
		case emulate.Everything() && ranks <= 4:
			types = allTypes
		case emulate.Everything():
		case ranks == 1:
			types = fewTypes[:1]
		case ranks <= 4:
			types = nil
			for i, d := range allTypes {
				if i%3 == ranks-2 {
					types = append(types, d)
				}
			}
		default:
			continue
		}
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			onGPUs(t, emulatedKernels(t, ranks), ranks, Options{Staging: gpuStaging, SMs: 4}, func(ctx context.Context,
				r *gpuRank,
			) error {
				return everyCase(ctx, r, types)
			})
		})
	}
}

// TestEveryCollectiveOnGPUs is the same on real ones, which ranks share.
func TestEveryCollectiveOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{1, 2, 3, 4, 5, 7, 8} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			onGPUs(t, g, ranks, Options{Staging: gpuStaging, SMs: 4}, func(ctx context.Context, r *gpuRank) error {
				return everyCase(ctx, r, allTypes)
			})
		})
	}
}

// tensorOf is a tensor of a rank's memory, by a number of bytes from its beginning.
func (r *gpuRank) tensorOf(at int, d weft.DType, n int) weft.Tensor {
	return weft.DeviceTensor(r.base().Add(at), d, n)
}

// capture captures what a body enqueues, and gives the graph to a second body. Errors of the first are
// those of what it called.
func (r *gpuRank) capture(enqueue func(s *weft.Stream) error, then func(s *cuda.Stream, g *cuda.GraphExec) error,
) (err error) {
	stream, err := r.comm.Device().Context().NewStream(cuda.StreamOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	graph, err := stream.Capture(func() error { return enqueue(weft.StreamOf(stream)) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, graph.Close()) }()
	exec, err := graph.Instantiate()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, exec.Close()) }()
	return then(stream, exec)
}

// TestCaptureOnEmulatedGPUs: a capture cannot load kernels, so it is refused unless they are loaded.
func TestCaptureOnEmulatedGPUs(t *testing.T) {
	for _, loaded := range []bool{false, true} {
		o := Options{Staging: gpuStaging, SMs: 4}
		if loaded {
			o.DTypes = []weft.DType{weft.BFloat16}
		}
		onGPUs(t, emulatedGPUs(t, 3), 3, o, func(ctx context.Context, r *gpuRank) error {
			x := r.tensorOf(0, weft.BFloat16, 100)
			if err := r.comm.Device().Context().Upload(r.memory.Pointer(), make([]byte, 200)); err != nil {
				return err
			}
			err := r.capture(func(s *weft.Stream) error { return r.AllReduce(ctx, s, x, x, weft.Sum) },
				func(s *cuda.Stream, g *cuda.GraphExec) error {
					return errors.Join(g.Launch(s), r.comm.Wait(ctx, weft.StreamOf(s)))
				})
			if !loaded && !errors.Is(err, weft.ErrUnsupported) || loaded && err != nil {
				return fmt.Errorf("loaded %t: %w", loaded, err)
			}
			return r.check(ctx, gpuCase{kind: AllReduce, dtype: weft.BFloat16, count: 77})
		})
	}
}

// TestRefusalsOnEmulatedGPUs: what is wrong with the arguments of a rank is returned before anything is
// enqueued, so ranks go on with the same group.
func TestRefusalsOnEmulatedGPUs(t *testing.T) {
	onGPUs(t, emulatedGPUs(t, 2), 2, Options{Staging: gpuStaging, SMs: 4}, func(ctx context.Context, r *gpuRank) error {
		f := func(at, n int) weft.Tensor { return r.tensorOf(at, weft.Float32, n) }
		scalar := r.tensorOf(2, weft.Float32, 1)
		calls := []Call{
			{Collective: AllReduce, Out: f(0, 8), In: f(2, 8)},
			{Collective: AllReduce, Out: f(1026, 8), In: f(0, 8)},
			{Collective: AllReduce, Out: f(16, 8), In: f(0, 8)},
			{Collective: AllReduce, Out: f(0, 8), In: f(1024, 7)},
			{Collective: AllReduce, Out: f(0, 1<<42), In: f(1<<50, 1<<42)},
			{Collective: AllReduce, Out: f(0, 8), In: r.tensorOf(1024, weft.Int32, 8)},
			{Collective: AllReduce, Out: f(0, 8), In: f(1024, 8), Op: 99},
			{Collective: AllReduce, Out: f(0, 8), In: f(1024, 8), Op: weft.PreMulSum},
			{Collective: AllReduce, Out: f(0, 8), In: f(1024, 8), Op: weft.PreMulSum, Scalar: scalar, ScalarOnDevice: true},
			{Collective: AllReduce, Out: f(0, 8), In: f(1024, 8), Algorithm: "all-gather/flagged"},
			{Collective: AllReduce, Out: weft.Absent("it is elsewhere"), In: f(1024, 8)},
			{Collective: AllReduce, Out: r.tensorOf(0, weft.UE8M0, 8), In: r.tensorOf(0, weft.UE8M0, 8)},
			{Collective: AllReduce, Out: r.tensorOf(0, weft.Bool, 8), In: r.tensorOf(0, weft.Bool, 8), Op: weft.Avg},
			{Collective: AllGather, Out: f(0, 15), In: f(1024, 8)},
			{Collective: AllToAll, Out: f(0, 15), In: f(1024, 15)},
			{Collective: AllToAll, Out: f(0, 16), In: f(32, 16)},
			{Collective: ReduceScatter, Out: f(0, 8), In: f(16, 16)},
			{Collective: Broadcast, Out: f(0, 8), In: f(0, 8), Root: 2},
			{Collective: Collective(99)},
		}
		for i, c := range calls {
			err := r.Do(ctx, nil, c)
			if !errors.Is(err, weft.ErrInvalid) && !errors.Is(err, weft.ErrUnsupported) {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		return r.check(ctx, gpuCase{kind: AllReduce, dtype: weft.Float32, count: 77})
	})
	ranks := ranktest.Fake(t, cudatest.Config{Devices: 1})
	err := ranktest.Run(1, ranks.Options, func(ctx context.Context, comm *weft.Comm) error {
		for _, o := range []Options{{Staging: -1}, {SMs: -1}, {DTypes: []weft.DType{weft.UE8M0}}, {Force: []string{"x"}}} {
			if _, err := New(ctx, comm, o); !errors.Is(err, weft.ErrInvalid) && !errors.Is(err, weft.ErrUnsupported) {
				return fmt.Errorf("%+v: %w", o, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
