package fabric

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/provider"
)

// DefaultTimeout bounds a wait whose context has no deadline.
const DefaultTimeout = 60 * time.Second

// Options say which endpoint to open, and for whom.
type Options struct {
	// Rank and Size are this rank's and its job's: 1,024 ranks at most.
	Rank, Size int
	// Provider is one of libfabric's, "tcp" or "tcp;ofi_rxm"; empty takes the first of [Providers] that
	// this machine has.
	Provider string
	// Source is the address of the interface to use, "10.0.0.1"; empty leaves it to Met, or else to libfabric.
	Source string
	// Met is the address of the interface by which the ranks have met, if that is known. Providers that use the
	// host's sockets take it. Left to itself, libfabric may take an interface that leads nowhere, as a bridge of
	// containers does. The variable FI_TCP_IFACE comes before it.
	Met string
	// Signals is how many each peer has, 64 if 0; 65,536 at most, and equal on all ranks.
	Signals int
	// Timeout bounds waits whose context has no deadline: DefaultTimeout if 0.
	Timeout time.Duration
	// Spin is how long a wait polls without anything coming before it sleeps: 200 us if 0. A rank that
	// has a processor to itself may spin for long.
	Spin time.Duration
	// Unordered goes by counts even where the provider keeps writes in order. All ranks must agree.
	Unordered bool
	// Devices asks for an endpoint that reaches memory of GPUs, if the provider has one: see
	// [Domain.RegisterDevice].
	Devices bool
}

// Capabilities are what the opened endpoint was found to do. Ordered and Words decide which protocol
// signals take, and DataBytes whether a password comes with them, so Connect refuses peers that differ in them.
type Capabilities struct {
	Provider  string // libfabric's name for it
	Library   string // and its version
	Path      string // of its file, or the name by which the system's loader found it
	Ordered   bool   // writes to a peer land in the order in which they were posted
	Words     bool   // an aligned word of 8 bytes lands whole
	Delivered bool   // a write completes when its bytes are in the target's memory
	Manual    bool   // writes land only while their target polls
	Sleeps    bool   // a waiting rank can sleep until something arrives
	PicksKeys bool   // the provider, not the owner, picks the keys of regions
	KeyBytes  int    // of a key
	DataBytes int    // that a write can bring to the target's queue
	MaxWrite  int    // bytes that one write carries; longer ones are divided
	Depth     int    // writes that are underway at once
	Devices   bool   // regions may be memory of a GPU
	DMABufs   bool   // such memory may be given as a dma-buf
}

// Domain is one rank's access to a fabric: an endpoint, the regions that peers may write to, and the
// peers. All its methods may be called from any goroutine.
type Domain struct {
	options  Options
	endpoint provider.Endpoint
	caps     Capabilities
	card     []byte
	pinner   runtime.Pinner
	board    board

	polls   atomic.Uint64 // made for callers
	waiting atomic.Int32  // callers that wait
	wanted  atomic.Int32  // callers that want the lock for a moment
	stop    chan struct{}
	stopped chan struct{}

	mu          sync.Mutex // around the endpoint, and all below
	closed      bool
	err         error // the endpoint's own failure, final
	boardMemory provider.Memory
	operations  [provider.Tokens]operation
	free        []uint32 // tokens; all of them where it is full
	peers       []*Peer
	regions     map[uint64]*Region // by key
	keys        keys
	password    uint32  // that writes must bring to the queue, where they can; or 0
	owing       []*Peer // that wait for an answer
	unsure      int     // peers whose signals may not have landed
	completions [32]provider.Completion
	post        provider.Post // what the endpoint is given
}

// operation is what a token stands for.
type operation struct {
	peer   *Peer
	number uint64 // among the peer's
	name   string
	answer bool
}

// Open opens libfabric and an endpoint of it. It measures what the endpoint does, between two others
// that it opens for that, and refuses those that would lose or misplace data.
func Open(ctx context.Context, o Options) (*Domain, error) {
	if err := o.normalize(); err != nil {
		return nil, err
	}
	endpoint, err := patiently(ctx, func() (provider.Endpoint, error) { return openLibfabric(ctx, o) })
	if err != nil {
		return nil, err
	}
	return open(endpoint, o)
}

