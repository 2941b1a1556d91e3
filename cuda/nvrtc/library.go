package nvrtc

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/dl"
)

// Compiler is an open NVRTC. It is safe for concurrent use and is never closed.
type Compiler struct {
	path          string
	version       cuda.Version
	architectures []int
	turns         chan struct{}
	table         table
}

var machine = sync.OnceValues(func() (*Compiler, error) { return open(environment()) })

// Open loads the NVRTC that is found first (see the package's documentation), once in a process;
// every call gives the same answer. If there is none the error wraps [cuda.ErrUnsupported], says
// where it was looked for, and how to get it.
func Open() (*Compiler, error) { return machine() }

// OpenFile loads NVRTC from a file, and its dependencies from the same folder.
func OpenFile(path string) (*Compiler, error) {
	for _, part := range builtins(path) {
		// If it does not load, the first compilation says so.
		_, _ = dl.OpenGlobal(part)
	}
	library, err := dl.Open(path)
	if err != nil {
		return nil, err
	}
	c := &Compiler{path: path, turns: make(chan struct{}, runtime.GOMAXPROCS(0))}
	if err := c.table.bind(library); err != nil {
		return nil, fmt.Errorf("%w: %w; NVRTC of CUDA 11.2 or newer is needed", cuda.ErrUnsupported, err)
	}
	if err := c.ask(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ask learns the version and the architectures.
func (c *Compiler) ask() error {
	major, minor, count := new(int32), new(int32), new(int32)
	if err := check("nvrtcVersion", c.table.version(major, minor)); err != nil {
		return err
	}
	c.version = cuda.Version(*major*1000 + *minor*10)
	if err := check("nvrtcGetNumSupportedArchs", c.table.archCount(count)); err != nil {
		return err
	}
	architectures := make([]int32, *count+1) // so that none has an address too
	if err := check("nvrtcGetSupportedArchs", c.table.archs(&architectures[0])); err != nil {
		return err
	}
	for _, a := range architectures[:*count] {
		c.architectures = append(c.architectures, int(a))
	}
	return nil
}

// Path is the library that was loaded, by the name that it was found by.
func (c *Compiler) Path() string { return c.path }

// Version is NVRTC's version.
func (c *Compiler) Version() cuda.Version { return c.version }

// Architectures are the compute capabilities that NVRTC compiles for, ascending: 90 for sm_90 and
// its variants, sm_90a.
func (c *Compiler) Architectures() []int { return append([]int(nil), c.architectures...) }
