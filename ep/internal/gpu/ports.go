package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/fabric/ibgda"
	"github.com/weftgo/weft/port"
	"github.com/weftgo/weft/port/service"
)

// ports is how the rows of slots reach far ranks, whose memory is not mapped: port channels, several to each such
// rank, whose kernels are those of ports.cuh. An operation is then three launches: what is sent, what carries it,
// and what receives.
type ports struct {
	apart
	h *handle

	far   []int // ranks
	parts int   // channels to each
	box   int64 // bytes of what a channel carries at once, at most
	table int64 // in this GPU's own memory: [far][parts] links

	once   bool  // a row of a dispatch goes once to each host
	places int64 // in this GPU's own memory: the Places of ports_hosts.cuh
	told   int64 // in the window: what keepers tell

	memory  *cuda.HostMemory // an outbox and two inboxes for each link, and a flag by which a card's are counted
	service *service.Service
	back    Gradients // nil until it is asked for

	way    ibgda.Way
	card   ibgda.Card // that kernels drive, or nil
	queues []ibgda.Queue
	region *ibgda.Region // the memory, as the card knows it
}

// portArgs are what a launch that carries is given of the ports: the Ports of ports.cuh.
type portArgs struct {
	links, memory uint64
	box           uint64
	count, parts  uint32
	blocks, card  uint32
	places, told  uint64
}

// portLink is a channel, or a queue pair of a card, and what it carries between: the PortLink of ports.cuh.
type portLink struct {
	channel      device.PortChannel
	out, in, to  uint64
	taken        uint64
	part, role   uint32
	queue        device.NicQueue
	theirs, ours device.NicMemory
	flag, own    uint64
	count        uint64
	flushed      uint64
}

const portLinkBytes = int64(unsafe.Sizeof(portLink{}))

// portHeaderBytes is the size of the PortHeader of ports.cuh.
const portHeaderBytes = 32

// A channel carries partBytes of a dispatch of the most tokens, unless a rank had more than mostParts then.
const partBytes, mostParts = 256 << 10, 8

func throughPorts(_ *spec.Spec, c *spec.Choice) bool { return c.Ports }

func noPrograms(string) []kernel.Spec { return nil }

func newPorts(h *handle) *ports {
	p := &ports{h: h, far: farRanks(h.Comm, h.Comm.Rank()), once: h.choice.OncePerHost}
	g, s := &h.Geometry, &h.Spec
	p.parts = min(max(1, spec.CeilDiv(g.Tokens*slotBytes(s), partBytes)), mostParts, g.Tokens)
	p.parts = max(1, min(p.parts, port.MaxKernelChannels/g.Ranks))
	members := 0 // of a host, at most
	for r := range h.Comm.Size() {
		members = max(members, h.Comm.Size()-len(farRanks(h.Comm, r)))
	}
	if !p.once {
		members = 0
	}
	p.box = boxBytes(g, s, spec.CeilDiv(g.Tokens, p.parts), members)
	return p
}

// farRanks are those whose memory a rank does not map.
func farRanks(c *weft.Comm, rank int) (far []int) {
	for r := range c.Size() {
		if c.Host(r) != c.Host(rank) {
			far = append(far, r)
		}
	}
	return far
}

// slotBytes is the size of a slot: a row, and its scales behind it.
func slotBytes(s *spec.Spec) int { return s.RowSize() + aligned16(s.ScaleSize()) }

func aligned16(n int) int { return (n + 15) &^ 15 }

