package weft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/internal/shm"
)

// reachDevice lets ranks of other hosts reach a window of a GPU: where the fabric takes the memory of all ranks, that
// itself, else a copy in pinned memory of the host.
func (c *Comm) reachDevice(ctx context.Context, op string, w *Window) error {
	d, err := c.openFabric(ctx)
	why := ""
	if err == nil && w.size > 0 {
		if w.region, err = c.registerDevice(d, w); err != nil {
			why, err = err.Error(), nil
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", op, err)
	}
	reasons, err := c.verifyWith(ctx, op, "memory of GPUs", []byte(why[:min(len(why), noteSize/2)]), err)
	if err != nil {
		return err
	}
	for r, reason := range reasons {
		if len(reason) == 0 || w.staging != nil {
			continue
		}
		c.reach.staged.Do(func() {
			c.logger.Warn("windows of GPUs are staged through pinned memory of the host", "op", op, "because_of_rank", r,
				"reason", string(reason))
		})
		if err = c.stageWindow(w); err != nil {
			err = prefixed(op, err)
			break
		}
	}
	if err := c.verifySame(ctx, op, "staging", err); err != nil {
		return err
	}
	return c.connect(ctx, op, w)
}

// registerDevice registers a GPU's segment with the fabric: as a dma-buf where driver and provider have such, else by
// its address.
func (c *Comm) registerDevice(d *fabric.Domain, w *Window) (*fabric.Region, error) {
	caps, gpu := d.Capabilities(), c.device.context.Device()
	switch {
	case !caps.Devices:
		return nil, fmt.Errorf("provider %s reaches no memory of GPUs", caps.Provider)
	case !gpu.Has(cuda.GPUDirectRDMA):
		return nil, fmt.Errorf("GPU %s lets no network adapter reach its memory", c.device.info.bus)
	}
	m := fabric.DeviceMemory{Address: w.base, Bytes: w.size, GPU: gpu.Ordinal()}
	var exported error
	if caps.DMABufs && gpu.Has(cuda.DMABuf) {
		m.DMABuf, m.Offset, exported = c.device.context.ExportDMABuf(w.Pointer(), w.size)
		if exported == nil {
			r, err := d.RegisterDevice(m, uint32(c.control.Generation()))
			err = errors.Join(err, m.DMABuf.Close())
			if err == nil {
				return r, nil
			}
			if r != nil {
				return nil, errors.Join(err, r.Close())
			}
			exported = err
		}
		m.DMABuf, m.Offset = nil, 0
	}
	r, err := d.RegisterDevice(m, uint32(c.control.Generation()))
	if err != nil {
		return nil, errors.Join(err, exported)
	}
	return r, nil
}

// stageWindow gives a window its copy in memory of the host: in a memory file, of which the fabric has an alias, or
// where the driver pins no such, in memory of the driver's.
func (c *Comm) stageWindow(w *Window) error {
	if w.region != nil {
		err := w.region.Close()
		w.region = nil
		if err != nil {
			return err
		}
	}
	if w.size == 0 {
		return nil
	}
	if file, err := shm.Create("weft-staging", w.size, shm.Options{Populate: w.size <= populateLimit}); err == nil {
		if m, err := c.device.context.RegisterHost(file.Bytes()[:w.size:w.size], cuda.HostOptions{}); err == nil {
			w.staging, w.stagingFile = m, file
			w.held = append([]io.Closer{m, releases{file}}, w.held...)
			return nil
		}
		if err := file.Release(); err != nil {
			return err
		}
	}
	m, err := c.device.context.AllocHost(w.size, cuda.HostOptions{})
	if err != nil {
		return err
	}
	clear(m.Bytes())
	w.staging = m
	return nil
}

// releases closes a region by giving its reference back.
type releases struct{ *shm.Region }

func (r releases) Close() error { return r.Release() }

// Staging is the copy of this rank's segment, in pinned memory of the host, that ranks of other hosts reach where
// their network reaches no memory of GPUs. It is nil where it does, on all ranks, and on the host. What other hosts
// write lands here, and what this rank writes to them is read here: [Window.Stage] and [Window.Land] move it.
func (w *Window) Staging() []byte {
	if w.staging == nil {
		return nil
	}
	return w.staging.Bytes()
}

// Stage makes n bytes at an offset of this rank's segment ready to be written to other hosts, once the work that the
// stream has now has ended: a copy to [Window.Staging], or nothing where the network reads the GPU's memory. The copy
// is enqueued; without a stream Stage waits for it.
//
// A range of the Staging goes one way at a time: what other hosts write there and has not landed is lost.
func (w *Window) Stage(ctx context.Context, s *Stream, offset, n int) error {
	const op = "stage window"
	if err := w.checkRange(op, offset, n); err != nil || w.staging == nil {
		return err
	}
	stream := cmp.Or(s.CUDA(), w.comm.device.stream)
	if err := stream.Download(w.staging.Bytes()[offset:offset+n], w.Pointer().Add(offset)); err != nil {
		return deviceError(op, err)
	}
	return w.awaitMove(ctx, s)
}

// Land lets work that is enqueued in the stream afterwards see n bytes at an offset of this rank's segment that other
// hosts have written: those of which a signal has come. It enqueues a copy from [Window.Staging]; where the network
// writes the GPU's memory it flushes those writes. Without a stream it waits for the copy.
func (w *Window) Land(ctx context.Context, s *Stream, offset, n int) error {
	const op = "land window"
	if err := w.checkRange(op, offset, n); err != nil || w.pointers == nil || !w.comm.spans() {
		return err
	}
	if w.staging == nil {
		return deviceError(op, w.comm.device.context.FlushRDMA())
	}
	stream := cmp.Or(s.CUDA(), w.comm.device.stream)
	if err := stream.Upload(w.Pointer().Add(offset), w.staging.Bytes()[offset:offset+n]); err != nil {
		return deviceError(op, err)
	}
	return w.awaitMove(ctx, s)
}

func (w *Window) checkRange(op string, offset, n int) error {
	if offset < 0 || n < 0 || offset > w.size || n > w.size-offset {
		return Invalidf("%s: %d bytes at %d of %d", op, n, offset, w.size)
	}
	return nil
}

func (w *Window) awaitMove(ctx context.Context, s *Stream) error {
	if s.CUDA() != nil {
		return nil
	}
	return w.comm.Wait(ctx, nil)
}
