package eptest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/ranktest"
)

// Device is the engine of ranks on GPUs.
type Device struct {
	*ranktest.Groups
	hosts []int // by rank; nil: all are of one

	mu      sync.Mutex
	streams map[*weft.Comm]*rankStream
	memory  map[*cuda.Memory]*weft.Comm // that no caller has freed yet
}

// rankStream is the stream of a rank, as CUDA and as Weft have it.
type rankStream struct {
	cuda *cuda.Stream
	weft *weft.Stream
}

// NewDevice makes an engine whose ranks are goroutines: rank i is on the GPU of contexts[i %
// len(contexts)], so several share one if there are more of them. Kernels that wait for each other
// then run side by side on one GPU, which takes a hardware queue each: start the program with
// CUDA_DEVICE_MAX_CONNECTIONS=32. The contexts stay the caller's and outlive the engine.
func NewDevice(contexts []*cuda.Context, options ...weft.Option) *Device {
	d := newDevice()
	d.Groups = ranktest.Goroutines(fmt.Sprintf("goroutines on %d GPUs", len(contexts)), func(rank int) []weft.Option {
		return append([]weft.Option{weft.WithDevice(contexts[rank%len(contexts)])}, options...)
	})
	return d
}

// NewDeviceHosts makes an engine whose ranks are goroutines that play at ranks of several hosts, a letter for each.
func NewDeviceHosts(names string, options func(rank int) []weft.Option) *Device {
	d := newDevice()
	d.Groups = ranktest.Goroutines("GPUs of hosts "+names, func(rank int) []weft.Option {
		return append(options(rank), weft.WithHostID(names[rank:][:1]))
	})
	d.hosts = hostsNamed(names)
	return d.OfSizes(len(names))
}

// Hosts are those of the ranks, by rank; nil where all are of one.
func (d *Device) Hosts() []int { return d.hosts }

// NewDeviceRank makes the engine of a process that is one rank of several. The communicator, which
// is bound to a GPU, stays the caller's.
func NewDeviceRank(c *weft.Comm) *Device {
	d := newDevice()
	d.Groups = ranktest.Process("processes on GPUs", c)
	return d
}

func newDevice() *Device {
	return &Device{streams: map[*weft.Comm]*rankStream{}, memory: map[*cuda.Memory]*weft.Comm{}}
}

// OfSizes makes the suite run with these numbers of ranks only, ascending.
func (d *Device) OfSizes(sizes ...int) *Device {
	d.Groups.OfSizes(sizes...)
	return d
}

// Kind implements [Engine].
func (d *Device) Kind() ep.Engine { return ep.GPUEngine }

// Recycles implements [Engine]: rank-major rows arrive in one of three buffers in turn.
func (d *Device) Recycles(l ep.Layout) bool { return l == ep.RankMajor }

// Ranks implements [Engine].
func (d *Device) Ranks(n int, body func(c *weft.Comm) error) error {
	err := d.Groups.Ranks(n, body)
	if err != nil && !d.Borrowed() {
		err = errors.Join(err, d.forget()) // the communicators are closed
	}
	return err
}

// Close closes the communicators and streams that the engine has made, and frees what failed bodies
// left.
func (d *Device) Close() error { return errors.Join(d.Groups.Close(), d.forget()) }

// forget closes the streams of communicators that are closed, or not the engine's, and frees their memory:
// a body that fails leaves what its rounds have.
func (d *Device) forget() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	over := func(c *weft.Comm) bool { return d.Borrowed() || errors.Is(c.Err(), weft.ErrClosed) }
	var errs []error
	for c, s := range d.streams {
		if over(c) {
			errs = append(errs, s.cuda.Close())
			delete(d.streams, c)
		}
	}
	for m, c := range d.memory {
		if over(c) {
			errs = append(errs, m.Close())
			delete(d.memory, m)
		}
	}
	return errors.Join(errs...)
}

// alloc takes memory of a rank's GPU until the caller gives it up, or the rank is over.
func (d *Device) alloc(c *weft.Comm, size int) (m *cuda.Memory, free func() error, err error) {
	if m, err = c.Device().Context().Alloc(size); err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memory[m] = c
	return m, func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.memory, m)
		return m.Close()
	}, nil
}

// Stream implements [Engine]: a rank has one stream of its own. It returns nil, the communicator's
// stream, if the driver has none to give.
func (d *Device) Stream(c *weft.Comm) *weft.Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.streams[c]
	if s == nil {
		stream, err := c.Device().Context().NewStream(cuda.StreamOptions{})
		if err != nil {
			return nil
		}
		s = &rankStream{cuda: stream, weft: weft.StreamOf(stream)}
		d.streams[c] = s
	}
	return s.weft
}

// Sync implements [Engine].
func (d *Device) Sync(c *weft.Comm) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return c.Wait(ctx, d.Stream(c))
}

// Alloc implements [Engine]. Memory may come and go only while no rank has work that waits for
// another's: the driver may stop the GPU for it, and with it the rank that the other waits for.
// So ranks meet before they go on with what they were given, and before they give it up.
func (d *Device) Alloc(c *weft.Comm, size int, window bool) (Memory, error) {
	const slack = 64 // of the host's engine, too
	var give func() error
	var at cuda.Pointer
	if window {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		w, err := c.Alloc(ctx, size+slack)
		if err != nil {
			return Memory{}, err
		}
		give, at = w.Close, w.Pointer()
	} else {
		m, free, err := d.alloc(c, size+slack)
		if err != nil {
			return Memory{}, err
		}
		give, at = free, m.Pointer()
	}
	free := func() error {
		if err := errors.Join(d.Sync(c), meet(c)); err != nil {
			return err // it stays: work that went wrong may still be at it
		}
		return errors.Join(give(), meet(c))
	}
	if err := meet(c); err != nil {
		return Memory{}, errors.Join(err, give())
	}
	return Memory{Data: weft.DeviceTensor(at, weft.Uint8, size).Data, Free: free}, nil
}

// meet waits for the other ranks.
func meet(c *weft.Comm) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return c.Operations().VerifySame(ctx, "meet", "", nil)
}

// Upload implements [Engine].
func (d *Device) Upload(c *weft.Comm, dst unsafe.Pointer, src []byte) error {
	return c.Device().Context().Upload(weft.Tensor{Data: dst}.Pointer(), src)
}

// Download implements [Engine].
func (d *Device) Download(c *weft.Comm, dst []byte, src unsafe.Pointer) error {
	return c.Device().Context().Download(dst, weft.Tensor{Data: src}.Pointer())
}
