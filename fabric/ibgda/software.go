package ibgda

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric/mlx5"
	"github.com/weftgo/weft/fabric/softnic"
)

// shared is this process's card made of Go, while somebody uses it. Ranks of one process share it, because it is at
// both ends of a queue pair.
var shared struct {
	sync.Mutex
	users int
	nic   *softnic.NIC
	keys  uint32 // of regions, that were given
	pairs uint32 // numbers of queue pairs
	stop  context.CancelFunc
	ended chan struct{}
}

// processName tells this process from others.
var processName = sync.OnceValue(func() (n [16]byte) {
	_, _ = rand.Read(n[:]) // never fails: the runtime ends the process first
	return n
})

// soft is a rank's share of the card.
type soft struct {
	context *cuda.Context
	nic     *softnic.NIC
}

// OpenSoftware opens the card made of Go of this process.
func OpenSoftware(c *cuda.Context) Card {
	s := &shared
	s.Lock()
	defer s.Unlock()
	if s.users++; s.users == 1 {
		ctx, stop := context.WithCancel(context.Background())
		s.nic, s.stop, s.ended = softnic.New(softnic.Options{}), stop, make(chan struct{})
		go func(nic *softnic.NIC, ended chan struct{}) {
			defer close(ended)
			nic.Serve(ctx)
		}(s.nic, s.ended)
	}
	return &soft{context: c, nic: s.nic}
}

// Close implements Card. The last user ends the card.
func (c *soft) Close() error {
	s := &shared
	s.Lock()
	defer s.Unlock()
	if c.nic == nil {
		return nil
	}
	c.nic = nil
	if s.users--; s.users > 0 {
		return nil
	}
	s.stop()
	<-s.ended
	return s.nic.Check()
}

func (c *soft) Name() string { return software }

func (c *soft) Address() Address { return Address{network: process, gid: processName()} }

func (c *soft) RegisterHost(m *cuda.HostMemory) (*Region, error) {
	s := &shared
	s.Lock()
	defer s.Unlock()
	s.keys++
	r := &Region{
		Address: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes())))), Bytes: uint64(m.Size()),
		LocalKey: s.keys, PeersKey: s.keys,
	}
	nic, key := c.nic, s.keys
	r.release = func() error {
		nic.Deregister(key)
		return nil
	}
	if err := nic.Register(softnic.Region{
		Key: key, Address: r.Address, Bytes: m.Bytes(), Access: softnic.RemoteWrite | softnic.RemoteAtomic,
	}); err != nil {
		return nil, err
	}
	return r, nil
}

// RegisterGPU implements Card: the host does not reach such memory.
func (c *soft) RegisterGPU(cuda.Pointer, int) (*Region, error) {
	return nil, errors.New("a card made of Go reaches pinned memory of the host alone")
}

// Where a queue pair has what it shares with the card, in pinned memory.
const (
	softConsumerAt = 64
	softDoorbellAt = 128
	softEntriesAt  = 256
)

// softQueue is a queue pair of the card made of Go.
type softQueue struct {
	card   *soft
	memory *cuda.HostMemory
	queue  *softnic.Queue
	kernel device.NicQueue
}

// NewQueue implements Card.
func (c *soft) NewQueue(entries int) (Queue, error) {
	if entries < 1 || entries > mlx5.MaxDepth {
		return nil, fmt.Errorf("a queue pair of %d entries; want 1 to %d", entries, mlx5.MaxDepth)
	}
	depth := 1 << bits.Len(uint(entries-1))
	completionsAt := softEntriesAt + depth*mlx5.EntryBytes
	memory, err := c.context.AllocHost(completionsAt+depth*mlx5.CompletionBytes, cuda.HostOptions{})
	if err != nil {
		return nil, err
	}
	part := func(at, n int) []byte { return memory.Bytes()[at:][:n:n] }
	shared.Lock()
	shared.pairs = shared.pairs%mlx5.QueueMask + 1
	number := shared.pairs
	shared.Unlock()
	q := &softQueue{card: c, memory: memory}
	if q.queue, err = c.nic.Connect(number, softnic.Memory{
		Record: part(0, 8), Consumer: part(softConsumerAt, 8), Register: part(softDoorbellAt, 8),
		Send: part(softEntriesAt, depth*mlx5.EntryBytes), Completions: part(completionsAt, depth*mlx5.CompletionBytes),
	}); err != nil {
		return nil, errors.Join(err, memory.Close())
	}
	at := func(n int) uint64 { return uint64(memory.Pointer().Add(n)) }
	q.kernel = device.NicQueue{
		Entries: at(softEntriesAt), Completions: at(completionsAt), Record: at(4 * mlx5.SendRecordAt),
		Consumer: at(softConsumerAt), Doorbell: at(softDoorbellAt),
		Mask: uint32(depth - 1), Log: uint32(bits.TrailingZeros(uint(depth))), Number: number,
	}
	return q, nil
}

func (q *softQueue) Number() uint32 { return q.kernel.Number }

func (q *softQueue) Kernel() device.NicQueue { return q.kernel }

// Connect implements Queue: any peer of this process is there already.
func (q *softQueue) Connect(peer Address, _ uint32) error {
	own := q.card.Address()
	if err := own.reach(peer); err != nil {
		return err
	}
	if own.gid != peer.gid {
		return fmt.Errorf("%s=%s, and it is of another process, which shares no card made of Go: join as goroutines of one "+
			"process, or unset it", NICVariable, software)
	}
	return nil
}

func (q *softQueue) Close() error {
	if q.memory == nil {
		return nil
	}
	q.card.nic.Disconnect(q.queue)
	memory := q.memory
	q.memory = nil
	return memory.Close()
}
