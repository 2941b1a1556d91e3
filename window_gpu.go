package weft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"

	"github.com/weftgo/weft/cuda"
)

// segment is a rank's memory of a window on a GPU, as peers map it: an allocation, and the offset at
// which the window begins.
type segment struct {
	kind    segmentKind
	base    cuda.Pointer // of the allocation, in its owner's address space
	extent  int          // of the allocation
	offset  int
	ipc     cuda.IPCHandle // of plain memory that other processes map
	file    *os.File       // of virtual memory that other processes map
	release io.Closer      // frees own memory; nil if it is the caller's

	allocation *cuda.Allocation // of own virtual memory that the window allocated
}

type segmentKind uint8

const (
	virtualSegment    segmentKind = iota + 1 // mapped allocations: descriptors between processes
	plainSegment                             // of cuMemAlloc: cudaIpc between processes, peer access within one
	registeredSegment                        // plain memory that a caller owns
)

func (p *segment) pointer() cuda.Pointer { return p.base.Add(p.offset) }

// discard closes the segment's file and frees its memory.
func (p *segment) discard() error {
	errs := []error{p.closeFile()}
	if p.release != nil {
		errs = append(errs, p.release.Close())
		p.release = nil
	}
	return errors.Join(errs...)
}

// closeFile closes the descriptor, which is not needed once all ranks have mapped the memory.
func (p *segment) closeFile() error {
	if p.file == nil {
		return nil
	}
	f := p.file
	p.file = nil
	return f.Close()
}

const segmentSize = 1 + 3*8 + len(cuda.IPCHandle{})

func (p *segment) encode() []byte {
	b := append(make([]byte, 0, segmentSize), byte(p.kind))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.base))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.extent))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.offset))
	return append(b, p.ipc[:]...)
}

// parseSegment decodes a peer's segment of a window of size bytes.
func parseSegment(b []byte, size int) (p segment, err error) {
	if len(b) != segmentSize {
		return p, fmt.Errorf("%w: %d bytes about its segment", ErrMismatch, len(b))
	}
	p.kind, p.base = segmentKind(b[0]), cuda.Pointer(binary.LittleEndian.Uint64(b[1:]))
	extent, offset := binary.LittleEndian.Uint64(b[9:]), binary.LittleEndian.Uint64(b[17:])
	if p.kind < virtualSegment || p.kind > registeredSegment || p.base == 0 || extent == 0 || extent > math.MaxInt ||
		offset > extent ||
		uint64(size) > extent-offset {
		return p, fmt.Errorf("%w: a segment of kind %d, at %d of %d bytes", ErrMismatch, p.kind, offset, extent)
	}
	p.extent, p.offset = int(extent), int(offset)
	copy(p.ipc[:], b[25:])
	return p, nil
}

// allocDevice makes a window of new device memory, with multicast addresses if they are wanted. Other hosts reach it if
// it is to be far.
func (c *Comm) allocDevice(ctx context.Context, op string, size int, multicast, far bool) (*Window, error) {
	own := &segment{}
	var err error
	extent := max(size, 1)
	if size < 0 {
		err = Invalidf("%s: %d bytes", op, size)
	} else if multicast {
		extent, err = c.multicastSize(extent)
	}
	if err == nil {
		err = c.allocSegment(ctx, own, extent)
	}
	if err == nil {
		err = c.device.exportSegment(own, c.inProcess != c.local)
	}
	w, err := c.deviceWindow(ctx, op, size, own, far, err)
	if err != nil || !multicast {
		return w, err
	}
	if err := c.joinMulticast(ctx, op, w, own); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// allocSegment allocates zeroed memory of the kind that all ranks have.
func (c *Comm) allocSegment(ctx context.Context, p *segment, size int) error {
	d := c.device
	if d.virtual {
		v, err := d.context.AllocVirtual(size, cuda.AllocationOptions{
			Share: d.share, RDMA: c.spans() && d.context.Device().Has(cuda.GPUDirectRDMAVirtual),
		})
		if err != nil {
			return err
		}
		p.kind, p.base, p.extent, p.release = virtualSegment, v.Pointer(), v.Size(), v
		p.allocation = v.Allocations()[0]
	} else {
		m, err := newPlain(d.context, size)
		if err != nil {
			return err
		}
		p.kind, p.base, p.extent, p.release = plainSegment, m.memory.Pointer(), size, closer(m.release)
	}
	if err := d.stream.Memset(p.base, 0, p.extent); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.control.Waiter.Timeout, ErrTimeout)
	defer cancel()
	return d.stream.Wait(ctx)
}

