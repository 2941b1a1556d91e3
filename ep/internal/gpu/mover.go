package gpu

import (
	"context"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

// A mover is a kernel of a handle with all that is its own: programs, grid, memory, launches. A
// handle asks its movers in the order of the methods.
type mover interface {
	// load names the programs, and where their functions go.
	load(p *programs)
	// want asks for a grid. It is nil for kernels that wait for no peer: they take no room.
	want() *request
	// layout adds regions to the window, which peers reach, and to this GPU's own memory.
	layout(window, local *enginegpu.Workspace)
	// prepare lays out the launches: functions, grids and regions are known.
	prepare() error
	// point points the arguments at the lane's memory, which is another one after some masks.
	point()
}

// apart is the part of movers whose kernels wait for no peer and keep nothing between calls.
type apart struct{}

func (apart) want() *request                   { return nil }
func (apart) layout(_, _ *enginegpu.Workspace) {}
func (apart) point()                           {}

// A dispatcher is the mover that prepares and dispatches. Arguments come by value, as a combiner's:
// what an interface is given a pointer to is allocated.
type dispatcher interface {
	// addRouting adds what the kernels keep of a routing.
	addRouting(l *routingLayout)
	// route enqueues a prepare.
	route(ctx context.Context, stream *cuda.Stream, a spec.PrepareArgs) (*spec.Batch, error)
	// move enqueues a dispatch, or the half of it that sends.
	move(ctx context.Context, stream *cuda.Stream, a spec.MoveArgs, half uint32) (spec.Arrived, error)
	// receive enqueues what receives what was sent last: of a batch that was prepared with it, or
	// that it gives weights.
	receive(stream *cuda.Stream, made, withWeights bool) error
}

// A combiner is the mover that brings rows home and sums them there.
type combiner interface {
	// send begins an operation, by launches that do what flags say.
	send(stream *cuda.Stream, call uint32, a spec.SumArgs, flags uint32) error
	// receive is the second half of what was sent last.
	receive(stream *cuda.Stream, flags uint32) error
	// keepsWeights reports whether the kernel of such a call keeps the weights that it is given.
	keepsWeights(flags uint32) bool
	// bringsScalars reports whether gradients of weights come home with the rows.
	bringsScalars() bool
	// buffer is memory in the window for rows that peers read where they are, or none.
	buffer() weft.Tensor
}

// A part is a line of the list of kernels.
type part struct {
	programs func(arch string) []kernel.Spec         // that handles of any Spec load
	of       func(s *spec.Spec, c *spec.Choice) bool // which handles have the mover
	mover    func(h *handle) mover
}

// parts are the kernels. A handle is composed of those that its Spec and its Choice ask for, and
// nothing else in this package looks at the ways of the Choice. Their blocks' counts are in this
// order: a dispatch's are the lane's first.
var parts = []part{
	{noPrograms, throughPorts, func(h *handle) mover { return newPorts(h) }},
	{slotDispatchPrograms, dispatchesBy(spec.Slots), func(h *handle) mover { return &slotDispatch{h: h} }},
	{rowMapPrograms, dispatchesBy(spec.Direct), func(h *handle) mover { return &rowMap{h: h} }},
	{pushPrograms, dispatchesBy(spec.Direct), func(h *handle) mover { return &push{rowMap: moverOf[*rowMap](h)} }},
	{slotCombinePrograms, combinesBy(spec.Slots), func(h *handle) mover { return &slotCombine{h: h} }},
	{pullPrograms, combinesBy(spec.Direct), func(h *handle) mover { return &pull{h: h} }},
	{gradientPrograms, combines, func(h *handle) mover { return &gradients{h: h} }},
	{describePrograms, always, func(h *handle) mover { return &describe{h: h} }},
	{copyPrograms, always, func(h *handle) mover { return &copier{h: h} }},
}

func always(*spec.Spec, *spec.Choice) bool       { return true }
func combines(s *spec.Spec, _ *spec.Choice) bool { return s.Combines() }

func dispatchesBy(w spec.Way) func(*spec.Spec, *spec.Choice) bool {
	return func(_ *spec.Spec, c *spec.Choice) bool { return c.Dispatch == w }
}

func combinesBy(w spec.Way) func(*spec.Spec, *spec.Choice) bool {
	return func(s *spec.Spec, c *spec.Choice) bool { return s.Combines() && c.Combine == w }
}

// compose makes the handle's movers.
func (h *handle) compose() {
	for _, p := range parts {
		if !p.of(&h.Spec, &h.choice) {
			continue
		}
		m := p.mover(h)
		h.movers = append(h.movers, m)
		switch m := m.(type) {
		case dispatcher:
			h.dispatcher = m
		case combiner:
			h.combiner = m
		case *ports:
			h.ports = m
		}
	}
}

// moverOf is the handle's mover of a type, which the line of that type in the list makes. There are
// a handful of movers, so a call looks for its own instead of having a field in the handle.
func moverOf[M mover](h *handle) (m M) {
	for _, other := range h.movers {
		if found, ok := other.(M); ok {
			return found
		}
	}
	return m
}

// AllKernels lists the kernels of handles and counters: see ep.Kernels.
func AllKernels(arch string) []kernel.Spec {
	all := []kernel.Spec{tokenCountsKernel(arch)}
	for _, p := range parts {
		all = append(all, p.programs(arch)...)
	}
	return all
}

// programs are those of a handle, and where their functions go.
type programs struct {
	arch    string
	sources []enginegpu.Source
	into    [][]**cuda.Function
}

func (p *programs) add(s kernel.Spec, to ...**cuda.Function) {
	p.sources, p.into = append(p.sources, enginegpu.Source{Spec: s}), append(p.into, to)
}

// programs are those of the handle's movers.
func (h *handle) programs(arch string) *programs {
	p := &programs{arch: arch}
	for _, m := range h.movers {
		m.load(p)
	}
	return p
}

// load loads the programs on all ranks.
func (h *handle) load(ctx context.Context) (err error) {
	p := h.programs(h.device.Arch())
	if h.program, err = enginegpu.Load(ctx, h.Comm, opNew, p.sources...); err != nil {
		return err
	}
	for i, functions := range p.into {
		for k, to := range functions {
			*to = h.program.Functions(i)[k]
		}
	}
	return nil
}

// layout lays out the handle's memory: the lane's counts, the memory that movers share, and each
// mover's own. The last movers come first: kernels get the offset of the tokens' gradients as 32 bits,
// in units of 16 bytes, so that region lies at the beginning of the window.
func (h *handle) layout() {
	h.local = enginegpu.NewLocal(h.counts)
	h.credits = h.local.Zeros(4 * int64(device.Domain(h.Geometry.Ranks)))
	for _, m := range slices.Backward(h.movers) {
		m.layout(h.window, h.local)
	}
}

// span is memory in the window.
type span struct{ at, size int64 }

// lend says that peers read operands in memory of the window where they are.
func (h *handle) lend(at, size int64) { h.lent = append(h.lent, span{at, size}) }

// readable says where in the window a tensor is that peers read where it is.
func (h *handle) readable(t weft.Tensor) (at int64, ok bool) {
	at = int64(addressOf(t) - uint64(h.lane.Window().Pointer()))
	return at, slices.ContainsFunc(h.lent, func(s span) bool {
		return at >= s.at && at+int64(t.Bytes()) <= s.at+s.size
	})
}

// A launcher has the launch of a kernel, and the arguments as every call begins with them.
type launcher[A any] struct {
	functions [2]*cuda.Function // the second is that of some calls, or none
	launches  [2]*cuda.Launch   // by function; the first serves those calls too if there is no second
	args      *A                // of the next launch
	fixed     A
}

// layOut lays out the launches.
func (l *launcher[A]) layOut(config cuda.LaunchConfig, fixed A) error {
	for _, f := range l.functions {
		if f != nil && config.Shared > 0 {
			if err := f.SetMaxDynamicShared(config.Shared); err != nil {
				return err
			}
		}
	}
	launch, err := enginegpu.NewLaunch(l.functions[0], config, fixed)
	if err != nil {
		return err
	}
	l.args, l.fixed, l.launches = launch.Args, fixed, [2]*cuda.Launch{launch.Launch, launch.Launch}
	if f := l.functions[1]; f != nil {
		l.launches[1], err = launch.Launch.For(f)
	}
	return err
}

// begin is a call's arguments, with nothing of the call before. They stay as they are for the
// second half of what is only sent.
func (l *launcher[A]) begin() *A {
	*l.args = l.fixed
	return l.args
}

// pointed changes where arguments point: of calls to come, and of a second half.
func (l *launcher[A]) pointed(at func(a *A)) {
	at(&l.fixed)
	at(l.args)
}
