package weft

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/weftgo/weft/cuda"
)

// multicastVariable is 1, on all ranks, where windows are to have multicast addresses.
const multicastVariable = "WEFT_MULTICAST"

// multicastAsked reads it.
func multicastAsked() (bool, error) {
	switch v := os.Getenv(multicastVariable); v {
	case "", "0":
		return false, nil
	case "1":
		return true, nil
	default:
		return false, Invalidf("%s=%s: it is 1, 0 or empty", multicastVariable, v)
	}
}

// agreeMulticast says whether windows have multicast addresses: on all ranks, or on none. Nothing of a GPU's
// multicast is touched before, and nothing ever unless all ranks ask for it.
func (d *Device) agreeMulticast() error {
	var asked, not []int
	for r, p := range d.peers {
		if p.multicast == multicastUnasked {
			not = append(not, r)
		} else {
			asked = append(asked, r)
		}
	}
	switch {
	case len(asked) == 0:
		return nil
	case len(not) > 0:
		return fmt.Errorf("%w: join: %s is 1 on ranks %v and not on ranks %v; set it on all ranks, or on none",
			ErrMismatch, multicastVariable, asked, not)
	case len(d.peers) == 1: // there is nobody to reach
		return nil
	}
	const way = "; join without " + multicastVariable
	for r, p := range d.peers {
		first := slices.IndexFunc(d.peers, func(o gpuInfo) bool { return o.uuid == p.uuid })
		switch {
		case p.multicast == multicastMissing:
			return Unsupportedf("join: rank %d's GPU %s has no multicast%s", r, p.bus, way)
		case first != r:
			return Unsupportedf("join: ranks %d and %d share GPU %s, and a multicast group has a GPU once; "+
				"give each rank a GPU%s", first, r, p.bus, way[1:])
		}
	}
	if !d.virtual {
		return Unsupportedf("join: a GPU has no virtual memory that ranks can share, and multicast is for no other%s", way)
	}
	d.multicast = true
	return nil
}

// Multicast reports whether windows have multicast addresses: WEFT_MULTICAST was 1 on all ranks.
func (d *Device) Multicast() bool { return d.multicast }

// multicasts says whether a window that is made now has multicast addresses. A group of GPUs is for good, so one
// made without those of masked ranks would be another kind of window.
func (c *Comm) multicasts() bool { return c.device.multicast && c.Mask().Len() == 0 }

// multicastSize is the size of a segment of so many bytes that a multicast group may have.
func (c *Comm) multicastSize(size int) (int, error) {
	unit, err := c.device.context.Device().Driver().MulticastGranularity(c.size, size, c.multicastOptions())
	if err != nil || unit <= 0 {
		return size, err
	}
	return (size + unit - 1) / unit * unit, nil
}

// multicastOptions: a group passes between ranks as a descriptor, even within a process.
func (c *Comm) multicastOptions() cuda.AllocationOptions {
	return cuda.AllocationOptions{Share: cuda.ShareFD}
}

// A multicastPart is a rank's part of a window's multicast group.
type multicastPart struct {
	group  *cuda.MulticastGroup
	bound  bool
	mapped *cuda.Virtual
}

// close takes the rank's memory out of the group, and the rank out of it.
func (p *multicastPart) close() error {
	var errs []error
	if p.bound {
		errs = append(errs, p.group.Unbind())
	}
	if p.mapped != nil {
		return errors.Join(append(errs, p.mapped.Close())...) // with the group
	}
	if p.group != nil {
		errs = append(errs, p.group.Close())
	}
	return errors.Join(errs...)
}

// joinMulticast gives a window its multicast addresses: rank 0 makes a group, all add their GPUs, and then bind
// their segments. Invariant: no rank binds before all have added their GPUs, and none returns before all have
// bound their memory, or one has failed and all give up.
func (c *Comm) joinMulticast(ctx context.Context, op string, w *Window, own *segment) error {
	const maker = 0
	p := &multicastPart{}
	w.held = append([]io.Closer{closer(p.close)}, w.held...) // before what it binds
	var file *os.File
	var err error
	if c.rank == maker {
		if p.group, err = c.device.context.NewMulticastGroup(c.size, own.extent, c.multicastOptions()); err == nil {
			file, err = p.group.ExportFD()
		}
		if file != nil {
			defer file.Close()
		}
	}
	said := func(err error) error {
		if err != nil {
			err = prefixed(op, fmt.Errorf("multicast: %w", err))
		}
		return err
	}
	if err := c.verifySame(ctx, op, fmt.Sprintf("multicast group of %d bytes", own.extent), said(err)); err != nil {
		return err
	}
	files := make([]*os.File, c.size)
	id := c.windows.next(c.control.Generation())
	skipped := func(r int) bool { return c.Masked(r) || r != maker && c.rank != maker }
	if err := c.exchangeFiles(ctx, op, id, file, files, skipped); err != nil {
		return err
	}
	switch {
	case c.rank == maker:
	case files[maker] == nil:
		err = fmt.Errorf("%w: rank %d sent no descriptor", ErrMismatch, maker)
	default:
		p.group, err = c.device.context.ImportMulticastFD(files[maker], own.extent)
	}
	for r, f := range files {
		if f != nil && r != c.rank {
			_ = f.Close()
		}
	}
	if err == nil {
		err = p.group.Add()
	}
	if err := c.verifySame(ctx, op, "added", said(err)); err != nil {
		return err
	}
	if err = p.group.Bind(own.allocation); err == nil {
		p.bound = true
		p.mapped, err = c.device.context.Map([]*cuda.Allocation{p.group.Allocation})
	}
	if err := c.verifySame(ctx, op, "bound", said(err)); err != nil {
		return err
	}
	w.multicast = p.mapped.Pointer().Add(own.offset)
	return nil
}

// Multicast is the address at which kernels of this rank's GPU reach the segments of all ranks at once: a store
// there goes to every segment, and a load adds up what they hold. It is for multimem instructions alone
// (multimem_store16 and so on, in package device's ptx.cuh), with 16 bytes at a time. 0: the window has none.
//
// Windows that [Comm.Alloc] makes on GPUs have one if WEFT_MULTICAST is 1 on all ranks, each rank has a GPU of
// its own, and no rank was masked. Stores reach ranks that were masked later as well, and sums have
// their memory: so nothing uses the address while a rank is masked. Nor does anything after Close of this
// window on any rank.
//
// This was never run on a GPU: it is compiled for Hopper and Blackwell, and tested on emulated GPUs.
func (w *Window) Multicast() cuda.Pointer { return w.multicast }