// patiently opens an endpoint until the context ends. A library looks for its cards as long as it likes; what it opens
// too late is closed.
func patiently(ctx context.Context, open func() (provider.Endpoint, error)) (provider.Endpoint, error) {
	type result struct {
		endpoint provider.Endpoint
		err      error
	}
	opened := make(chan result, 1)
	go func() {
		endpoint, err := open()
		opened <- result{endpoint, err}
	}()
	select {
	case r := <-opened:
		return r.endpoint, r.err
	case <-ctx.Done():
	}
	go func() {
		if r := <-opened; r.err == nil {
			_ = r.endpoint.Close() // nobody asks any more
		}
	}()
	return nil, fmt.Errorf("open libfabric: %w", late(ctx))
}

// New opens a domain on an endpoint that is not libfabric's: package fabrictest has such. opened makes
// endpoints of one kind, of which one stays.
func New(ctx context.Context, o Options, opened func() (provider.Endpoint, error)) (*Domain, error) {
	if err := o.normalize(); err != nil {
		return nil, err
	}
	if err := measure(ctx, opened); err != nil {
		return nil, err
	}
	endpoint, err := opened()
	if err != nil {
		return nil, err
	}
	return open(endpoint, o)
}

func (o *Options) normalize() error {
	if o.Size < 1 || o.Size > most || o.Rank < 0 || o.Rank >= o.Size {
		return invalid("rank %d of %d: a domain takes 1 to %d ranks", o.Rank, o.Size, most)
	}
	if o.Signals < 0 || o.Signals > mostIDs {
		return invalid("%d signals: want 1 to %d", o.Signals, mostIDs)
	}
	if o.Timeout < 0 {
		return invalid("timeout %v: want 0, which is %v, or more", o.Timeout, DefaultTimeout)
	}
	if o.Spin < 0 {
		return invalid("spin %v: want 0, which is %v, or more", o.Spin, defaultSpin)
	}
	if o.Signals == 0 {
		o.Signals = 64
	}
	if o.Spin == 0 {
		o.Spin = defaultSpin
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	return nil
}

// open makes a domain of an endpoint, which it closes if it cannot.
func open(endpoint provider.Endpoint, o Options) (*Domain, error) {
	d := &Domain{
		options: o, endpoint: endpoint, caps: Capabilities(endpoint.Attributes()),
		board: newBoard(o.Size, o.Signals, provider.Tokens),
		peers: make([]*Peer, o.Size), regions: map[uint64]*Region{},
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	if o.Unordered {
		d.caps.Ordered = false
	}
	d.keys, d.password = newKeys(d.caps.KeyBytes), newPassword(d.caps.DataBytes)
	if err := d.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("open provider %s: %w", d.caps.Provider, err), endpoint.Close())
	}
	go d.progress()
	return d, nil
}

func (d *Domain) prepare() error {
	if d.caps.DataBytes < 4 {
		return unsupported("its writes bring %d bytes to the target's queue: want 4, as tcp has", d.caps.DataBytes)
	}
	d.free = make([]uint32, min(d.caps.Depth, provider.Tokens))
	for token := range d.free {
		d.free[token] = uint32(token)
	}
	d.pinner.Pin(unsafe.SliceData(d.board.memory))
	memory, err := d.endpoint.Register(d.board.memory, d.keys.next(0))
	if err != nil {
		return err
	}
	d.boardMemory = memory
	name, err := d.endpoint.Name()
	if err != nil {
		return err
	}
	d.card = domainCard{
		Rank: uint32(d.options.Rank), Size: uint32(d.options.Size), Signals: uint32(d.options.Signals),
		Ordered: d.caps.Ordered, Words: d.caps.Words, DataBytes: uint32(d.caps.DataBytes),
		Provider: d.caps.Provider, Name: name,
		Base: memory.Base(), Key: memory.Key(), Password: d.password,
	}.encode()
	return nil
}

// Capabilities are what the endpoint was found to do when it was opened.
func (d *Domain) Capabilities() Capabilities { return d.caps }