// boxBytes is how much a part of so many tokens takes at most: the RowBox of ports_dispatch.cuh, or for a host of so
// many members the HostBox of ports_hosts.cuh; and the SumBox of ports_combine.cuh.
func boxBytes(g *spec.Geometry, s *spec.Spec, tokens, members int) int64 {
	rows := aligned16(max(1, members)*(countWords+g.Local)*4) + aligned16(tokens*g.TopK*pairBytes) +
		aligned16(tokens*(1+spec.CeilDiv(members, 32))*4) + tokens*slotBytes(s)
	each := 1 // that go home of a token
	if spec.CombineSums(*s) == spec.ExactSums {
		each = g.TopK
	}
	sums := 0
	if s.Combines() {
		sums = aligned16(tokens*each*4) + tokens*each*s.OutputSize()
	}
	return int64(portHeaderBytes+max(rows, sums)+127) &^ 127
}

// links is how many a rank has.
func (p *ports) links(rank int) int { return len(farRanks(p.h.Comm, rank)) * p.parts }

func (p *ports) load(*programs) {}

func (p *ports) layout(window, local *enginegpu.Workspace) {
	p.table = local.Raw(p.tableBytes())
	if p.once {
		ranks := int64(p.h.Comm.Size())
		p.places = local.Raw(placeLists * ranks * 4)
		p.told = window.Zeros(2 * ranks * int64(p.parts) * 4)
	}
}

// tableBytes is the size of the table, and of the queue pairs' states behind it.
func (p *ports) tableBytes() int64 {
	return int64(len(p.far)*p.parts) * (portLinkBytes + cardStateBytes)
}

// flagsAt is where a rank's memory has the flags of a card's links, behind the boxes.
func (p *ports) flagsAt(rank int) int64 { return 3 * p.box * int64(p.links(rank)) }

// homeAt is where this rank's memory has a word behind the flags that cards write to and nobody reads.
func (p *ports) homeAt() int64 {
	own := p.h.Comm.Rank()
	return p.flagsAt(own) + 8*int64(p.links(own))
}

// prepare decides who carries the boxes, and allocates them.
func (p *ports) prepare() (err error) {
	if err := p.choose(os.Getenv); err != nil {
		return err
	}
	size := p.homeAt() + 8
	if p.memory, err = p.h.device.Context().AllocHost(int(size), cuda.HostOptions{}); err != nil {
		return fmt.Errorf("%d bytes of pinned memory of the host for rows of far ranks: lower MaxTokens: %w", size, err)
	}
	return nil
}

// open makes the channels: new ones whenever the lane begins anew, so that nothing is taken for what was sent before.
// It implements LaneSpec.Far of package engine/gpu.
func (p *ports) open(ctx context.Context, op string, lane *enginegpu.Lane) error {
	comm := p.h.Comm
	ops := comm.Operations()
	err := p.agree(ctx, op)
	if err := ops.VerifySame(ctx, op, fmt.Sprintf("ports: %v", p.way), errors.Join(err, p.close())); err != nil {
		return err
	}
	clear(p.memory.Bytes())
	table, err := p.connect(ctx, op, lane.Local(p.table))
	if err == nil {
		raw := make([]byte, p.tableBytes())
		copy(raw, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(table))), len(table)*int(portLinkBytes)))
		err = p.h.device.Context().Upload(lane.Local(p.table), raw)
	}
	if err == nil && p.once {
		err = p.h.device.Context().Upload(lane.Local(p.places), placesOf(comm).words())
	}
	if err := ops.VerifySame(ctx, op, "port channels", err); err != nil {
		return err
	}
	ops.Logger().Debug("ports", "op", op, "way", p.way.String(), "ranks", len(p.far), "channels", p.parts,
		"bytes", len(p.memory.Bytes()))
	return nil
}

