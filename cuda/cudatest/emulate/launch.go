package emulate

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/internal/dl"
)

// Options say how kernels run. The zero value runs threads in order and keeps vectors whole.
type Options struct {
	// Seed makes blocks and threads run in an order that it decides, within one launch. 0: in their
	// own order.
	Seed uint64
	// Tear runs other threads between the words of a vector load. It delays stores to other devices
	// and the host, word by word, until a fence or a release by a thread that has seen them, the
	// end of the block, or a random time.
	Tear bool
	// Limit is how long a launch may take; 0 means a minute.
	Limit time.Duration
}

// New makes a machine of emulated GPUs. They have 16 SMs unless the configuration says otherwise: each
// block of a launch costs its threads' stacks, and grids are as large as GPUs.
func New(c cudatest.Config, o Options) *cudatest.Machine {
	attributes := map[cuda.Attribute]int{cuda.MultiprocessorCount: 16}
	maps.Copy(attributes, c.Attributes)
	c.Attributes = attributes
	m := cudatest.New(c)
	Attach(m, o)
	return m
}

// Attach makes a machine load the images of [Compiler]'s. Call it before modules are loaded. A
// number in WEFT_EMULATE_SEED stands for that Seed and Tear where the options have neither.
func Attach(m *cudatest.Machine, o Options) {
	if o.Limit == 0 {
		o.Limit = time.Minute
	}
	if seed, err := strconv.ParseUint(os.Getenv("WEFT_EMULATE_SEED"), 0, 64); err == nil && o.Seed == 0 && !o.Tear {
		o.Seed, o.Tear = seed, true
	}
	m.Loader(func(code []byte) (map[string]cudatest.Code, error) {
		l, err := open(code)
		if err != nil {
			return nil, err
		}
		kernels := map[string]cudatest.Code{}
		for i, k := range l.kernels {
			run := func(c *cudatest.Call, arguments []byte) error { return l.run(uint64(i), c, arguments, o) }
			kernels[k.name] = cudatest.Code{Parameters: k.parameters, Shared: l.static, Threads: k.threads, Run: run}
		}
		return kernels, nil
	})
}

// A library is one image's, for all machines of the process: libraries stay open.
type library struct {
	kernels []entry
	static  int // bytes of static shared memory
	launch  func(*launch) int32
}

// An entry is a kernel in a library.
type entry struct {
	name       string
	threads    int
	parameters []cudatest.Parameter
}

var libraries = struct {
	sync.Mutex
	open map[[sha256.Size]byte]*library
}{open: map[[sha256.Size]byte]*library{}}

// open gives the library of an image, which is opened once: the loader would take a second file of
// the same name for the first.
func open(code []byte) (*library, error) {
	libraries.Lock()
	defer libraries.Unlock()
	key := sha256.Sum256(code)
	if l := libraries.open[key]; l != nil {
		return l, nil
	}
	l, err := load(code)
	if err != nil {
		return nil, err
	}
	libraries.open[key] = l
	return l, nil
}

func load(code []byte) (l *library, err error) {
	dir, err := os.MkdirTemp("", "emulate")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "kernel.so")
	if err := os.WriteFile(path, code, 0o700); err != nil {
		return nil, err
	}
	opened, err := dl.Open(path)
	if err != nil {
		return nil, err
	}
	var begin, kernel, start dl.Func
	for symbol, f := range map[string]*dl.Func{
		"weft_emulate_open": &begin, "weft_emulate_kernel": &kernel, "weft_emulate_launch": &start,
	} {
		if *f, err = opened.Lookup(symbol); err != nil {
			return nil, err
		}
	}
	// It takes a pointer, so that the launch is on the heap: a goroutine's stack may move on the way to C.
	l = &library{launch: dl.Bind1[*launch, int32](start)}
	l.static = int(begin.Call())
	for i := uintptr(0); ; i++ {
		k := (*kernelEntry)(foreign(kernel.Call(i)))
		if k == nil {
			return l, nil
		}
		e := entry{name: text(k.name), threads: int(k.bound)}
		offsets, sizes := unsafe.Slice(k.offsets, k.parameters), unsafe.Slice(k.sizes, k.parameters)
		for i := range sizes {
			e.parameters = append(e.parameters, cudatest.Parameter{Offset: int(offsets[i]), Size: int(sizes[i])})
		}
		l.kernels = append(l.kernels, e)
	}
}

// kernelEntry is Kernel of machine.h.
type kernelEntry struct {
	name           *byte
	run            uintptr
	bound          uint32
	parameters     uint32
	offsets, sizes *uint32
}

// launch is Launch of machine.h.
type launch struct {
	kernel          uint64
	blocks, threads [3]uint32
	shared          uint64
	arguments       *byte
	ranges          *cudatest.Range
	count           uint64
	replicas        *cudatest.Replica
	replicaCount    uint64
	seed, tear      uint64
	limit           uint64
	text            *byte
	room            uint64
	cause           uint64
	pool            *[3]uint64
}

// stacks is Pool of machine.cc: those that no launch uses. C keeps nothing of Go's in it.
var stacks [3]uint64

// causes are those of machine.h.
var causes = [...]cuda.Code{1: cuda.ErrIllegalAddress, 2: cuda.ErrMisalignedAddress, 3: cuda.ErrLaunchFailed, 4: 702}

// run runs a launch on this goroutine's thread, to its end.
func (l *library) run(kernel uint64, c *cudatest.Call, arguments []byte, o Options) error {
	ranges, replicas, room := c.Ranges(), c.Replicas(), make([]byte, 1<<10)
	a := &launch{
		kernel: kernel, blocks: extent(c.Grid), threads: extent(c.Block), shared: uint64(c.Shared),
		arguments: unsafe.SliceData(arguments),
		ranges:    unsafe.SliceData(ranges), count: uint64(len(ranges)),
		replicas: unsafe.SliceData(replicas), replicaCount: uint64(len(replicas)), seed: o.Seed, limit: uint64(o.Limit),
		text: &room[0], room: uint64(len(room)), pool: &stacks,
	}
	if o.Tear {
		a.tear = 1
	}
	if l.launch(a) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", causes[a.cause], text(a.text))
}

func extent(d cuda.Dim) [3]uint32 { return [3]uint32{d.X, d.Y, d.Z} }

// foreign is a C address as a pointer.
func foreign(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

// text is a C string.
func text(p *byte) string {
	var b strings.Builder
	for ; *p != 0; p = (*byte)(unsafe.Add(unsafe.Pointer(p), 1)) {
		b.WriteByte(*p)
	}
	return b.String()
}
