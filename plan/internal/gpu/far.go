package gpu

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/port/service"
)

// far is how kernels of an engine reach ranks of other hosts: port channels, one for each stream between two ranks.
// Plans share them, for a launch takes all that it is sent, and ends when all that it pushed has left.
type far struct {
	comm       *weft.Comm
	service    *service.Service
	generation uint64
	host       *cuda.HostMemory // what channels are connected with
	memory     *service.Memory
	channels   map[channelKey]*service.Channel
	claimed    channels // of the plans that were loaded
}

// channelKey is a channel by its peer and its number.
type channelKey struct{ rank, number int }

// least is how much memory of the host there is at least.
const least = 64

// open makes the service, and anew in each generation, so that nothing is taken for what was sent before. It is
// collective, and no kernel that has its channels runs.
func (f *far) open(ctx context.Context, op string) error {
	ops := f.comm.Operations()
	if f.service != nil && f.generation == ops.Generation() {
		return nil
	}
	err := f.close()
	if err == nil {
		f.host, err = f.comm.Device().Context().AllocHost(least, cuda.HostOptions{})
	}
	if err := ops.VerifySame(ctx, op, "ports", err); err != nil {
		return err
	}
	o := service.Options{Channels: 2 * mostStreams, Shared: true}
	if f.service, err = service.New(ctx, f.comm, o); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	f.generation, f.channels = ops.Generation(), make(map[channelKey]*service.Channel)
	if f.memory, err = f.service.Register(ctx, f.host.Bytes()); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return ops.VerifySame(ctx, op, "port channels", f.connect(ctx))
}

// connect makes the first channel to each rank of another host; others are made without a word. All ranks keep this
// order: no pair waits for one that waits for it.
func (f *far) connect(ctx context.Context) error {
	for r := range f.comm.Size() {
		if f.comm.Host(r) == f.comm.Host(f.comm.Rank()) || f.comm.Masked(r) {
			continue
		}
		c, err := f.service.Connect(ctx, r, service.ChannelOptions{Kind: service.PortChannel}, f.memory, f.memory)
		if err != nil {
			return err
		}
		f.channels[channelKey{r, 1}] = c
	}
	return nil
}

// channel is that of a stream between this rank and another one.
func (f *far) channel(peer, number int) (c *service.Channel, err error) {
	key := channelKey{peer, number}
	if f.channels[key] == nil {
		c, err := f.service.Open(peer, number, service.ChannelOptions{Kind: service.PortChannel}, f.memory, f.memory)
		if err != nil {
			return nil, err
		}
		f.channels[key] = c
	}
	return f.channels[key], nil
}

// leave is called before memory goes that channels have carried from or to. Each launch leaves nothing underway, unless
// the communicator has failed: then the service ends before.
func (f *far) leave() error {
	if f == nil || f.service == nil {
		return nil
	}
	if ops := f.comm.Operations(); f.generation == ops.Generation() && ops.Begin("close executor") == nil {
		return nil
	}
	return f.end()
}

// end ends the service. No kernel that has its channels runs.
func (f *far) end() error {
	if f.service == nil {
		return nil
	}
	if err := f.service.Close(); err != nil {
		return err // closed again, it goes on with what is left
	}
	f.service, f.memory, f.channels = nil, nil, nil
	return nil
}

func (f *far) close() error {
	if f == nil {
		return nil
	}
	if err := f.end(); err != nil || f.host == nil {
		return err
	}
	err := f.host.Close()
	f.host = nil
	return err
}

// farMemory is what launches of a context have of other hosts: pinned memory, in which an inbox comes before an outbox,
// and where the table of streams is in the GPU's own memory.
type farMemory struct {
	host   *cuda.HostMemory
	memory *service.Memory
	table  int64
}

// farStream is the Stream of far.cuh.
type farStream struct {
	channel    device.PortChannel
	flushed, _ uint64
}

const farStreamBytes = int64(unsafe.Sizeof(farStream{}))

// reach makes what the context's launches reach other hosts by. It implements Far of [enginegpu.LaneSpec].
func (c *launchContext) reach(ctx context.Context, op string, lane *enginegpu.Lane) error {
	f, m, p := c.l.e.far, &c.far, c.l.program
	if err := f.open(ctx, op); err != nil {
		return err
	}
	ops := f.comm.Operations()
	inbox, outbox := p.inbox*c.chunk, p.outbox*c.chunk
	var err error
	if m.host == nil {
		if m.host, err = f.comm.Device().Context().AllocHost(inbox+outbox+least, cuda.HostOptions{}); err != nil {
			err = fmt.Errorf("%s: %d bytes of pinned memory of the host for what crosses between hosts: run it on smaller "+
				"messages: %w", op, inbox+outbox+least, err)
		}
	}
	if err := ops.VerifySame(ctx, op, "pinned memory", err); err != nil {
		return err
	}
	if m.memory, err = f.service.Register(ctx, m.host.Bytes()); err != nil {
		return err
	}
	err = c.connect(lane)
	if err == nil {
		for _, a := range c.arguments() {
			a.inbox, a.outboxAt = uint64(m.host.Pointer()), uint64(inbox)
			a.outbox = a.inbox + a.outboxAt
		}
	}
	return ops.VerifySame(ctx, op, "port channels", err)
}

// connect fills the table of streams.
func (c *launchContext) connect(lane *enginegpu.Lane) error {
	f, m := c.l.e.far, &c.far
	if len(c.l.program.streams) == 0 {
		return nil
	}
	table := make([]farStream, len(c.l.program.streams))
	for i, s := range c.l.program.streams {
		base, err := f.channel(s.from+s.to-f.comm.Rank(), s.number)
		if err != nil {
			return err
		}
		between, err := base.With(m.memory, m.memory)
		if err == nil {
			table[i].channel, err = between.Kernel()
		}
		if err != nil {
			return err
		}
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(table))), len(table)*int(farStreamBytes))
	return f.comm.Device().Context().Upload(lane.Local(m.table), raw)
}

// close gives the memory up, once nothing is underway from it or to it.
func (m *farMemory) close() error {
	var errs []error
	if m.memory != nil {
		errs = append(errs, m.memory.Close())
	}
	if m.host != nil {
		errs = append(errs, m.host.Close())
	}
	*m = farMemory{}
	return errors.Join(errs...)
}
