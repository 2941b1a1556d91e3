package gpu

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric/ibgda"
	"github.com/weftgo/weft/fabric/mlx5"
	"github.com/weftgo/weft/fabric/softnic"
)

// cardDepth is how many entries a link's queue has room for. A call posts three: the box, its flag, and a flush.
const cardDepth = 16

// Where a link's queue pair has what it shares with the card, in pinned memory.
const (
	cardConsumerAt = 64
	cardDoorbellAt = 128
	cardHomeAt     = 192
	cardEntriesAt  = 256
	cardBytes      = cardEntriesAt + cardDepth*(mlx5.EntryBytes+mlx5.CompletionBytes)
)

// cardStateBytes is what a link's queue pair has in the GPU's memory.
const cardStateBytes = device.NicStateBytes + cardDepth*device.NicMarkBytes

// warned says whether the log of this process has why kernels drive no card.
var warned struct {
	sync.Mutex
	is bool
}

// chooseWay reads whether kernels push to a proxy or drive a card.
func chooseWay(getenv func(string) string, c *weft.Comm) (ibgda.Way, error) {
	warned.Lock()
	defer warned.Unlock()
	log := c.Operations().Logger()
	if warned.is {
		log = nil
	}
	way, err := ibgda.Choose(getenv, func() error {
		warned.is = true
		return errors.New("queue pairs of cards are not set up yet; WEFT_NIC=software has kernels drive a card made of Go")
	}, log)
	if err != nil {
		err = weft.Invalidf("%v", err)
	}
	return way, err
}

// softCard is the card made of Go that the ranks of a handle share. They are of one process.
type softCard struct {
	nic   *softnic.NIC
	users int
	stop  context.CancelFunc
	ended chan struct{}
}

type cardName [16]byte

// softCards are those of this process.
var softCards = struct {
	sync.Mutex
	made map[cardName]*softCard
}{made: map[cardName]*softCard{}}

// processName tells ranks of this process from others.
var processName = sync.OnceValue(func() (n cardName) {
	_, _ = rand.Read(n[:]) // never fails: the runtime ends the process first
	return n
})

// useCard takes a share of a card, which the first user makes.
func useCard(name cardName) *softCard {
	softCards.Lock()
	defer softCards.Unlock()
	c := softCards.made[name]
	if c == nil {
		ctx, stop := context.WithCancel(context.Background())
		c = &softCard{nic: softnic.New(softnic.Options{}), stop: stop, ended: make(chan struct{})}
		softCards.made[name] = c
		go func() {
			defer close(c.ended)
			c.nic.Serve(ctx)
		}()
	}
	c.users++
	return c
}

// leaveCard gives a share back. The last user ends the card, which tells of mistakes in what kernels wrote.
func leaveCard(name cardName) error {
	softCards.Lock()
	defer softCards.Unlock()
	c := softCards.made[name]
	if c.users--; c.users > 0 {
		return nil
	}
	delete(softCards.made, name)
	c.stop()
	<-c.ended
	return c.nic.Check()
}

// cardNote is what a rank tells the others of itself and of its memory.
type cardNote struct {
	process, name   cardName
	address, length uint64
}

func (n *cardNote) encode() []byte {
	b := append(n.process[:], n.name[:]...)
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, n.address), n.length)
}

func decodeCardNote(b []byte) (n cardNote, err error) {
	if len(b) != 48 {
		return n, weft.ErrMismatch
	}
	copy(n.process[:], b)
	copy(n.name[:], b[16:])
	n.address, n.length = binary.LittleEndian.Uint64(b[32:]), binary.LittleEndian.Uint64(b[40:])
	return n, nil
}

