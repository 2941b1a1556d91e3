package fabrictest

import (
	"errors"
	"fmt"
	"hash/maphash"
	"time"
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/provider"
)

// endpoint implements [provider.Endpoint]. Its fields are under the network's lock.
type endpoint struct {
	network  *Network
	name     string
	dead     bool
	peers    map[provider.Address]*endpoint
	memories map[uint64]*memory
	finished []provider.Completion
	underway int
	wake     chan struct{} // holds a token when something may be ready
}

// memory implements [provider.Memory].
type memory struct {
	owner *endpoint
	bytes []byte
	base  uint64
	key   uint64
}

var errClosed = errors.New("the endpoint is closed")

func (n *Network) endpoint() *endpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opened++
	e := &endpoint{
		network: n, name: fmt.Sprintf("twin-%d", n.opened), wake: make(chan struct{}, 1),
		peers: map[provider.Address]*endpoint{}, memories: map[uint64]*memory{},
	}
	n.endpoints[e.name] = e
	return e
}

func (e *endpoint) Attributes() provider.Attributes {
	c := e.network.class
	return provider.Attributes{
		Provider: c.Name, Library: "fabrictest", Ordered: c.Ordered, Words: c.Words, Delivered: c.Delivered,
		Manual: c.Manual, Sleeps: c.Sleeps, PicksKeys: c.PicksKeys, KeyBytes: c.KeyBytes, DataBytes: c.DataBytes,
		MaxWrite: c.MaxWrite, Depth: c.Depth, Devices: c.Devices, DMABufs: c.DMABufs,
	}
}

func (e *endpoint) Name() ([]byte, error) { return []byte(e.name), nil }

func (e *endpoint) Insert(name []byte) (provider.Address, error) {
	n := e.network
	n.mu.Lock()
	defer n.mu.Unlock()
	peer := n.endpoints[string(name)]
	if peer == nil {
		return 0, failure(22, "no endpoint has this name")
	}
	a := provider.Address(len(e.peers) + 1)
	e.peers[a] = peer
	return a, nil
}

func (e *endpoint) Remove(a provider.Address) error {
	n := e.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if peer := e.peers[a]; peer != nil {
		n.reset(n.link(e, peer))
		n.reset(n.link(peer, e))
	}
	return nil
}

func (e *endpoint) Register(bytes []byte, key uint64) (provider.Memory, error) {
	n := e.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.dead {
		return nil, errClosed
	}
	m := &memory{owner: e, bytes: bytes, key: key}
	if n.class.PicksKeys {
		m.key = uint64(n.random.Uint32())
	}
	if _, taken := e.memories[m.key]; taken {
		return nil, failure(noKey, "the key is taken")
	}
	if n.class.Virtual {
		m.base = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(bytes))))
	}
	e.memories[m.key] = m
	return m, nil
}

// RegisterDevice implements [provider.DeviceEndpoint]. Emulated GPUs' memory lies where the host reaches it.
func (e *endpoint) RegisterDevice(d provider.DeviceMemory, key uint64) (provider.Memory, error) {
	c := e.network.class
	switch {
	case !c.Devices:
		return nil, failure(95, "no memory of GPUs")
	case d.DMABuf >= 0 && !c.DMABufs:
		return nil, failure(95, "no dma-bufs")
	case d.DMABuf < 0 && c.DMABufs:
		return nil, failure(14, "memory of a GPU without a dma-buf")
	}
	return e.Register(unsafe.Slice(*(**byte)(unsafe.Pointer(&d.Address)), d.Bytes), key)
}

func (m *memory) Base() uint64 { return m.base }
func (m *memory) Key() uint64  { return m.key }

func (m *memory) Close() error {
	m.owner.network.mu.Lock()
	defer m.owner.network.mu.Unlock()
	delete(m.owner.memories, m.key)
	return nil
}

