package cudatest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/internal/sys"
)

// Config describes the machine.
type Config struct {
	// Devices is how many there are; 0 means 1.
	Devices int
	// Names of devices, in turn; without any they have the same.
	Names []string
	// Version of the driver; 0 means 13.0.
	Version cuda.Version
	// Attributes replace a device's attributes, for every device.
	Attributes map[cuda.Attribute]int
	// Memory of each device in bytes; 0 means 1 GiB.
	Memory uint64
	// Registers are how many each thread of every kernel has; 0 means 32.
	Registers int
	// NoPeers: no device reaches another's memory.
	NoPeers bool
	// Pageable allows async copies from and to host memory that is not pinned.
	Pageable bool
	// Unified: devices reach all memory of the process's that is no allocation of the driver's, as
	// if it were their own.
	Unified bool
}

// Machine is a machine with GPUs. It is safe for concurrent use.
type Machine struct {
	config Config

	mu      sync.Mutex
	idle    sync.Cond        // an operation has ended
	next    uintptr          // the next handle
	current map[int]*primary // by thread
	modes   map[int]int32    // of capture, by thread
	devices []*primary       // by ordinal
	regions []*region        // by address
	ranges  map[uintptr]int  // reserved addresses, and their sizes
	shares  map[sys.Allocation]*file
	refs    map[sys.Allocation]int
	streams map[sys.Stream]*stream
	events  map[sys.Event]*event
	modules map[sys.Module]*module
	kernels map[string]*kernel
	globals map[string]int
	loader  func(code []byte) (map[string]Code, error)
	loaded  map[sys.Function]*function
	graphs  map[sys.Graph]*graph
	execs   map[sys.GraphExec]*graph
	legacy  map[*primary]*stream
	running map[*capture]bool
	calls   map[string]int
	faults  []*fault
	misuses []error

	multicasts map[sys.Allocation]*multicast // those of the shares that are groups
}

// A primary is a device's primary context.
type primary struct {
	device int
	handle sys.Context
	refs   int
	lost   sys.Result // the sticky error
	peers  map[*primary]bool
	used   uint64
	busy   int // operations that run
}

// A fault is an injected failure.
type fault struct {
	call string
	skip int
	code cuda.Code
}

// New makes a machine.
func New(c Config) *Machine {
	c.Devices = cmp.Or(c.Devices, 1)
	c.Version = cmp.Or(c.Version, 13000)
	c.Memory = cmp.Or(c.Memory, 1<<30)
	m := &Machine{
		config: c, next: 0x1000,
		current: map[int]*primary{}, modes: map[int]int32{}, ranges: map[uintptr]int{},
		shares: map[sys.Allocation]*file{}, refs: map[sys.Allocation]int{},
		multicasts: map[sys.Allocation]*multicast{},
		streams:    map[sys.Stream]*stream{}, legacy: map[*primary]*stream{}, events: map[sys.Event]*event{},
		modules: map[sys.Module]*module{}, kernels: map[string]*kernel{}, globals: map[string]int{},
		loaded: map[sys.Function]*function{},
		graphs: map[sys.Graph]*graph{}, execs: map[sys.GraphExec]*graph{}, running: map[*capture]bool{},
		calls: map[string]int{},
	}
	m.idle.L = &m.mu
	for i := range c.Devices {
		m.devices = append(m.devices, &primary{device: i, handle: sys.Context(m.handle()), peers: map[*primary]bool{}})
	}
	return m
}

// Open is the machine's driver.
func (m *Machine) Open() (*cuda.Driver, error) {
	if !supported {
		return nil, fmt.Errorf("%w: cudatest needs Linux's memory files", cuda.ErrUnsupported)
	}
	return cuda.New(m.table())
}

// Fail makes a call of the driver ("cuMemAlloc") fail with a code, once, after it was let through
// as many times as skip says.
func (m *Machine) Fail(call string, skip int, code cuda.Code) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = append(m.faults, &fault{call, skip, code})
}

// Calls is how often a call of the driver was made, failures included.
func (m *Machine) Calls(call string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[call]
}

// Current is the device whose context is the calling thread's, or -1. It means something on a
// goroutine that is locked to its thread.
func (m *Machine) Current() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.current[thread()]; p != nil {
		return p.device
	}
	return -1
}

// Check lists the mistakes so far, and the objects that were not closed. It is for the end of a
// test.
func (m *Machine) Check() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	errs := slices.Clone(m.misuses)
	leak := func(what string, n int) {
		if n > 0 {
			errs = append(errs, fmt.Errorf("left behind: %d %s", n, what))
		}
	}
	for _, p := range m.devices {
		leak(fmt.Sprintf("references to the context of device %d", p.device), p.refs)
	}
	kinds := map[kind]int{}
	for _, r := range m.regions {
		kinds[r.kind]++
	}
	for k, n := range kinds {
		leak(k.String(), n)
	}
	leak("address ranges", len(m.ranges))
	references := 0
	for _, n := range m.refs {
		references += n
	}
	leak("references to allocations", references)
	leak("streams", len(m.streams))
	leak("events", len(m.events))
	leak("modules", len(m.modules))
	leak("graphs", len(m.graphs))
	leak("executable graphs", len(m.execs))
	leak("captures", len(m.running))
	for _, f := range m.faults {
		errs = append(errs, fmt.Errorf("%s was to fail with %w and was not called often enough", f.call, f.code))
	}
	return errors.Join(errs...)
}

// misuse notes a mistake of the program's and gives the driver's answer to it.
func (m *Machine) misuse(code cuda.Code, format string, args ...any) sys.Result {
	m.misuses = append(m.misuses, fmt.Errorf(format, args...))
	return sys.Result(code)
}

func (m *Machine) handle() uintptr {
	m.next += 0x10
	return m.next
}

// enter begins every call: it counts it, and fails it if that was asked for.
func (m *Machine) enter(call string) sys.Result {
	m.calls[call]++
	for i, f := range m.faults {
		if f.call != call {
			continue
		}
		if f.skip > 0 {
			f.skip--
			continue
		}
		m.faults = slices.Delete(m.faults, i, i+1)
		return sys.Result(f.code)
	}
	return sys.Success
}

// in begins a call that runs in a context: it becomes the thread's, and must be alive and well.
func (m *Machine) in(call string, handle sys.Context) (*primary, sys.Result) {
	p := m.current[thread()]
	if handle != 0 {
		p = m.context(handle)
		if p == nil || p.refs == 0 {
			return nil, m.misuse(cuda.ErrInvalidContext, "%s in context %#x, which is not held", call, uintptr(handle))
		}
		m.current[thread()] = p // which may be another thread by now: Go moves goroutines
	}
	if p == nil {
		return nil, m.misuse(cuda.ErrInvalidContext, "%s without a context", call)
	}
	if r := m.enter(call); r != sys.Success {
		return nil, r
	}
	return p, p.lost
}

func (m *Machine) context(handle sys.Context) *primary {
	i := slices.IndexFunc(m.devices, func(p *primary) bool { return p.handle == handle })
	if i < 0 {
		return nil
	}
	return m.devices[i]
}

// own checks that an object is used in its own context.
func (m *Machine) own(call, what string, object, p *primary) sys.Result {
	if object != p {
		return m.misuse(cuda.ErrInvalidContext, "%s in device %d's context: the %s is device %d's", call,
			p.device, what, object.device)
	}
	return sys.Success
}
