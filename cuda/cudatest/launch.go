package cudatest

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// A Call is one launch of a kernel, as the Go function that plays it sees it.
type Call struct {
	Grid, Block, Cluster   cuda.Dim // Cluster is zero if there are none
	Shared                 int
	Cooperative, Dependent bool
	Device                 int

	machine *Machine
	context *primary
}

// A wild access ends a kernel.
type wild struct{ why string }

// Bytes is memory that the kernel accesses. If the device cannot reach all of it, the kernel ends
// here and the context is lost.
func (c *Call) Bytes(p cuda.Pointer, size int) []byte {
	c.machine.mu.Lock()
	defer c.machine.mu.Unlock()
	if why := c.machine.reach(c.context, uintptr(p), size); why != "" {
		panic(wild{why})
	}
	return view(uintptr(p), size)
}

// Slice is [Call.Bytes] for n values of a type.
func Slice[T any](c *Call, p cuda.Pointer, n int) []T {
	var t T
	b := c.Bytes(p, n*int(unsafe.Sizeof(t)))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// launchCalls run kernels.
func (m *Machine) launchCalls(t *sys.Table) {
	t.LaunchKernelEx = func(c sys.Context, config *sys.LaunchConfig, h sys.Function, params,
		_ *unsafe.Pointer,
	) sys.Result {
		return m.launch("cuLaunchKernelEx", c, config, h, params)
	}
	t.LaunchKernel = func(c sys.Context, h sys.Function, gx, gy, gz, bx, by, bz, shared uint32, s sys.Stream,
		params, _ *unsafe.Pointer,
	) sys.Result {
		config := sys.LaunchConfig{
			GridX: gx, GridY: gy, GridZ: gz, BlockX: bx, BlockY: by, BlockZ: bz,
			SharedBytes: shared, Stream: s,
		}
		return m.launch("cuLaunchKernel", c, &config, h, params)
	}
}

func (m *Machine) launch(call string, c sys.Context, config *sys.LaunchConfig, h sys.Function,
	params *unsafe.Pointer,
) sys.Result {
	var shape Call
	var f *function
	if r := m.prepare(call, c, config, h, &shape, &f); r != sys.Success {
		return r
	}
	// The arguments are those of now, also when the kernel runs later.
	arguments := f.kernel.copy(unsafe.Slice(params, len(f.kernel.Parameters)))
	return m.enqueue(call, c, config.Stream, func(p *primary) sys.Result {
		shape := shape
		shape.machine, shape.context, shape.Device = m, p, p.device
		return m.play(f.kernel, &shape, arguments)
	})
}

// prepare checks a launch; the call itself is counted when it is enqueued.
func (m *Machine) prepare(call string, c sys.Context, config *sys.LaunchConfig, h sys.Function, shape *Call,
	out **function,
) sys.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.loaded[h]
	if f == nil {
		return m.misuse(cuda.ErrInvalidHandle, "%s of kernel %#x, whose module was unloaded", call, uintptr(h))
	}
	if p := m.context(c); p != nil && p != f.owner {
		return m.own(call, "kernel "+f.kernel.name, f.owner, p)
	}
	s, r := m.shape(f, config)
	*shape, *out = s, f
	return r
}

// play runs the kernel without the lock, so that kernels can wait for each other.
func (m *Machine) play(k *kernel, c *Call, arguments []byte) (r sys.Result) {
	m.mu.Unlock()
	var failed error
	defer func() {
		v := recover()
		m.mu.Lock()
		if v == nil {
			if failed != nil {
				r = m.lose(c.context, "kernel "+k.name, failed)
			}
			return
		}
		stray, ok := v.(wild)
		if !ok {
			panic(v)
		}
		r = m.stray(c.context, "kernel "+k.name, stray.why)
	}()
	failed = k.Run(c, arguments)
	return sys.Success
}

// shape reads a launch's configuration and refuses what the device cannot do.
func (m *Machine) shape(f *function, config *sys.LaunchConfig) (Call, sys.Result) {
	c := Call{
		Grid:   cuda.Dim{X: config.GridX, Y: config.GridY, Z: config.GridZ},
		Block:  cuda.Dim{X: config.BlockX, Y: config.BlockY, Z: config.BlockZ},
		Shared: int(config.SharedBytes),
	}
	for _, a := range unsafe.Slice(config.Attributes, config.AttributeCount) {
		switch a.ID {
		case sys.LaunchClusterDimension:
			c.Cluster = cuda.Dim{X: a.Value[0], Y: a.Value[1], Z: a.Value[2]}
		case sys.LaunchCooperative:
			c.Cooperative = a.Value[0] != 0
		case sys.LaunchProgrammaticStreamSerialization:
			c.Dependent = a.Value[0] != 0
		default:
			return c, m.misuse(cuda.ErrInvalidValue, "a launch of %s with an attribute %d", f.kernel.name, a.ID)
		}
	}
	const invalidClusterSize = 912
	switch {
	case threads(c.Grid) == 0 || threads(c.Block) == 0 || threads(c.Block) > uint32(f.kernel.threads()):
		return c, m.misuse(cuda.ErrInvalidValue, "a launch of %s with %v blocks of %v threads", f.kernel.name,
			c.Grid, c.Block)
	case c.Shared > int(f.maxShared):
		return c, m.misuse(cuda.ErrInvalidValue,
			"a launch of %s with %d bytes of shared memory, %d are allowed", f.kernel.name, c.Shared, f.maxShared)
	case threads(c.Cluster) > 16 || threads(c.Cluster) > 8 && !f.largeClusters:
		return c, sys.Result(invalidClusterSize)
	case c.Cluster.X > 0 && (c.Grid.X%c.Cluster.X != 0 || c.Grid.Y%c.Cluster.Y != 0 || c.Grid.Z%c.Cluster.Z != 0):
		return c, m.misuse(cuda.ErrInvalidValue, "a launch of %s with %v blocks in clusters of %v",
			f.kernel.name, c.Grid, c.Cluster)
	case c.Cooperative && int64(threads(c.Grid)) > m.resident(f, c):
		return c, sys.Result(cuda.ErrCooperativeTooLarge)
	}
	return c, sys.Success
}

// resident is how many blocks of a launch run at once.
func (m *Machine) resident(f *function, c Call) int64 {
	return int64(m.occupancy(threads(c.Block), c.Shared+f.kernel.Shared)) * int64(attributes[cuda.MultiprocessorCount])
}

// threads is how many elements an extent has, capped far above anything allowed.
func threads(d cuda.Dim) uint32 {
	n := uint64(d.X) * uint64(d.Y) % (1 << 32) * uint64(d.Z)
	return uint32(min(n, 1<<32-1))
}

func (c *Call) String() string {
	return fmt.Sprintf("%v blocks of %v threads on device %d", c.Grid, c.Block, c.Device)
}