// connect makes the links to all far ranks. table is where they are to be.
func (p *ports) connect(ctx context.Context, op string, table cuda.Pointer) ([]portLink, error) {
	if p.card != nil {
		return p.connectCard(ctx, op, table)
	}
	comm := p.h.Comm
	var err error
	if p.service, err = service.New(ctx, comm, service.Options{Channels: p.parts, Shared: true}); err != nil {
		return nil, err
	}
	memory, err := p.service.Register(ctx, p.memory.Bytes())
	if err != nil {
		return nil, err
	}
	links := p.lay()
	// All ranks keep this order: no pair waits for one that waits for it.
	for i := range links {
		l := &links[i]
		peer := int(l.channel.Peer)
		if comm.Masked(peer) {
			continue
		}
		c, err := p.service.Connect(ctx, peer, service.ChannelOptions{Kind: service.PortChannel}, memory, memory)
		if err == nil {
			l.channel, err = c.Kernel()
		}
		if err != nil {
			return nil, err
		}
		l.taken = l.channel.Taken
	}
	return links, nil
}

// linkOf is which of a rank's links is the first to a peer.
func (p *ports) linkOf(rank, peer int) int {
	return slices.Index(farRanks(p.h.Comm, rank), peer) * p.parts
}

// lay makes the table of links, with all that follows from ranks and sizes.
func (p *ports) lay() (table []portLink) {
	comm, box := p.h.Comm, uint64(p.box)
	own := comm.Rank()
	links := uint64(p.links(own))
	at := placesOf(comm)
	for _, peer := range p.far {
		theirs, role := p.linkOf(peer, own), at.role(own, peer)
		for part := range p.parts {
			i, there := uint64(len(table)), uint64(theirs+part)
			table = append(table, portLink{
				channel: device.PortChannel{Peer: uint32(peer)}, part: uint32(part), role: role,
				out: i * box, in: (links + 2*i) * box, to: (uint64(p.links(peer)) + 2*there) * box,
				flag: uint64(p.flagsAt(peer)) + 8*there, own: uint64(p.flagsAt(own)) + 8*i,
			})
		}
	}
	return table
}

// close ends the channels. No kernel that has them runs.
func (p *ports) close() error {
	if p.service == nil {
		return p.closeCard()
	}
	if err := p.service.Close(); err != nil {
		return err // closed again, it goes on with what is left
	}
	p.service = nil
	return nil
}

// free gives back what prepare has taken.
func (p *ports) free() error {
	var errs []error
	if p.card != nil {
		errs = append(errs, p.card.Close())
	}
	if p.memory != nil {
		errs = append(errs, p.memory.Close())
	}
	return errors.Join(errs...)
}

// Gradients brings gradients of batches between hosts, of handles whose rows port channels carry. home is where a
// routing's selections lie in the GPU's memory: of each (token, selection) a pair of its expert's number from 1, in
// 16 bits, and its weight. Arguments are as they should be.
type Gradients interface {
	DispatchBackward(ctx context.Context, s *weft.Stream, a spec.SumArgs, home cuda.Pointer) error
	CombineBackward(ctx context.Context, s *weft.Stream, a spec.SpreadArgs, home cuda.Pointer) error
	// CountWaits says where operations from now on count waits; 0: nowhere.
	CountWaits(dispatch, combine cuda.Pointer)
	Resources() spec.Resources
	// Close gives up what it has, once nothing of it runs.
	Close() (released bool, err error)
}

// A NewGradients makes the Gradients of a handle. It is collective. beside is the room of the handle's own kernels.
type NewGradients func(ctx context.Context, of *spec.Base, beside *enginegpu.Room) (Gradients, error)