// Address is where the domain is reached through the host's sockets. It is invalid for providers that have addresses of
// another kind.
func (d *Domain) Address() netip.AddrPort {
	c, err := decodeDomain(d.card)
	if err != nil {
		return netip.AddrPort{}
	}
	return socketAddress(c.Name)
}

// socketAddress reads a struct sockaddr_in or sockaddr_in6.
func socketAddress(name []byte) netip.AddrPort {
	const inet, inet6, v6Size = 2, 10, 28
	switch {
	case len(name) >= 8 && binary.NativeEndian.Uint16(name) == inet:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:])), binary.BigEndian.Uint16(name[2:]))
	case len(name) >= v6Size && binary.NativeEndian.Uint16(name) == inet6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(name[8:])), binary.BigEndian.Uint16(name[2:]))
	}
	return netip.AddrPort{}
}

// Rank is this rank's.
func (d *Domain) Rank() int { return d.options.Rank }

// Size is the number of ranks.
func (d *Domain) Size() int { return d.options.Size }

// Signals is how many signals each peer has.
func (d *Domain) Signals() int { return d.options.Signals }

// Card is what peers need to connect to this domain. A bootstrap carries it to them.
func (d *Domain) Card() []byte { return append([]byte(nil), d.card...) }

// Close ends what is underway, takes all keys back and closes the endpoint. Waits of other goroutines
// end with [ErrClosed].
func (d *Domain) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	close(d.stop)
	<-d.stopped
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.waiting.Load() > 0 { // they may be asleep on the endpoint
		d.mu.Unlock()
		time.Sleep(time.Millisecond)
		d.mu.Lock()
	}
	err := d.endpoint.Close()
	for _, r := range d.regions {
		r.closed = true
		r.pinner.Unpin()
	}
	d.pinner.Unpin()
	return err
}

// failed is why the domain takes no more calls.
func (d *Domain) failed() error {
	if d.closed {
		return ErrClosed
	}
	return d.err
}

// poll moves the endpoint and acts on what has come. The lock is held.
func (d *Domain) poll() (n int) {
	n, err := d.endpoint.Poll(d.completions[:])
	if err != nil {
		d.err = err
		return 0
	}
	for i := range d.completions[:n] {
		c := &d.completions[i]
		if c.Arrived {
			d.arrived(c.Data)
		} else {
			d.completed(c)
		}
	}
	if len(d.owing) > 0 {
		d.answer()
	}
	return n
}

// completed retires one of this rank's writes.
func (d *Domain) completed(c *provider.Completion) {
	o := d.operations[c.Token]
	d.free = append(d.free, c.Token)
	p := o.peer
	if o.answer {
		p.served.answering = false
	} else {
		p.done.mark(o.number)
	}
	if c.Err != nil {
		p.fail(&PeerError{Rank: p.rank, Op: o.name, Err: fmt.Errorf("%w: %w", ErrLost, c.Err)})
	}
}

// progress moves the endpoint while no caller does: peers' writes land, signals show, adds are executed.
func (d *Domain) progress() {
	defer close(d.stopped)
	const idle, busy = 20 * time.Millisecond, time.Millisecond
	pause := busy
	for polls := d.polls.Load(); ; {
		select {
		case <-d.stop:
			return
		default:
		}
		if now := d.polls.Load(); now != polls || d.waiting.Load() > 0 {
			polls = now // callers move it
			d.mu.Lock()
			d.probe()
			d.mu.Unlock()
			time.Sleep(busy)
			continue
		}
		d.mu.Lock()
		n := d.poll()
		d.probe()
		broken := d.err != nil
		armed := n == 0 && !broken && d.caps.Sleeps && d.endpoint.Arm()
		d.mu.Unlock()
		switch {
		case broken:
			time.Sleep(idle)
		case n > 0:
			pause = 20 * time.Microsecond
			runtime.Gosched()
		case armed:
			d.endpoint.Sleep(idle)
		case d.caps.Sleeps:
			runtime.Gosched() // something is about to come
		default:
			pause = min(2*pause, busy)
			time.Sleep(pause)
		}
	}
}
