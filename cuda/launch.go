package cuda

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// Dim is an extent in up to three dimensions. A zero counts as one.
type Dim struct{ X, Y, Z uint32 }

func (d Dim) filled() Dim { return Dim{max(d.X, 1), max(d.Y, 1), max(d.Z, 1)} }

// LaunchConfig is the shape of a launch.
type LaunchConfig struct {
	Grid  Dim // blocks
	Block Dim // threads of a block
	// Cluster is how many neighbouring blocks run together and share their shared memory; the grid
	// must be a multiple. Zero: no clusters.
	Cluster Dim
	Shared  int // bytes of dynamic shared memory of a block
	// Cooperative makes all blocks run at once, or the launch fail.
	Cooperative bool
	// Dependent lets the kernel begin before its predecessor in the stream has ended. It must wait
	// itself (griddepcontrol.wait) before it touches memory that the predecessor writes.
	Dependent bool
}

// firstExtended is the version of CUDA whose drivers have cuLaunchKernelEx.
const firstExtended Version = 11060

// A Launch is a kernel ready to start: its shape and arguments are laid out once, and starting it
// allocates nothing. Arguments are changed in place, between starts, through the pointers that
// [Arg] gives: a started kernel has its own copy.
//
// A Launch is for one goroutine at a time.
type Launch struct {
	function   *Function
	config     sys.LaunchConfig
	attributes [3]sys.LaunchAttribute
	types      []reflect.Type
	params     []unsafe.Pointer // where in block each argument is
	block      []uint64         // words, so that it is aligned
	extended   bool
}

// Prepare lays out a launch. The arguments are the kernel's, in order, as Go values of the same
// size: int32, uint64, float32, [Pointer] and so on, or structs and arrays of them. Values whose
// size differs in C (int, uint, bool, strings, Go pointers) are refused. So are values that do not
// fit the kernel's parameters, if the driver knows these.
//
// An argument may end in an array, as its last field or that of its last field, whose type has a
// method Least() int. The kernel's parameter may then be shorter: its array has that many elements
// or more, and the rest is not passed.
func (f *Function) Prepare(c LaunchConfig, arguments ...any) (*Launch, error) {
	l, err := f.shape(c)
	if err != nil {
		return nil, err
	}
	if err := l.layOut(arguments); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", f.name, err)
	}
	if err := l.compare(); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", f.name, err)
	}
	return l, nil
}

// shape is a launch without arguments.
func (f *Function) shape(c LaunchConfig) (*Launch, error) {
	const call = "cuLaunchKernelEx"
	if f.module.closed.Load() {
		return nil, closed(call)
	}
	if c.Shared < 0 {
		return nil, invalid(call, "%d bytes of shared memory", c.Shared)
	}
	grid, block := c.Grid.filled(), c.Block.filled()
	l := &Launch{function: f}
	l.config = sys.LaunchConfig{
		GridX: grid.X, GridY: grid.Y, GridZ: grid.Z, BlockX: block.X, BlockY: block.Y, BlockZ: block.Z,
		SharedBytes: uint32(c.Shared),
	}
	if c.Cluster != (Dim{}) {
		k := c.Cluster.filled()
		if grid.X%k.X != 0 || grid.Y%k.Y != 0 || grid.Z%k.Z != 0 {
			return nil, fmt.Errorf("kernel %s: %w", f.name,
				invalid(call, "a grid of %v is no multiple of clusters of %v", grid, k))
		}
		l.attribute(sys.LaunchClusterDimension, k.X, k.Y, k.Z)
	}
	if c.Cooperative {
		l.attribute(sys.LaunchCooperative, 1)
	}
	if c.Dependent {
		l.attribute(sys.LaunchProgrammaticStreamSerialization, 1)
	}
	version := f.module.context.driver.version
	l.extended = version >= firstExtended
	if l.config.AttributeCount > 0 && !l.extended {
		return nil, fmt.Errorf("kernel %s: %w: clusters, cooperative and dependent launches need a driver "+
			"of CUDA %v, this one has %v",
			f.name, ErrUnsupported, firstExtended, version)
	}
	return l, nil
}

func (l *Launch) attribute(id int32, values ...uint32) {
	a := &l.attributes[l.config.AttributeCount]
	a.ID = id
	copy(a.Value[:], values)
	l.config.AttributeCount++
	l.config.Attributes = &l.attributes[0]
}

// layOut copies the arguments into one block, each aligned as its type is.
func (l *Launch) layOut(arguments []any) error {
	offsets := make([]uintptr, len(arguments))
	end := uintptr(0)
	for i, a := range arguments {
		t := reflect.TypeOf(a)
		if err := fixed(t); err != nil {
			return fmt.Errorf("argument %d: %w", i, err)
		}
		align := uintptr(t.Align())
		end = (end + align - 1) / align * align
		offsets[i] = end
		end += t.Size()
		l.types = append(l.types, t)
	}
	l.block = make([]uint64, (end+7)/8+1) // one more, so that an empty argument at the end has an address
	l.params = make([]unsafe.Pointer, len(arguments)+1)
	for i, a := range arguments {
		l.params[i] = unsafe.Add(unsafe.Pointer(&l.block[0]), offsets[i])
		reflect.NewAt(l.types[i], l.params[i]).Elem().Set(reflect.ValueOf(a))
	}
	return nil
}

