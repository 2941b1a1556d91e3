package proxied

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/engine/gpu/proxy"
)

// errand is a call that was enqueued: what the proxy runs when the stream comes to it.
type errand struct {
	*Engine
	call spec.Call
	wide *cuda.HostMemory // of a call that is made whole
	most int              // of a call whose hosts have folded their inputs: bytes of the longest chunk; else 0

	hand *proxy.Hand // while it runs
}

// scratchBytes hold a scalar or counts that come from the GPU.
const scratchBytes = 4 * 8 * device.MaxRanks

// run makes the call. It may run again, in a replay.
func (x *errand) run(h *proxy.Hand) error {
	x.hand = h
	x.host.OnStep(h.Beat)
	defer x.host.OnStep(nil)
	c := &x.call
	if c.Collective.Rooted() && x.comm.Masked(c.Root) {
		return fmt.Errorf("%s: %w: root %d is %w", c.Name(), weft.ErrInvalid, c.Root, weft.ErrMasked)
	}
	switch c.Collective {
	case spec.PointToPoint:
		return x.exchange()
	case spec.AllToAllV:
		return x.allToAllV()
	}
	scalar, err := x.scalar()
	if err != nil {
		return err
	}
	d := *c
	d.Scalar, d.ScalarOnDevice = scalar, false
	if x.most > 0 {
		return x.across(&d)
	}
	return x.inPieces(&d, cut(&d, x.comm.Rank(), x.comm.Size(), x.area), x.perform)
}

// scratch copies from the GPU to the scratch behind the areas, and waits.
func (x *errand) scratch(from cuda.Pointer, at, n int) ([]byte, error) {
	at += areas * x.area
	m, err := x.hand.Copy(x.memory.Pointer().Add(at), from, n)
	if err == nil {
		err = x.hand.Await(m)
	}
	return x.memory.Bytes()[at : at+n], err
}

// scalar is that of a pre-multiplied sum, on the host.
func (x *errand) scalar() (weft.Tensor, error) {
	c := &x.call
	if !c.Collective.Reduces() || c.Op != weft.PreMulSum || !c.ScalarOnDevice {
		return c.Scalar, nil
	}
	raw, err := x.scratch(c.Scalar.Pointer(), 0, c.Scalar.DType.Size())
	if err != nil {
		return weft.Tensor{}, err
	}
	return weft.TensorAt(raw, c.Scalar.DType, 1), nil
}

// perform makes a call of the host engine.
func (x *errand) perform(c *spec.Call) error {
	err := x.host.Begin(c.Name())
	if err != nil {
		return err
	}
	if c.Collective == spec.PointToPoint {
		return x.host.Exchange(context.Background(), nil, c, nil)
	}
	_, err = x.host.Run(context.Background(), nil, c, nil)
	return err
}

// host memory as a tensor.
func tensor(mem []byte, d weft.DType, n int) weft.Tensor {
	return weft.Tensor{Data: unsafe.Pointer(unsafe.SliceData(mem)), DType: d, Shape: []int{n}}
}

// allToAllV makes an all-to-all-v whole. Parts that the output has between others stay as they are.
func (x *errand) allToAllV() error {
	c := x.call
	rank, size := x.comm.Rank(), x.comm.Size()
	if !c.DeviceCounts.Send.IsZero() {
		d := c.DeviceCounts
		for i, t := range [...]struct {
			from weft.Tensor
			to   *[]int
		}{{d.Send, &c.Counts.Send}, {d.SendAt, &c.Counts.SendAt}, {d.Recv, &c.Counts.Recv}, {d.RecvAt, &c.Counts.RecvAt}} {
			raw, err := x.scratch(t.from.Pointer(), i*8*size, 8*size)
			if err != nil {
				return err
			}
			*t.to = make([]int, size)
			for r := range size {
				(*t.to)[r] = int(binary.LittleEndian.Uint64(raw[8*r:]))
			}
		}
		c.DeviceCounts = spec.DeviceCounts{}
		if err := c.Check(rank, size); err != nil {
			return &weft.PeerError{Rank: rank, Op: c.Name(), Err: fmt.Errorf("%w: counts on its GPU: %w", weft.ErrMismatch, err)}
		}
	}
	d, z := c.DType, max(c.DType.Size(), 1)
	in, out := packing{memory: x.wide}, packing{memory: x.wide}
	for r := range size {
		from, n := c.InputPart(r)
		in.add(c.In.Pointer().Add(from), n)
	}
	out.at = up(in.at)
	begin := out.at
	for r := range size {
		from, n := c.OutputPart(r)
		if x.comm.Masked(r) {
			out.skip(n)
			continue
		}
		out.add(c.Out.Pointer().Add(from), n)
	}
	if err := in.order(x.hand, true); err != nil {
		return err
	}
	c.Counts.SendAt, c.Counts.RecvAt = nil, nil
	c.In, c.Out = tensor(x.wide.Bytes(), d, in.at/z), tensor(x.wide.Bytes()[begin:], d, (out.at-begin)/z)
	if err := errors.Join(c.Check(rank, size), x.perform(&c)); err != nil {
		return err
	}
	return out.order(x.hand, false)
}

// exchange makes messages, all at once.
func (x *errand) exchange() error {
	c := x.call
	in, out := packing{memory: x.wide}, packing{memory: x.wide}
	c.Transfers = make([]spec.Transfer, len(x.call.Transfers))
	at := 0
	for i, t := range x.call.Transfers {
		n, p := t.Tensor.Bytes(), &in
		if t.Receive {
			p = &out
		}
		p.at = at
		p.add(t.Tensor.Pointer(), n)
		t.Tensor = tensor(x.wide.Bytes()[at:], t.Tensor.DType, t.Tensor.Elems())
		c.Transfers[i] = t
		at = up(at + n)
	}
	if err := in.order(x.hand, true); err != nil {
		return err
	}
	if err := x.perform(&c); err != nil {
		return err
	}
	return out.order(x.hand, false)
}

// whole is how much pinned memory a call takes that is made whole; 0: it is not.
func (x *errand) whole() int {
	switch c := &x.call; c.Collective {
	case spec.AllToAllV:
		return up(c.In.Bytes()) + c.Out.Bytes() + 64
	case spec.PointToPoint:
		n := 64
		for i := range c.Transfers {
			n += up(c.Transfers[i].Tensor.Bytes())
		}
		return n
	default:
		return 0
	}
}

// up is n rounded up to a line.
func up(n int) int { return (n + 63) &^ 63 }
