package gpu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric/ibgda"
)

// cardDepth is how many entries a link's queue has room for, at least. A call posts three: the box, its flag, and a
// flush. There is room in the GPU's memory for what a queue of cardEntries takes, as libraries make more.
const cardDepth, cardEntries = 16, 256

// cardStateBytes is what a link's queue pair has in the GPU's memory.
const cardStateBytes = device.NicStateBytes + cardEntries*device.NicMarkBytes

// warned says whether the log of this process has why kernels drive no card.
var warned struct {
	sync.Mutex
	is bool
}

// choose reads whether kernels push to a proxy or drive a card, and opens the card.
func (p *ports) choose(getenv func(string) string) (err error) {
	warned.Lock()
	defer warned.Unlock()
	log, gpu := p.h.Comm.Operations().Logger(), p.h.device.Context()
	if warned.is {
		log = nil
	}
	p.way, err = ibgda.Choose(getenv, func(name string) (err error) {
		p.card, err = ibgda.Open(gpu, name)
		warned.is = warned.is || err != nil && name == ""
		return err
	}, log)
	if err != nil {
		return weft.Invalidf("%v", err)
	}
	if p.way == ibgda.Software {
		p.card = ibgda.OpenSoftware(gpu)
	}
	return nil
}

// agree has ranks that have a card push to the proxy, too, if one can drive none.
func (p *ports) agree(ctx context.Context, op string) error {
	comm := p.h.Comm
	notes, err := comm.Operations().GatherNotes(ctx, op, []byte{byte(p.way)})
	if err != nil {
		return err
	}
	without := slices.IndexFunc(notes, func(b []byte) bool { return string(b) == string([]byte{byte(ibgda.Proxy)}) })
	if without < 0 || p.way != ibgda.Hardware {
		return nil
	}
	warned.Lock()
	defer warned.Unlock()
	if !warned.is {
		warned.is = true
		comm.Operations().Logger().Warn("kernels push to the proxy's ring: a rank can drive no card", "variable",
			ibgda.UseVariable, "rank", without)
	}
	err = p.card.Close()
	p.card, p.way = nil, ibgda.Proxy
	p.h.point()
	return err
}

// A cardNote is what a rank tells the others of its card and its memory. Behind it come numbers of queue pairs, by
// link.
type cardNote struct {
	card            ibgda.Address
	address, length uint64
	key             uint32
	numbers         []uint32
}

// noteNumbers is how many numbers go in a note.
const noteNumbers = 200

func (n *cardNote) encode(first int) []byte {
	b := n.card.Append(nil)
	b = binary.LittleEndian.AppendUint64(b, n.address)
	b = binary.LittleEndian.AppendUint64(b, n.length)
	b = binary.LittleEndian.AppendUint32(b, n.key)
	for _, v := range n.numbers[min(first, len(n.numbers)):min(first+noteNumbers, len(n.numbers))] {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// decode reads a note, and adds the numbers to those that have come.
func (n *cardNote) decode(b []byte) (err error) {
	if n.card, b, err = ibgda.DecodeAddress(b); err != nil {
		return err
	}
	if len(b) < 20 || len(b)%4 != 0 {
		return weft.ErrMismatch
	}
	n.address, n.length = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	n.key = binary.LittleEndian.Uint32(b[16:])
	for b = b[20:]; len(b) > 0; b = b[4:] {
		n.numbers = append(n.numbers, binary.LittleEndian.Uint32(b))
	}
	return nil
}

// connectCard makes the links' queue pairs. place is where the GPU is to have the table.
func (p *ports) connectCard(ctx context.Context, op string, place cuda.Pointer) ([]portLink, error) {
	comm := p.h.Comm
	table, own, err := p.makeQueues(place)
	if err := comm.Operations().VerifySame(ctx, op, "queue pairs", err); err != nil {
		return nil, err
	}
	notes, err := p.gatherCards(ctx, op, own)
	if err != nil {
		return nil, err
	}
	me := comm.Rank()
	for i := range table {
		l := &table[i]
		peer := int(l.channel.Peer)
		if comm.Masked(peer) {
			continue
		}
		n := notes[peer]
		l.theirs = device.NicMemory{Address: n.address, Bytes: n.length, Key: n.key}
		if err := p.queues[i].Connect(n.card, n.numbers[p.linkOf(peer, me)+int(l.part)]); err != nil {
			return nil, fmt.Errorf("rank %d: %w", peer, err)
		}
	}
	return table, nil
}

// makeQueues makes the queue pairs, of which those to masked ranks are nil, and says what peers need of this rank.
func (p *ports) makeQueues(place cuda.Pointer) (table []portLink, own *cardNote, err error) {
	if p.region, err = p.card.RegisterHost(p.memory); err != nil {
		return nil, nil, err
	}
	table = p.lay()
	own = &cardNote{
		card: p.card.Address(), address: p.region.Address, length: p.region.Bytes, key: p.region.PeersKey,
		numbers: make([]uint32, len(table)),
	}
	p.queues = make([]ibgda.Queue, len(table))
	states := place.Add(len(table) * int(portLinkBytes))
	for i := range table {
		l := &table[i]
		if p.h.Comm.Masked(int(l.channel.Peer)) {
			continue
		}
		q, err := p.card.NewQueue(cardDepth)
		if err != nil {
			return nil, nil, err
		}
		p.queues[i], own.numbers[i], l.queue = q, q.Number(), q.Kernel()
		if l.queue.Mask >= cardEntries {
			return nil, nil, fmt.Errorf("card %s: a queue pair of %d entries; there is room for %d", p.card.Name(),
				l.queue.Mask+1, cardEntries)
		}
		state := states.Add(i * cardStateBytes)
		l.queue.State, l.queue.Ready = uint64(state), uint64(state.Add(device.NicStateBytes))
		l.queue.Home, l.queue.HomeKey = p.region.Address+uint64(p.homeAt()), p.region.LocalKey
		l.queue.Peer, l.ours = l.channel.Peer, p.region.Near()
		l.taken = uint64(place) + uint64(i)*uint64(portLinkBytes) + uint64(unsafe.Offsetof(l.count))
	}
	return table, own, nil
}

// gatherCards gives all ranks' notes, by rank.
func (p *ports) gatherCards(ctx context.Context, op string, own *cardNote) ([]cardNote, error) {
	comm := p.h.Comm
	notes, most := make([]cardNote, comm.Size()), 0
	for r := range notes {
		most = max(most, p.links(r))
	}
	for first := 0; first < most; first += noteNumbers {
		raw, err := comm.Operations().GatherNotes(ctx, op, own.encode(first))
		if err != nil {
			return nil, err
		}
		for r, b := range raw {
			if b == nil {
				continue
			}
			if err := notes[r].decode(b); err != nil {
				return nil, &weft.PeerError{Rank: r, Op: op, Err: err}
			}
		}
	}
	for r := range notes {
		if n := len(notes[r].numbers); !comm.Masked(r) && n != p.links(r) {
			return nil, &weft.PeerError{Rank: r, Op: op, Err: fmt.Errorf("%w: %d queue pairs; want %d", weft.ErrMismatch, n,
				p.links(r))}
		}
	}
	return notes, nil
}

// closeCard ends the queue pairs, and takes the keys back.
func (p *ports) closeCard() error {
	var errs []error
	for _, q := range p.queues {
		if q != nil {
			errs = append(errs, q.Close())
		}
	}
	if p.region != nil {
		errs = append(errs, p.region.Close())
	}
	p.queues, p.region = nil, nil
	return errors.Join(errs...)
}
