package gpu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// Source is CUDA code: the kernels that its Spec names are loaded, and behind them those that are
// extern "C" and wanted. An Image is compiled code in place of the Spec's, whose Kernels are its symbols.
type Source struct {
	kernel.Spec
	Extern []string
	Image  []byte
}

// Program is kernels that are loaded on a rank's GPU. A driver loads code only when no kernel runs
// that waits for a peer, so programs are loaded when an object is made, never by an operation.
type Program struct {
	modules   []*cuda.Module
	functions [][]*cuda.Function // by source
}

// sharedPercent is how much of an SM's memory kernels want shared: half of it is enough for as many
// blocks as an SM has registers for, if they have 128 threads or more. A kernel that wanted none
// would leave none where its blocks wait, and others could not run there.
const sharedPercent = 50

// Load loads the kernels on all ranks, or fails on all: it is collective. Kernels are compiled for the
// domain of the communicator, and to trace if that is traced, unless the cache has them. The caller closes the
// program.
func Load(ctx context.Context, comm *weft.Comm, op string, sources ...Source) (*Program, error) {
	d := comm.Device()
	if comm.Operations().Trace() != nil {
		sources = traced(sources)
	}
	p, err := LoadLocal(ctx, d.Context(), d.Kernels(), ForDomain(comm.Size(), sources...)...)
	if err := comm.Operations().VerifySame(ctx, op, "kernels", err); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// ForDomain is the sources for a domain of so many ranks: those that are not for as many become so.
func ForDomain(ranks int, sources ...Source) []Source {
	sources = slices.Clone(sources)
	for i, s := range sources {
		room, err := strconv.Atoi(s.Defines[device.DomainDefine])
		if err != nil {
			room = device.WordRanks // the domain of a kernel without the define
		}
		if ranks <= room {
			continue
		}
		s.Defines = maps.Clone(s.Defines)
		if s.Defines == nil {
			s.Defines = map[string]string{}
		}
		s.Defines[device.DomainDefine] = strconv.Itoa(device.Domain(ranks))
		sources[i] = s
	}
	return sources
}

// LoadLocal is Load on one GPU alone, for kernels that meet no peers.
func LoadLocal(ctx context.Context, c *cuda.Context, cache *kernel.Cache, sources ...Source) (*Program, error) {
	var specs []kernel.Spec
	for _, s := range sources {
		if len(s.Image) == 0 {
			specs = append(specs, s.Spec)
		}
	}
	cubins, err := cache.LoadAll(ctx, specs)
	if err != nil {
		return nil, err
	}
	p := &Program{}
	for _, s := range sources {
		var cubin kernel.Cubin // of an image: each kernel's name is its symbol
		if len(s.Image) == 0 {
			cubin, cubins = cubins[0], cubins[1:]
			s.Image = cubin.Image()
		}
		if err := p.add(c, s, cubin); err != nil {
			return nil, errors.Join(fmt.Errorf("kernel %s: %w", s.Name, err), p.Close())
		}
	}
	return p, nil
}

// add loads the code of a source.
func (p *Program) add(c *cuda.Context, s Source, cubin kernel.Cubin) error {
	m, err := c.LoadModule(s.Image)
	if err != nil {
		return err
	}
	p.modules = append(p.modules, m)
	var functions []*cuda.Function
	for _, name := range slices.Concat(s.Kernels, s.Extern) {
		f, err := m.Function(cubin.Symbol(name))
		if err != nil {
			return err
		}
		if err := f.PreferShared(sharedPercent); err != nil {
			return err
		}
		functions = append(functions, f)
	}
	p.functions = append(p.functions, functions)
	return nil
}

// Functions are the kernels of the i-th source, in its order.
func (p *Program) Functions(i int) []*cuda.Function { return p.functions[i] }

// Close unloads the kernels. None of them runs any more. A nil program has nothing to close.
func (p *Program) Close() error {
	if p == nil {
		return nil
	}
	var errs []error
	for _, m := range p.modules {
		errs = append(errs, m.Close())
	}
	p.modules = nil
	return errors.Join(errs...)
}

// CloseIdle is Close for an owner without a lane: it first waits until nothing of the rank's runs
// on its GPU, for the communicator's deadline at most. If work still runs it has unloaded nothing,
// the error wraps [weft.ErrTimeout], and the owner, which is being closed, is to call it again.
func (p *Program) CloseIdle(comm *weft.Comm, owner string) (closed bool, err error) {
	ended, err := quiesce(comm, "close "+owner, "the "+owner+"'s kernels stay")
	if !ended {
		return false, err
	}
	return true, errors.Join(err, p.Close())
}
