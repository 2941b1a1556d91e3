package weft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/shm"
)

// Device is the GPU that a rank is bound to, with the rank's stream and memory there. It lives as
// long as its [Comm].
type Device struct {
	context *cuda.Context
	owned   bool
	closed  bool
	info    gpuInfo // this rank's
	sms     int
	virtual bool             // windows are virtual memory, on every rank
	share   cuda.HandleType  // how its allocations are shared
	stream  *cuda.Stream     // the Comm's own
	memory  *cuda.HostMemory // the record
	record  *device.Record   // the same, as the host sees it
	claim   *cuda.Memory     // a word: whether the record has been written
	abort   *abortWord
	devices []*cuda.Device // by rank, of this process's driver; nil for a GPU that it does not see
	peers   []gpuInfo      // by rank
	kernels *kernel.Cache
	lanes   lanes
	gaveUp  generations // in which a wait on this device ended before its peer came, of those that are over

	multicast bool // windows have multicast addresses, on every rank
}

// lanes are the words of a Device's lanes, by number from 1 on.
type lanes struct {
	sync.Mutex
	words []*device.Words
}

// lane is the number of the lane with these words.
func (d *Device) lane(w *device.Words) uint32 {
	if w == nil {
		return 0
	}
	d.lanes.Lock()
	defer d.lanes.Unlock()
	i := slices.Index(d.lanes.words, w)
	if i < 0 {
		i = len(d.lanes.words)
		d.lanes.words = append(d.lanes.words, w)
	}
	return uint32(i + 1)
}

// words are those of a lane's number, or nil.
func (d *Device) words(lane uint32) *device.Words {
	d.lanes.Lock()
	defer d.lanes.Unlock()
	if lane == 0 || int(lane) > len(d.lanes.words) {
		return nil
	}
	return d.lanes.words[lane-1]
}

// Context is the CUDA context that the rank uses. It is borrowed.
func (d *Device) Context() *cuda.Context { return d.context }

// SMs is the number of SMs that every rank's GPU has at least: the same on all ranks.
func (d *Device) SMs() int { return d.sms }

// Arch is the architecture for which kernels are compiled, sm_90a for example. Ranks may differ.
func (d *Device) Arch() string { return d.info.arch }

// Virtual reports whether windows are virtual memory: the memory of a window then lives until every
// rank has closed it. They are unless a rank's GPU has no virtual memory.
func (d *Device) Virtual() bool { return d.virtual }

// Kernels is the cache that finds or compiles the kernels of this rank's GPU.
func (d *Device) Kernels() *kernel.Cache { return d.kernels }

// kernels is the cache of communicators that were given none.
var kernels = sync.OnceValue(func() *kernel.Cache { return kernel.New(kernel.Options{}) })

// Stream is the Comm's own stream: for calls without a stream, and for operations beside a stream of
// the caller's (see Streams in package ep). It has the greatest priority of the GPU, because peers
// that wait for a kernel occupy SMs until it is scheduled.
func (d *Device) Stream() *cuda.Stream { return d.stream }

// Device is the GPU that this rank is bound to, or nil if its memory is the host's.
func (c *Comm) Device() *Device { return c.device }

// openDevice opens the GPU that the options name. It returns nil if they name none.
func openDevice(cfg config) (*Device, error) {
	d := &Device{context: cfg.context, kernels: cfg.kernels}
	switch {
	case !cfg.onDevice && !cfg.onGPU:
		return nil, nil
	case cfg.onDevice && cfg.onGPU:
		return nil, Invalidf("join: a device and a GPU's number; give one of them")
	case cfg.onDevice && cfg.context == nil:
		return nil, Invalidf("join: a device without a context")
	case cfg.onGPU:
		driver, err := cfg.driver()
		if err != nil {
			return nil, deviceError("join", err)
		}
		gpu, err := driver.Device(cfg.ordinal)
		if err != nil {
			return nil, deviceError("join", err)
		}
		if d.context, err = gpu.Primary(); err != nil {
			return nil, deviceError("join", err)
		}
		d.owned = true
	}
	if d.kernels == nil {
		d.kernels = kernels().WithLogger(cfg.logger)
	}
	var err error
	if d.info, err = gpuInfoOf(d.context.Device()); err != nil {
		return nil, errors.Join(deviceError("join", err), d.close())
	}
	return d, nil
}

// deviceError turns an error of the driver into this package's.
func deviceError(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cuda.ErrUnsupported), errors.Is(err, cuda.ErrNoDevice), errors.Is(err, cuda.ErrPeerUnsupported):
		// The driver's error may begin as this one does.
		text := fmt.Sprintf("%v: %s: %s", ErrUnsupported, op, trimCause(err, cuda.ErrUnsupported))
		return retold{text, []error{ErrUnsupported, err}}
	case errors.Is(err, cuda.ErrInvalidDevice):
		return fmt.Errorf("%w: %s: %w", ErrInvalid, op, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// bind makes the rank's stream, record and abort word on its GPU. region is its control page.
func (d *Device) bind(ctx context.Context, region *shm.Region) error {
	_, priority, err := d.context.PriorityRange()
	if err != nil {
		return deviceError("join", err)
	}
	if d.stream, err = d.context.NewStream(cuda.StreamOptions{Priority: priority}); err != nil {
		return deviceError("join", err)
	}
	if d.memory, err = d.context.AllocHost(device.RecordBytes, cuda.HostOptions{}); err != nil {
		return deviceError("join", err)
	}
	clear(d.memory.Bytes())
	d.record = (*device.Record)(unsafe.Pointer(&d.memory.Bytes()[0]))
	if d.claim, err = d.context.Alloc(4); err != nil {
		return deviceError("join", err)
	}
	if d.abort, err = newAbortWord(d.context, region.Bytes()); err != nil {
		return deviceError("join", err)
	}
	return deviceError("join", d.forget(ctx))
}

// forget clears the record of a wait that has timed out. No work of the rank may run.
func (d *Device) forget(ctx context.Context) error {
	atomic.StoreUint32(&d.record.State, device.RecordEmpty)
	return errors.Join(d.stream.Memset(d.claim.Pointer(), 0, 4), d.stream.Wait(ctx))
}

func (d *Device) quiesce(ctx context.Context, op string) error {
	if d.closed && d.owned {
		return nil // close has released the context, after it was idle
	}
	// The driver has no bounded form of this wait, and graphs run on streams that are unknown here.
	// If the work never ends, the goroutine never ends either.
	done := make(chan error, 1)
	go func() { done <- d.context.Synchronize() }()
	select {
	case err := <-done:
		return deviceError(op, err)
	case <-ctx.Done():
		return fmt.Errorf("%s: work of this process on GPU %s has not ended: %w", op, d.info.bus, context.Cause(ctx))
	}
}

// close releases what bind and openDevice have made, also if they failed half-way.
func (d *Device) close() error {
	if d == nil || d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	if d.abort != nil {
		errs = append(errs, d.abort.close())
	}
	if d.memory != nil {
		errs = append(errs, d.memory.Close())
	}
	if d.claim != nil {
		errs = append(errs, d.claim.Close())
	}
	if d.stream != nil {
		errs = append(errs, d.stream.Close())
	}
	if d.owned {
		errs = append(errs, d.context.Close())
	}
	return errors.Join(errs...)
}