// exportSegment makes the descriptor or handle with which other processes map the segment.
func (d *Device) exportSegment(p *segment, otherProcesses bool) (err error) {
	if !otherProcesses {
		return nil
	}
	if p.kind != virtualSegment {
		p.ipc, err = d.context.IPCHandle(p.base)
		return err
	}
	a, err := d.context.RetainAllocation(p.base, p.extent)
	if err != nil {
		return err
	}
	p.file, err = a.ExportFD()
	return errors.Join(err, a.Close())
}

// RegisterDevice makes a window of size bytes of the caller's device memory: a plain allocation, or
// virtual memory within one allocation, on this rank's GPU. The size is the same on every rank; the
// kind of memory may differ. The memory stays the caller's and must outlive the window on every
// rank, and between hosts after a failure the communicator: see [Window.Close]. Every rank refuses
// other memory, with an error that wraps [ErrUnsupported] or [ErrInvalid] and names the kind of memory.
func (c *Comm) RegisterDevice(ctx context.Context, p cuda.Pointer, size int) (*Window, error) {
	const op = "register device memory"
	if err := c.gate.Enter(op); err != nil {
		return nil, err
	}
	defer c.gate.Leave()
	if err := c.begin(op); err != nil {
		return nil, err
	}
	if c.device == nil {
		return nil, Unsupportedf("%s: the rank is on the host; join on a GPU", op)
	}
	own, err := c.device.inspectSegment(op, p, size, c.inProcess != c.local)
	if err == nil {
		err = c.device.exportSegment(own, c.inProcess != c.local)
	}
	return c.deviceWindow(ctx, op, size, own, true, err)
}

// inspectSegment asks the driver what memory p points to.
func (d *Device) inspectSegment(op string, p cuda.Pointer, size int, otherProcesses bool) (*segment, error) {
	own := &segment{}
	if size <= 0 || p == 0 {
		return own, Invalidf("%s: %d bytes at %v", op, size, p)
	}
	info, err := d.context.Inspect(p)
	if err != nil {
		return own, err
	}
	if err := d.refuseSegment(op, p, size, info, otherProcesses); err != nil {
		return own, err
	}
	own.kind, own.base, own.extent, own.offset = registeredSegment, info.Base, info.Size, int(p-info.Base)
	if info.Virtual {
		own.kind = virtualSegment
	}
	return own, nil
}

// refuseSegment refuses memory that cannot be a segment of a window.
func (d *Device) refuseSegment(op string, p cuda.Pointer, size int, info cuda.PointerInfo, otherProcesses bool) error {
	way := "allocate it with cuMemAlloc, cudaMalloc or cuMemCreate, or make a window with memory of its own"
	switch {
	case info.Kind == cuda.Unregistered:
		return Unsupportedf("%s: %v is host memory that CUDA does not know; %s", op, p, way)
	case info.Managed:
		return Unsupportedf("%s: %v is managed memory, which moves; %s", op, p, way)
	case info.Kind == cuda.Host:
		return Unsupportedf("%s: %v is pinned host memory; %s", op, p, way)
	case info.Device != d.context.Device():
		return Invalidf("%s: %v is memory of another GPU, this rank's is %s", op, p, d.info.bus)
	case uint64(p-info.Base)+uint64(size) > uint64(info.Size):
		return Unsupportedf("%s: %d bytes at %v run over the end of their allocation (%d bytes at %v); "+
			"memory of several allocations (PyTorch's expandable_segments) cannot be a window; %s",
			op, size, p, info.Size, info.Base, way)
	case info.Virtual && otherProcesses && info.Share&cuda.ShareFD == 0:
		return Unsupportedf("%s: %v is virtual memory that was not made to be shared by descriptors; %s", op, p, way)
	case !info.Virtual && !info.IPC:
		return Unsupportedf("%s: %v is memory that cudaIpc cannot share, of a stream-ordered pool or mapped "+
			"from another process; %s", op, p, way)
	}
	return nil
}

