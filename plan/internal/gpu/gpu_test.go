package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/spec"
)

func TestMain(m *testing.M) {
	if playPart() { // as a rank that a test has started
		return
	}
	goleak.VerifyTestMain(m)
}

// rank is a rank of a test, with memory for operands: some of its own and some in a window.
type rank struct {
	*executor.Executor
	comm   *weft.Comm
	memory *cuda.Memory
	window *weft.Window
	offset int // of operands
}

// memoryBytes is allocated once: to allocate would wait for kernels of ranks on the same GPU.
const memoryBytes = 8 << 20

// run runs a body on ranks that have GPUs.
func run(t testing.TB, g *ranktest.GPUs, ranks, bytes int, o executor.Options, deadline time.Duration,
	body func(ctx context.Context, r *rank) error,
) {
	t.Helper()
	runWith(t, ranks, bytes, o, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(deadline))
	}, body)
}

// runWith is run of ranks with options.
func runWith(t testing.TB, ranks, bytes int, o executor.Options, options func(rank int) []weft.Option,
	body func(ctx context.Context, r *rank) error,
) {
	t.Helper()
	err := ranktest.Run(ranks, options, func(ctx context.Context, comm *weft.Comm) (err error) {
		r := &rank{comm: comm}
		if r.memory, err = comm.Device().Context().Alloc(bytes); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.memory.Close()) }()
		if r.window, err = comm.Alloc(ctx, bytes); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.window.Close()) }()
		if r.Executor, err = executor.New(ctx, comm, o); err != nil {
			return err
		}
		return errors.Join(body(ctx, r), r.Close())
	})
	if err != nil {
		t.Error(err)
	}
}

// patience is the deadline of ranks that nothing happens to.
const patience = 30 * time.Second

// emulated are GPUs whose stores come late and torn, one a rank.
func emulated(t *testing.T, ranks int, seed uint64) *ranktest.GPUs {
	t.Helper()
	return ranktest.Emulated(t, cudatest.Config{Devices: ranks}, emulate.Options{Seed: seed, Tear: true})
}

// emulatedKernels are the same for tests of what the kernel computes and not of what runs at once in Go. Short tests
// leave those out, which the race detector has.
func emulatedKernels(t *testing.T, ranks int, seed uint64) *ranktest.GPUs {
	t.Helper()
	if testing.Short() {
		t.Skip("emulated kernels are slow: of them the short tests run what fails, and what is refused")
	}
	return emulated(t, ranks, seed)
}

// launchOf is a launch of a plan.
type launchOf struct {
	dtype  weft.DType
	chunk  int
	window bool // operands lie in windows
	shift  int  // bytes by which they are off their alignment
}

// put writes a launch's operands, and gives them with the output that is to come.
func (r *rank) put(f *plan.File, l launchOf, seed uint64) (out, in weft.Tensor, want []byte, err error) {
	o := plantest.NewOracle(f, l.dtype, l.chunk)
	o.Fill(seed)
	me, base := r.comm.Rank(), r.memory.Pointer()
	if l.window {
		base = r.window.Pointer()
	}
	base = base.Add(r.offset)
	inAt, outAt, size := f.Place(me, l.chunk)
	gpu := r.comm.Device().Context()
	if size > 0 {
		err = gpu.Upload(base.Add(l.shift), bytes.Repeat([]byte{0xA5}, size))
	}
	if in := o.Buffer(me, spec.Input); err == nil && len(in) > 0 {
		err = gpu.Upload(base.Add(l.shift+inAt), in)
	}
	if err == nil {
		err = o.Run()
	}
	ins, outs := f.Ranks[me].Input*l.chunk, f.Ranks[me].Output*l.chunk
	in = weft.DeviceTensor(base.Add(l.shift+inAt), l.dtype, ins/l.dtype.Size())
	out = weft.DeviceTensor(base.Add(l.shift+outAt), l.dtype, outs/l.dtype.Size())
	return out, in, o.Buffer(me, spec.Output), err
}

// check compares an output with what it should be.
func (r *rank) check(f *plan.File, l launchOf, out weft.Tensor, want []byte) error {
	if len(want) == 0 {
		return nil
	}
	got := make([]byte, len(want))
	if err := r.comm.Device().Context().Download(got, out.Pointer()); err != nil {
		return err
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("%s, %+v: byte %d of the output of rank %d is %#x, want %#x", f.Name, l, i, r.comm.Rank(),
				got[i], want[i])
		}
	}
	return nil
}

// launch runs a launch, and compares what it leaves with the oracle's.
func (r *rank) launch(ctx context.Context, p *executor.Plan, l launchOf, seed uint64) error {
	out, in, want, err := r.put(p.File(), l, seed)
	if err != nil {
		return err
	}
	if err := p.Execute(ctx, nil, out, in); err != nil {
		return fmt.Errorf("%+v: %w", l, err)
	}
	return r.check(p.File(), l, out, want)
}

// build builds a program's file.
func build(t *testing.T, p *plan.Plan) *plan.File {
	t.Helper()
	f, err := p.Build()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// programs runs each program, as some function gives its file, at several sizes, types, and places of operands.
func programs(t *testing.T, g *ranktest.GPUs, launches []launchOf, file func(*testing.T, *plan.Plan) *plan.File) {
	t.Helper()
	for _, p := range plantest.Programs() {
		t.Run(p.Name, func(t *testing.T) {
			f := file(t, p.Build())
			run(t, g, len(f.Ranks), memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) error {
				loaded, err := r.Load(ctx, f)
				if err != nil {
					return err
				}
				for i, l := range launches {
					if err := r.launch(ctx, loaded, l, uint64(i)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// few are launches of several sizes, and several of one size after each other.
var few = []launchOf{
	{dtype: weft.Float32, chunk: 16},
	{dtype: weft.Float32, chunk: 16, window: true},
	{dtype: weft.BFloat16, chunk: 4096, window: true},
	{dtype: weft.BFloat16, chunk: 48, shift: 2},
	{dtype: weft.BFloat16, chunk: 48, shift: 16, window: true},
	{dtype: weft.BFloat16, chunk: 0},
	{dtype: weft.BFloat16, chunk: 1072},
}

func TestProgramsOnEmulatedGPUs(t *testing.T) {
	seeds := 1
	if emulate.Everything() {
		seeds = 20
	}
	for seed := range seeds {
		programs(t, emulatedKernels(t, 6, uint64(seed+1)), few, build)
	}
}

// TestProgramsOnGPUs is the same on real ones, with more types and sizes.
func TestProgramsOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	all := few
	for d := weft.BFloat16; d <= weft.Bool; d++ {
		if d != weft.UE8M0 {
			all = append(all, launchOf{dtype: d, chunk: 1008}, launchOf{dtype: d, chunk: 1008, window: true})
		}
	}
	for _, chunk := range []int{16, 32, 1 << 10, 64 << 10, 200_000, 16} {
		l := launchOf{dtype: weft.Float16, chunk: chunk}
		all = append(all, l)
		l.window = true
		all = append(all, l)
	}
	programs(t, g, all, build)
}