// connectCard makes the links' queue pairs, on a card made of Go. place is where the GPU is to have the table.
func (p *ports) connectCard(ctx context.Context, op string, place cuda.Pointer) (table []portLink, err error) {
	comm := p.h.Comm
	own := cardNote{process: processName(), address: uint64(p.memory.Pointer()), length: uint64(len(p.memory.Bytes()))}
	_, _ = rand.Read(own.name[:])
	raw, err := comm.Operations().GatherNotes(ctx, op, own.encode())
	if err != nil {
		return nil, err
	}
	notes := make([]cardNote, len(raw))
	first := -1
	for r, b := range raw {
		if b == nil {
			continue
		}
		if notes[r], err = decodeCardNote(b); err != nil {
			return nil, &weft.PeerError{Rank: r, Op: op, Err: err}
		}
		if first < 0 {
			first = r
		}
		if notes[r].process != notes[first].process {
			return nil, weft.Unsupportedf("%s: %s=software, and ranks %d and %d are of different processes, which share no "+
				"card made of Go: join as goroutines of one process, or unset it", op, ibgda.NICVariable, first, r)
		}
	}
	p.cardName = notes[first].name
	p.card = useCard(p.cardName)
	key := func(rank int) uint32 { return uint32(rank) + 1 }
	me := comm.Rank()
	if err := p.card.nic.Register(softnic.Region{
		Key: key(me), Address: own.address, Bytes: p.memory.Bytes(), Access: softnic.RemoteWrite,
	}); err != nil {
		return nil, err
	}
	table = p.lay()
	states := place.Add(len(table) * int(portLinkBytes))
	for i := range table {
		l := &table[i]
		peer := int(l.channel.Peer)
		if comm.Masked(peer) {
			continue
		}
		at := p.queuesAt() + int64(i*cardBytes)
		part := func(offset, n int) []byte { return p.memory.Bytes()[int(at)+offset:][:n:n] }
		number := uint32(me*comm.Size()*p.parts+i) + 1
		queue, err := p.card.nic.Connect(number, softnic.Memory{
			Record: part(0, 8), Consumer: part(cardConsumerAt, 8), Register: part(cardDoorbellAt, 8),
			Send:        part(cardEntriesAt, cardDepth*mlx5.EntryBytes),
			Completions: part(cardEntriesAt+cardDepth*mlx5.EntryBytes, cardDepth*mlx5.CompletionBytes),
		})
		if err != nil {
			return nil, err
		}
		p.queues = append(p.queues, queue)
		base := p.memory.Pointer().Add(int(at))
		state := states.Add(i * cardStateBytes)
		l.queue = device.NicQueue{
			Entries: uint64(base.Add(cardEntriesAt)), Completions: uint64(base.Add(cardEntriesAt + cardDepth*mlx5.EntryBytes)),
			Record: uint64(base.Add(4 * mlx5.SendRecordAt)), Consumer: uint64(base.Add(cardConsumerAt)),
			Doorbell: uint64(base.Add(cardDoorbellAt)),
			State:    uint64(state), Ready: uint64(state.Add(device.NicStateBytes)),
			Home: uint64(base.Add(cardHomeAt)), HomeKey: key(me),
			Mask: cardDepth - 1, Log: uint32(bits.TrailingZeros(cardDepth)), Number: number, Peer: uint32(peer),
		}
		l.theirs = device.NicMemory{Address: notes[peer].address, Bytes: notes[peer].length, Key: key(peer)}
		l.ours = device.NicMemory{Address: own.address, Bytes: own.length, Key: key(me)}
		l.taken = uint64(place) + uint64(i)*uint64(portLinkBytes) + uint64(unsafe.Offsetof(l.count))
	}
	return table, nil
}

// closeCard gives the rank's share of the card back.
func (p *ports) closeCard() error {
	if p.card == nil {
		return nil
	}
	for _, q := range p.queues {
		p.card.nic.Disconnect(q)
	}
	p.card.nic.Deregister(uint32(p.h.Comm.Rank()) + 1)
	p.card, p.queues = nil, nil
	return leaveCard(p.cardName)
}