// deviceWindow makes a window of this rank's segment, or passes err to the other ranks. Invariant:
// no rank returns before all ranks have mapped all segments. A segment and its descriptor therefore
// stay valid while peers map it.
func (c *Comm) deviceWindow(ctx context.Context, op string, size int, own *segment, far bool, err error,
) (*Window, error) {
	if err != nil {
		err = errors.Join(prefixed(op, err), own.discard())
	}
	data, err := c.verifyWith(ctx, op, fmt.Sprintf("bytes: %d", size), own.encode(), err)
	if err != nil {
		return nil, errors.Join(err, own.discard())
	}
	w := &Window{
		comm: c, size: size, base: uintptr(own.pointer()), peers: make([][]byte, c.size),
		pointers: make([]cuda.Pointer, c.size),
	}
	w.id = c.windows.next(c.control.Generation())
	err = errors.Join(c.mapSegments(ctx, op, w, own, data), own.closeFile())
	w.own = closer(own.discard) // freed last: mappings within the process refer to it
	if err != nil && c.begin(op) != nil {
		return nil, errors.Join(err, w.release())
	}
	if err := c.verifySame(ctx, op, "mapped", err); err != nil {
		return nil, errors.Join(err, w.release())
	}
	if far && c.spans() {
		if err := c.reachDevice(ctx, op, w); err != nil {
			return nil, errors.Join(err, w.release())
		}
	}
	if err := c.windows.add(op, w); err != nil {
		return nil, errors.Join(err, w.release())
	}
	return w, nil
}

// prefixed puts the operation's name before an error that lacks it.
func prefixed(op string, err error) error {
	if errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnsupported) {
		return err
	}
	return deviceError(op, err)
}

// mapSegments maps every segment of this host's unmasked ranks for this rank's GPU.
func (c *Comm) mapSegments(ctx context.Context, op string, w *Window, own *segment, data [][]byte) error {
	segments := make([]segment, c.size)
	descriptors := false
	for r, b := range data {
		if b == nil {
			continue
		}
		var err error
		if segments[r], err = parseSegment(b, w.size); err != nil {
			return &PeerError{Rank: r, Op: op, Err: err}
		}
		descriptors = descriptors || segments[r].kind == virtualSegment
	}
	files := make([]*os.File, c.size)
	if descriptors && c.inProcess != c.local {
		skipped := func(r int) bool { return c.Masked(r) || c.sameProcess[r] }
		if err := c.exchangeFiles(ctx, op, w.id, own.file, files, skipped); err != nil {
			return err
		}
		defer func() {
			for _, f := range files {
				if f != nil {
					_ = f.Close() // imported memory stays mapped
				}
			}
		}()
	}
	for r := range segments {
		p := &segments[r]
		var err error
		switch {
		case r == c.rank:
			w.pointers[r] = own.pointer()
		case data[r] == nil || c.hosts[r] != c.hosts[c.rank]:
		case p.kind == virtualSegment:
			err = c.mapVirtual(w, r, p, files[r])
		default:
			err = c.mapPlain(w, r, p)
		}
		if err != nil {
			there, here := c.device.peers[r].bus, c.device.info.bus
			return deviceError(fmt.Sprintf("%s: rank %d's segment on GPU %s, from rank %d on GPU %s", op, r, there,
				c.rank, here), err)
		}
	}
	return nil
}