// gradients is what brings those of a batch that port channels do not, and where the batch's selections lie. It is
// made when the first of them is asked for, which all ranks do in the same order.
func (p *ports) gradients(ctx context.Context, op string, s *weft.Stream, b *spec.Batch) (Gradients,
	cuda.Pointer, error,
) {
	h := p.h
	if b.Masked != h.Comm.Operations().MaskPointer() {
		return nil, 0, fmt.Errorf("%s: %w: ranks were masked after the routing was prepared; prepare again", op,
			weft.ErrInvalid)
	}
	if p.back == nil {
		if h.lane.Capture() != 0 {
			return nil, 0, weft.Unsupportedf("%s: the memory of gradients between hosts cannot be allocated in a "+
				"capture; make the call once before", op)
		}
		// Nothing of this rank's waits for one that waits for this allocation.
		err := h.Comm.Wait(ctx, weft.StreamOf(h.lane.Stream(s)))
		if err == nil {
			p.back, err = h.between(ctx, h.Base, h.room)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	p.back.CountWaits(cuda.Pointer(h.waits.dispatch), cuda.Pointer(h.waits.combine))
	r := b.Info.(*gpuRouting)
	return p.back, r.memory.Pointer().Add(h.routing.home), nil
}

// add adds what ports have to the handle's resources.
func (p *ports) add(r *spec.Resources) {
	r.Bytes += p.memory.Size()
	r.GradientSMs = 0 // the handle's own kernel of gradients never runs
	if p.back != nil {
		back := p.back.Resources()
		r.Bytes += back.Bytes
		r.GradientSMs = back.GradientSMs
	}
}

// A carrier has the launch that carries what a kernel through slots with arguments A has stored for far ranks.
type carrier[A any] struct {
	launcher[carryArgs[A]]
}

// carryArgs are the RowCarry or the SumCarry.
type carryArgs[A any] struct {
	ports portArgs
	of    A
}

// with is where the functions of a program go whose first goes to f: the one that carries is second, if there is one.
func (c *carrier[A]) with(ports bool, f **cuda.Function) []**cuda.Function {
	if !ports {
		return []**cuda.Function{f}
	}
	return []**cuda.Function{f, &c.functions[0]}
}

// prepare lays out the launch beside a kernel's of that grid, and arguments.
func (c *carrier[A]) prepare(h *handle, r request, of A) error {
	if h.ports == nil {
		return nil
	}
	g := r.grid
	g.moving, g.notify = min(g.blocks(), len(h.ports.far)*h.ports.parts), 0
	return c.layOut(h.config(g, false), carryArgs[A]{
		ports: portArgs{
			box: uint64(h.ports.box), count: uint32(len(h.ports.far) * h.ports.parts), parts: uint32(h.ports.parts),
			blocks: uint32(r.moving),
		},
		of: of,
	})
}

func (c *carrier[A]) point(h *handle) {
	if h.ports == nil {
		return
	}
	c.pointed(func(a *carryArgs[A]) {
		a.ports.links, a.ports.memory = h.localAt(h.ports.table), uint64(h.ports.memory.Pointer())
		a.ports.card = uint32(h.ports.way)
		if h.ports.once {
			a.ports.places, a.ports.told = h.localAt(h.ports.places), uint64(h.ports.told)
		}
	})
}

// A doer has the launch that does so much of its present call.
type doer interface {
	doing(flags uint32) *cuda.Launch
}

// enqueue enqueues so much of a mover's present call. Between hosts the carrier's launch has both parts of it: behind
// what sends, and before what receives.
func enqueue[A any](h *handle, m doer, c *carrier[A], args *A, stream *cuda.Stream, flags uint32) error {
	switch sends := flags&flagSend != 0; {
	case h.ports == nil && !sends:
		return h.lane.Receive(stream, m.doing(flags))
	case h.ports == nil:
		return h.lane.Start(stream, m.doing(flags))
	case sends:
		if err := h.lane.Start(stream, m.doing(flags&^flagReceive)); err != nil {
			return err
		}
	}
	m.doing(flags)
	c.args.of = *args
	if err := h.lane.Receive(stream, c.launches[0]); err != nil || flags&flagReceive == 0 {
		return err
	}
	return h.lane.Receive(stream, m.doing(flags&^flagSend))
}

// carryBy adds the kernel that carries to a program.
func carryBy(s *kernel.Spec, name string, headers ...string) {
	s.Name += ", ports"
	s.Kernels = append(s.Kernels, name)
	s.Defines["WEFT_PORTS"] = "1"
	for _, h := range append(headers, "ports.cuh") {
		s.Headers[h] = kernelText(h)
	}
}
