package verbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/weftgo/weft/fabric/mlx5"
	"github.com/weftgo/weft/internal/dl"
)

// Queue is a queue pair and its completion queue. The addresses lead to memory of the library's.
type Queue struct {
	Number      uint32
	Send        uintptr // the first entry of the send queue
	Entries     int     // a power of two, and at least as many as were asked for
	Completions uintptr // the first completion
	Completes   int     // how many completions there are: a power of two, and at least as many as entries
	Record      uintptr // of doorbells: two words
	Consumer    uintptr // the completion queue's record
	Register    uintptr // of doorbells

	card               *Card
	queue, completions uintptr
}

// NewQueue makes a reliable queue pair with room for so many entries, which is not connected. Each entry may need a
// completion, and how many entries the library makes is known afterwards: a completion queue that is too small is
// made again.
func (c *Card) NewQueue(entries int) (*Queue, error) {
	q, err := c.newQueue(entries, 4*entries)
	if err != nil || q.Completes >= q.Entries {
		return q, err
	}
	enough := q.Entries
	if err := q.Close(); err != nil {
		return nil, err
	}
	if q, err = c.newQueue(entries, enough); err == nil && q.Completes < q.Entries {
		err = fmt.Errorf("%s: a completion queue of %d; want %d", c.Name, q.Completes, q.Entries)
		return nil, errors.Join(err, q.Close())
	}
	return q, err
}

func (c *Card) newQueue(entries, completions int) (q *Queue, err error) {
	q = &Queue{card: c}
	defer func() {
		if err != nil {
			way := ""
			if errors.Is(err, syscall.ENOMEM) {
				way = wayOut(err)
			}
			err = errors.Join(fmt.Errorf("%s: a queue pair of %d entries: %w%s", c.Name, entries, err, way), q.Close())
			q = nil
		}
	}()
	l := c.library
	// The library rounds n + 1 up to a power of two.
	if q.completions, err = l.pointer("ibv_create_cq", l.createCompletions, c.context, uintptr(completions-1), 0, 0,
		0); err != nil {
		return q, err
	}
	c.init = queueInit{
		sendCompletions: q.completions, recvComplete: q.completions, kind: reliable,
		cap: queueCap{sends: uint32(entries), receives: 1, sendParts: 1, recvParts: 1, inline: mlx5.MaxInline},
	}
	if q.queue, err = l.pointer("ibv_create_qp", l.createQueue, c.domain, dl.Word(&c.init)); err != nil {
		return q, err
	}
	c.queue, c.ring = mlx5Queue{}, mlx5Completions{}
	c.object = mlx5Object{
		queue: q.queue, queueOut: dl.Word(&c.queue), completions: q.completions, completionsOut: dl.Word(&c.ring),
	}
	if err = l.status("mlx5dv_init_obj", l.initObject, dl.Word(&c.object), objectQueue|objectCompletions); err != nil {
		return q, err
	}
	q.Number = at[queuePair](q.queue).number
	q.Send, q.Entries, q.Record, q.Register = c.queue.send.at, int(c.queue.send.count), c.queue.record, c.queue.register
	q.Completions, q.Completes, q.Consumer = c.ring.at, int(c.ring.count), c.ring.record
	return q, c.check(q)
}

// check refuses queues that entries of package mlx5 do not fit.
func (c *Card) check(q *Queue) error {
	switch {
	case c.queue.send.stride != mlx5.EntryBytes:
		return fmt.Errorf("its entries are %d bytes apart; want %d", c.queue.send.stride, mlx5.EntryBytes)
	case c.ring.size != mlx5.CompletionBytes:
		return fmt.Errorf("its completions have %d bytes; want %d: unset MLX5_CQE_SIZE", c.ring.size, mlx5.CompletionBytes)
	case q.Entries == 0 || q.Entries > mlx5.MaxDepth || q.Entries&(q.Entries-1) != 0:
		return fmt.Errorf("the library gave it %d; want a power of two up to %d", q.Entries, mlx5.MaxDepth)
	case q.Completes == 0 || q.Completes&(q.Completes-1) != 0:
		return fmt.Errorf("the library gave it %d completions; want a power of two", q.Completes)
	case q.Send == 0 || q.Completions == 0 || q.Record == 0 || q.Consumer == 0 || q.Register == 0:
		return errors.New("the library does not say where all of it is")
	}
	return nil
}

// Path is how a queue pair reaches its peer's.
type Path struct {
	Port   int      // of this card
	MTU    uint8    // of both ports, the smaller one
	Peer   uint32   // number of the peer's queue pair
	LID    uint16   // of the peer's port, on InfiniBand
	Global bool     // by GIDs, too: always on Ethernet
	GID    [16]byte // of the peer's port
	Index  int      // of this port's own GID
}

// Settings of a connection. A lost packet is sent again after 4.096 us times 2^timeout, so many times: a peer that is
// silent for some 4 s is given up, before a host counts as lost (WEFT_HEARTBEAT). Nothing is received, so nothing is
// ever not ready. One atomic at a time is what every card has.
const (
	timeout, retries             = 17, 7
	notReadyTimer, notReadyRetry = 12, 7
	atomics                      = 1
	hops                         = 64
	firstPacket                  = 0
)

// Connect connects the queue pair to its peer's, which may have none yet. Nothing may be posted before the peer's
// Connect has returned, too.
func (q *Queue) Connect(p Path) error {
	a := &q.card.attr
	steps := []struct {
		state int32
		mask  uint32
		set   func()
	}{
		{stateInit, maskPartition | maskPort | maskAccess, func() {
			a.port, a.access = uint8(p.Port), accessRemoteWrite|accessRemoteAtomic
		}},
		{
			stateReceive, maskAddress | maskMTU | maskPeer | maskRecvNumber | maskPeerAtomics | maskNotReadyTimer,
			func() {
				a.mtu, a.peer, a.recvNumber = int32(p.MTU), p.Peer, firstPacket
				a.peerAtomics, a.notReadyTimer = atomics, notReadyTimer
				a.address = addressVector{lid: p.LID, port: uint8(p.Port)}
				if p.Global {
					a.address.global = 1
					a.address.route = route{gid: p.GID, gidIndex: uint8(p.Index), hops: hops}
				}
			},
		},
		{stateSend, maskTimeout | maskRetries | maskNotReady | maskSendNumber | maskAtomics, func() {
			a.timeout, a.retries, a.notReadyRetries = timeout, retries, notReadyRetry
			a.sendNumber, a.atomics = firstPacket, atomics
		}},
	}
	for _, s := range steps {
		*a = queueAttr{state: s.state}
		s.set()
		if err := q.card.library.status("ibv_modify_qp", q.card.library.modifyQueue, q.queue, dl.Word(a),
			uintptr(maskState|s.mask)); err != nil {
			return fmt.Errorf("%s: connect queue pair %#x to %#x, step %d of %d: %w", q.card.Name, q.Number, p.Peer, s.state,
				len(steps), err)
		}
	}
	return nil
}

// Close ends the queue pair. Its memory is gone.
func (q *Queue) Close() error {
	var errs []error
	l := q.card.library
	if q.queue != 0 {
		errs = append(errs, l.status("ibv_destroy_qp", l.destroyQueue, q.queue))
	}
	if q.completions != 0 {
		errs = append(errs, l.status("ibv_destroy_cq", l.destroyCompletions, q.completions))
	}
	q.queue, q.completions = 0, 0
	return errors.Join(errs...)
}