// exchangeFiles exchanges descriptors, of segments say, with the ranks that are not skipped. A rank that
// has none sends one of the null device.
func (c *Comm) exchangeFiles(ctx context.Context, op string, id uint64, own *os.File, files []*os.File,
	skipped func(rank int) bool,
) error {
	if own == nil {
		nothing, err := os.Open(os.DevNull)
		if err != nil {
			return c.fail(ownLimit(op, c.rank, fmt.Errorf("%s: %w", op, err)))
		}
		defer nothing.Close()
		own = nothing
	}
	ctx, cancel := c.bounded(ctx, op)
	defer cancel()
	fds, err := c.mesh.ExchangeFD(ctx, id, int(own.Fd()), skipped)
	if err != nil {
		return c.meshError(op, err)
	}
	for r, fd := range fds {
		if r != c.rank && fd >= 0 {
			files[r] = os.NewFile(uintptr(fd), "CUDA allocation")
		}
	}
	return nil
}

// mapVirtual maps another rank's virtual memory for this rank's GPU.
func (c *Comm) mapVirtual(w *Window, r int, p *segment, file *os.File) error {
	var a *cuda.Allocation
	var err error
	switch {
	case c.sameProcess[r]:
		a, err = c.device.context.RetainAllocation(p.base, p.extent)
	case file == nil:
		err = fmt.Errorf("%w: it sent no descriptor", ErrMismatch)
	default:
		a, err = c.device.context.ImportFD(file, p.extent)
	}
	if err != nil {
		return err
	}
	v, err := c.device.context.Map([]*cuda.Allocation{a})
	if err != nil {
		return errors.Join(err, a.Close())
	}
	w.held = append(w.held, v)
	w.pointers[r] = v.Pointer().Add(p.offset)
	return nil
}

// mapPlain maps another rank's plain memory. Within a process the address is valid already.
func (c *Comm) mapPlain(w *Window, r int, p *segment) error {
	d := c.device
	if !c.sameProcess[r] {
		m, err := d.context.OpenIPC(p.ipc)
		if err != nil {
			return err
		}
		w.held = append(w.held, m)
		w.pointers[r] = m.Pointer().Add(p.offset)
		return nil
	}
	if p.kind == plainSegment {
		m, err := retain(p.base)
		if err != nil {
			return err
		}
		w.held = append(w.held, m)
	}
	w.pointers[r] = p.pointer()
	if d.devices[r] == d.context.Device() {
		return nil
	}
	if d.devices[r] == nil {
		return fmt.Errorf("%w: the driver does not know the GPU of this process's rank %d", ErrUnsupported, r)
	}
	peer, err := d.devices[r].Primary()
	if err != nil {
		return err
	}
	w.held = append(w.held, peer)
	return d.context.EnablePeer(peer)
}

// plain counts the users of plain allocations of this process, by address. Ranks that are goroutines
// share one pointer; the last user frees the memory.
var plain struct {
	sync.Mutex
	users map[cuda.Pointer]*plainMemory
}

type plainMemory struct {
	context *cuda.Context // a reference of its own: the owner may release its context before the last user
	memory  *cuda.Memory
	count   int
}

// newPlain allocates memory with its owner as the only user.
func newPlain(c *cuda.Context, size int) (*plainMemory, error) {
	c, err := c.Device().Primary()
	if err != nil {
		return nil, err
	}
	m, err := c.Alloc(size)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	plain.Lock()
	defer plain.Unlock()
	if plain.users == nil {
		plain.users = map[cuda.Pointer]*plainMemory{}
	}
	p := &plainMemory{context: c, memory: m, count: 1}
	plain.users[m.Pointer()] = p
	return p, nil
}

// retain counts one more user.
func retain(at cuda.Pointer) (io.Closer, error) {
	plain.Lock()
	defer plain.Unlock()
	p := plain.users[at]
	if p == nil {
		return nil, fmt.Errorf("%w: its owner has freed it", ErrAborted)
	}
	p.count++
	return closer(p.release), nil
}

func (p *plainMemory) release() error {
	plain.Lock()
	defer plain.Unlock()
	if p.count--; p.count > 0 {
		return nil
	}
	delete(plain.users, p.memory.Pointer())
	return errors.Join(p.memory.Close(), p.context.Close())
}

// closer makes an [io.Closer] of a function that is called once.
type closer func() error

// Close implements [io.Closer].
func (c closer) Close() error { return c() }