// fixed refuses types that C has no equal of.
func fixed(t reflect.Type) error {
	if t == nil {
		return invalid("cuLaunchKernelEx", "nil has no size; a null pointer is Pointer(0)")
	}
	switch t.Kind() {
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16,
		reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64, reflect.Uintptr:
		return nil
	case reflect.Array:
		return fixed(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if err := fixed(t.Field(i).Type); err != nil {
				return fmt.Errorf("field %s: %w", t.Field(i).Name, err)
			}
		}
		return nil
	}
	return invalid("cuLaunchKernelEx", "a %v is no value of C's: say which size, as int32 or Pointer do", t)
}

// compare asks the driver for the kernel's parameters. Drivers before CUDA 12.4 do not.
func (l *Launch) compare() error {
	f := l.function
	for i := 0; ; i++ {
		offset, size := new(uint64), new(uint64)
		r := f.table().FuncGetParamInfo(f.context(), f.handle, uint64(i), offset, size)
		switch {
		case r == sys.Missing:
			return nil
		case Code(r) == ErrInvalidValue: // past the last
			if i < len(l.types) {
				return invalid("cuFuncGetParamInfo", "%d arguments for %d parameters", len(l.types), i)
			}
			return nil
		case r != sys.Success:
			return f.module.context.check("cuFuncGetParamInfo", r)
		case i >= len(l.types):
			return invalid("cuFuncGetParamInfo", "%d arguments, and the kernel has more parameters", len(l.types))
		case !fits(l.types[i], uintptr(*size)):
			return invalid("cuFuncGetParamInfo", "argument %d, a %v, has %d bytes, and the parameter has %d", i,
				l.types[i], l.types[i].Size(), *size)
		}
	}
}

// fits reports whether an argument can be given for a parameter of so many bytes: it is as long, or
// ends in an array that the parameter has the beginning of.
func fits(t reflect.Type, size uintptr) bool {
	rest := t.Size() - size // is huge if the argument is too short
	for last := t; rest != 0; {
		array, ok := reflect.Zero(last).Interface().(interface{ Least() int })
		switch {
		case ok && last.Kind() == reflect.Array:
			each := last.Elem().Size()
			return rest%each == 0 && rest/each <= uintptr(last.Len()-array.Least())
		case last.Kind() != reflect.Struct || last.NumField() == 0:
			return false
		}
		f := last.Field(last.NumField() - 1)
		if f.Offset+f.Type.Size() != last.Size() { // padding follows
			return false
		}
		last = f.Type
	}
	return true
}

// For is a launch of another kernel of the same parameters, in the shape of this one. They share
// the arguments: a change in place holds for both, and one goroutine at a time may use the two.
func (l *Launch) For(f *Function) (*Launch, error) {
	if f.module.closed.Load() {
		return nil, closed("cuLaunchKernelEx")
	}
	if f.module.context != l.function.module.context {
		return nil, invalid("cuLaunchKernelEx", "kernel %s belongs to another context than kernel %s", f.name,
			l.function.name)
	}
	other := *l
	other.function = f
	if other.config.AttributeCount > 0 {
		other.config.Attributes = &other.attributes[0]
	}
	if err := other.compare(); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", f.name, err)
	}
	return &other, nil
}

// Arg points at an argument of the launch, to be changed before the next start. T must be the type
// that the argument was prepared with.
func Arg[T any](l *Launch, i int) (*T, error) {
	want := reflect.TypeFor[T]()
	if i < 0 || i >= len(l.types) {
		return nil, fmt.Errorf("kernel %s: argument %d of %d", l.function.name, i, len(l.types))
	}
	if l.types[i] != want {
		return nil, fmt.Errorf("kernel %s: argument %d is a %v, not a %v", l.function.name, i, l.types[i], want)
	}
	return (*T)(l.params[i]), nil
}

// Grid is the number of blocks of the starts to come.
func (l *Launch) Grid() Dim { return Dim{l.config.GridX, l.config.GridY, l.config.GridZ} }

// Block is the number of threads of a block.
func (l *Launch) Block() Dim { return Dim{l.config.BlockX, l.config.BlockY, l.config.BlockZ} }

// SetGrid changes the number of blocks of the starts to come. A launch with clusters needs a
// multiple of them.
func (l *Launch) SetGrid(grid Dim) {
	grid = grid.filled()
	l.config.GridX, l.config.GridY, l.config.GridZ = grid.X, grid.Y, grid.Z
}

// SetBlock changes the number of threads of a block of the starts to come.
func (l *Launch) SetBlock(block Dim) {
	block = block.filled()
	l.config.BlockX, l.config.BlockY, l.config.BlockZ = block.X, block.Y, block.Z
}

// Start enqueues the kernel with the arguments as they are.
func (l *Launch) Start(s *Stream) error {
	const call = "cuLaunchKernelEx"
	f := l.function
	if err := s.use(call); err != nil {
		return err
	}
	if f.module.closed.Load() {
		return closed(call)
	}
	if !l.extended {
		c := &l.config
		r := f.table().LaunchKernel(f.context(), f.handle, c.GridX, c.GridY, c.GridZ, c.BlockX, c.BlockY,
			c.BlockZ, c.SharedBytes, s.handle,
			&l.params[0], nil)
		return f.check("cuLaunchKernel", r)
	}
	l.config.Stream = s.handle
	return f.check(call, f.table().LaunchKernelEx(f.context(), &l.config, f.handle, &l.params[0], nil))
}