// reach is memory that a peer's write is for.
func (e *endpoint) reach(address, key uint64, bytes int, unchecked bool) ([]byte, error) {
	m := e.memories[key]
	if m == nil && unchecked {
		for _, m = range e.memories {
			if address-m.base < uint64(len(m.bytes)) {
				break
			}
		}
	}
	if m == nil {
		return nil, failure(noKey, "no region has this key")
	}
	at := address - m.base
	if at > uint64(len(m.bytes)) || uint64(bytes) > uint64(len(m.bytes))-at {
		return nil, failure(noKey, "the write does not end in the region")
	}
	return m.bytes[at:][:bytes], nil
}

func (e *endpoint) Write(post *provider.Post) error {
	n := e.network
	n.mu.Lock()
	defer n.mu.Unlock()
	to := e.peers[post.To]
	if e.dead || to == nil {
		return errClosed
	}
	l := n.link(e, to)
	if n.class.Prompt && !l.cut && !to.dead {
		l.connected = true
	}
	if !l.connected {
		if l.cut || to.dead || l.refusals > 0 {
			l.refusals--
			return provider.ErrAgain
		}
		l.connected = true
	}
	if e.underway >= n.class.Depth || !n.class.Prompt && n.random.IntN(8) == 0 {
		return provider.ErrAgain
	}
	local := post.Local.(*memory)
	at := uintptr(post.From) - uintptr(unsafe.Pointer(unsafe.SliceData(local.bytes)))
	if local.owner != e || at > uintptr(len(local.bytes)) || uintptr(post.Bytes) > uintptr(len(local.bytes))-at {
		n.mistake("a payload of %d bytes lies outside of its region", post.Bytes)
		return failure(22, "the payload lies outside of its region")
	}
	p := &packet{
		network: n, link: l, from: e, to: to, token: post.Token, source: local.bytes[at:][:post.Bytes],
		remote: post.Remote, key: post.Key, data: post.Data, hasData: post.HasData,
		early: post.Early || !n.class.Delivered,
	}
	p.sum = maphash.Bytes(hashSeed, p.source)
	if n.class.Prompt {
		p.left = []piece{{0, len(p.source)}}
	} else {
		p.divide()
	}
	e.underway++
	n.written[e] += post.Bytes
	if post.Bytes > 8 {
		n.carried[e] += post.Bytes
	}
	l.queue = append(l.queue, p)
	for n.class.Prompt && !l.cut && len(l.queue) > 0 {
		n.move(l)
	}
	to.rouse()
	return nil
}

// Poll takes some steps, then reports what it finds, some of it later.
func (e *endpoint) Poll(into []provider.Completion) (int, error) {
	n := e.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.dead {
		return 0, nil // a dead process notices nothing
	}
	for range n.random.IntN(12) {
		n.step(e)
	}
	some := min(len(into), len(e.finished))
	if some > 1 {
		some = 1 + n.random.IntN(some)
	}
	copy(into, e.finished[:some])
	e.finished = append(e.finished[:0], e.finished[some:]...)
	return some, nil
}

// Arm finds out whether a poll could move anything.
func (e *endpoint) Arm() bool {
	n := e.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.dead {
		return true
	}
	if !n.class.Sleeps || len(e.finished) > 0 {
		return false
	}
	for _, l := range n.links {
		if n.moves(l, e) {
			return false
		}
	}
	return true
}

func (e *endpoint) Sleep(most time.Duration) {
	alarm := time.NewTimer(most)
	defer alarm.Stop()
	select {
	case <-e.wake:
	case <-alarm.C:
	}
}

// Close is what the end of its process does, and gives memory back.
func (e *endpoint) Close() error {
	n := e.network
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kill(e)
	clear(e.memories)
	delete(n.endpoints, e.name)
	kept := n.links[:0]
	for _, l := range n.links {
		if l.from != e && l.to != e {
			kept = append(kept, l)
		}
	}
	n.links = kept
	return nil
}

// queue adds a completion.
func (e *endpoint) queue(c provider.Completion) {
	e.finished = append(e.finished, c)
	e.rouse()
}

func (e *endpoint) rouse() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}
