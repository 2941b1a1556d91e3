package weft

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/internal/shm"
)

// WithFabric makes the domain by which a communicator of several hosts reaches the windows of the others. The
// default is [fabric.Open], which takes the first of [fabric.Providers] that the machine has. Open is called with
// the rank, the size, the number of signals and the deadline, when the first window is made. All ranks give domains
// of the same kind; package fabrictest has such for tests.
func WithFabric(open func(context.Context, fabric.Options) (*fabric.Domain, error)) Option {
	return func(c *config) { c.fabric = open }
}

// fabricSignals is how many signals a communicator's ranks have for each other.
const fabricSignals = 1024

// reach is how a rank reaches the memory of other hosts. It is empty until the first window is made.
type reach struct {
	mu     sync.Mutex
	domain *fabric.Domain
	peers  []*fabric.Peer // by rank; nil: not connected, or of this host
	lost   map[int]error  // ranks that are gone
	signal int            // the next that is free
	staged sync.Once      // it was said that windows of GPUs are

	renewed uint64               // the generation in which regions were last renewed
	begun   bool                 // a renewal has not ended
	retired []io.Closer          // memory that something may still land in, or leave from: see Window.free
	settled uint64               // the generation in which SetMask last found that all had landed
	ended   bool                 // nothing lands any more
	others  map[uint64]Renewable // objects with regions of their own
	number  uint64               // of the next of them
	cut     RankSet              // masked ranks to which SetMask has ended the connections
	void    RankSet              // masked ranks that have none of the present keys
	apart   RankSet              // ranks that some SetMask has left out since the last one that has succeeded here
}

// spans says whether there are ranks on other hosts.
func (c *Comm) spans() bool { return c.remote >= 0 }

// newDomain opens a domain, as WithFabric says.
func (c *Comm) newDomain(ctx context.Context, f fabric.Options) (*fabric.Domain, error) {
	if f.Met == "" && c.met.IsValid() {
		f.Met = c.met.String()
	}
	if c.options.fabric != nil {
		return c.options.fabric(ctx, f)
	}
	return fabric.Open(ctx, f)
}

// openFabric opens the domain, if that is still to be done.
func (c *Comm) openFabric(ctx context.Context) (*fabric.Domain, error) {
	r := &c.reach
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.domain != nil {
		return r.domain, nil
	}
	ctx, stop := c.bounded(ctx, "alloc window")
	defer stop()
	d, err := c.newDomain(ctx, fabric.Options{
		Rank: c.rank, Size: c.size, Signals: fabricSignals, Timeout: c.control.Waiter.Timeout,
		Devices: c.device != nil,
	})
	switch {
	case errors.Is(err, fabric.ErrUnsupported):
		return nil, fmt.Errorf("%w: ranks %d and %d are on different hosts, which libfabric connects: %w", ErrUnsupported,
			c.rank, c.remote, err)
	case err != nil && ctx.Err() != nil: // a rank has died, or the call has ended
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	}
	caps := d.Capabilities()
	c.logger.Info("fabric", "op", "alloc window", "provider", caps.Provider, "library", caps.Library,
		"ordered", caps.Ordered)
	r.domain, r.peers = d, make([]*fabric.Peer, c.size)
	return d, nil
}

// connect registers a window's memory with the fabric, so that other hosts reach it, and this rank theirs. Ranks
// that have not met before connect to each other here, and so in no operation.
func (c *Comm) connect(ctx context.Context, op string, w *Window) error {
	own, err := c.register(ctx, w)
	var note []byte
	if err == nil {
		card := c.reach.domain.Card()
		note = binary.LittleEndian.AppendUint16(note, uint16(len(card)))
		note = append(note, card...)
		if own != nil { // a window of no bytes has no region
			note = append(note, own.Card()...)
		}
		if len(note) > noteSize/2 {
			err = Unsupportedf("%s: the fabric's card has %d bytes", op, len(note))
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", op, err)
	}
	notes, err := c.verifyWith(ctx, op, "registered", note, err)
	if err != nil {
		return err
	}
	if err = c.meetFar(ctx, op, w, notes); err != nil {
		err = fmt.Errorf("%s: %w", op, err)
	}
	return c.verifySame(ctx, op, "connected", err)
}

func (c *Comm) register(ctx context.Context, w *Window) (*fabric.Region, error) {
	d, err := c.openFabric(ctx)
	if err != nil || w.size == 0 || w.region != nil {
		return w.region, err
	}
	return w.region, c.grant(d, w)
}

// grant lets peers write into a window's memory, and this rank write from it. On the host and in a memory file that
// stages it goes by aliases: what is still on its way when it ends must not land in the memory, and not every provider
// can stop it. What this rank writes comes from another alias, and another region, which stay: some of it may still be
// on its way to a rank that was left out alive. Memory of a GPU has no alias, nor has memory of the driver's that
// stages it.
func (c *Comm) grant(d *fabric.Domain, w *Window) (err error) {
	file := w.stagingFile
	switch {
	case file != nil:
	case w.staging != nil:
		w.region, err = d.Register(w.staging.Bytes(), uint32(c.control.Generation()))
		return err
	case w.mem == nil:
		w.region, err = c.registerDevice(d, w)
		return err
	default:
		file = w.regions[c.rank]
	}
	if w.source == nil {
		if w.sourceAlias, w.source, err = c.registerAlias(d, file, w.size); err != nil {
			return err
		}
	}
	w.alias, w.region, err = c.registerAlias(d, file, w.size)
	return err
}

func (c *Comm) registerAlias(d *fabric.Domain, file *shm.Region, size int) (*shm.Alias, *fabric.Region, error) {
	a, err := file.Alias()
	if err != nil {
		return nil, nil, err
	}
	r, err := d.Register(a.Bytes()[:size:size], uint32(c.control.Generation()))
	if err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	return a, r, nil
}

// renew gives a window that ranks of other hosts reach a new key, and where there is an alias other memory: what may be
// late by the old one must not land. It returns the card, or nil if there is none.
func (w *Window) renew() (card []byte, err error) {
	w.grants.Lock()
	defer w.grants.Unlock()
	if w.remotes == nil || w.size == 0 || w.closed {
		return nil, nil
	}
	region, alias := w.region, w.alias
	w.region, w.alias = nil, nil
	if err := w.unregister(region, alias); err != nil {
		return nil, err
	}
	if err := w.comm.grant(w.comm.reach.domain, w); err != nil {
		return nil, err
	}
	return w.region.Card(), nil
}

// stays says whether the window is memory that renew cannot move.
func (w *Window) stays() bool {
	w.grants.Lock()
	defer w.grants.Unlock()
	return w.region != nil && w.alias == nil
}

// revoke ends that ranks of other hosts reach the window, before its memory is used anew or freed.
func (w *Window) revoke() error {
	w.grants.Lock()
	defer w.grants.Unlock()
	w.closed = true
	return errors.Join(w.unregister(w.region, w.alias), w.unregister(w.source, w.sourceAlias))
}

// unregister takes back the key of memory, and the alias if that is one. Other memory is for release to free.
func (w *Window) unregister(region *fabric.Region, alias *shm.Alias) error {
	if region == nil {
		return nil
	}
	err := region.Close()
	if alias != nil {
		err = errors.Join(err, w.free(alias))
	}
	return err
}

// free gives back memory that had a key: an alias, or the driver's that has none. If something may be late it is kept
// until SetMask finds that all has landed, or the domain has ended. The memory that an alias showed is not kept: the
// alias is, with other pages, which nobody reads. Nor is the driver's where only an adapter could place what comes.
func (w *Window) free(memory io.Closer) error {
	if kept, err := w.keep(memory); kept {
		return err
	}
	return memory.Close()
}

func (w *Window) keep(memory io.Closer) (kept bool, err error) {
	failed := w.comm.Err() != nil
	alias, moves := memory.(*shm.Alias)
	r := &w.comm.reach
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || !moves && r.strict() || !w.late(failed) {
		return false, nil
	}
	if moves {
		err = alias.Retire()
	}
	r.retired = append(r.retired, memory)
	return true, err
}

// late says whether something may be on its way to or from this rank's part that no operation waits for. After a
// failure it may, until SetMask has found that all has landed, but not for a window that was made since. Else it may
// where this rank has lost one that has a part of the window, or has writes underway to it. The lock of reach is held.
func (w *Window) late(failed bool) bool {
	c := w.comm
	failed = failed || max(w.met, c.reach.settled) != c.control.Generation()
	for rank, to := range w.remotes {
		if to.Bytes() == 0 {
			continue
		}
		if failed {
			return true
		}
		p := c.reach.peers[rank]
		if landed, err := p.Flushed(p.Mark()); err != nil || !landed {
			return true
		}
	}
	return false
}

// strict says whether nothing lands without a key, because an adapter places what comes. A processor may go on to place
// it when the key is gone. The lock is held.
func (r *reach) strict() bool {
	return r.domain != nil && r.domain.Capabilities().Ordered && r.domain.Capabilities().Words
}

// meetFar connects to all unmasked ranks of other hosts and takes note of their parts of a window.
func (c *Comm) meetFar(ctx context.Context, op string, w *Window, notes [][]byte) error {
	ctx, cancel := c.bounded(ctx, op)
	defer cancel()
	w.remotes, w.met = make([]fabric.Remote, c.size), c.control.Generation()
	for k := range c.size {
		rank := (c.rank + k) % c.size // not all to the same rank at once
		if c.hosts[rank] == c.hosts[c.rank] || notes[rank] == nil {
			continue
		}
		card, region, err := cutCards(notes[rank])
		if err != nil {
			return &PeerError{Rank: rank, Op: op, Err: err}
		}
		p, err := c.connectTo(ctx, rank, card)
		if err == nil && len(region) > 0 {
			w.remotes[rank], err = p.Region(region)
		}
		if err != nil {
			if fault := c.begin(op); fault != nil {
				return fault
			}
			return err
		}
	}
	return nil
}

func cutCards(note []byte) (domain, region []byte, err error) {
	if len(note) < 2 || len(note)-2 < int(binary.LittleEndian.Uint16(note)) {
		return nil, nil, fmt.Errorf("%w: a card of %d bytes", ErrMismatch, len(note))
	}
	n := 2 + int(binary.LittleEndian.Uint16(note))
	return note[2:n], note[n:], nil
}

func (c *Comm) connectTo(ctx context.Context, rank int, card []byte) (*fabric.Peer, error) {
	r := &c.reach
	r.mu.Lock()
	p, lost := r.peers[rank], r.lost[rank]
	r.mu.Unlock()
	if p != nil || lost != nil {
		return p, lost
	}
	p, err := r.domain.Connect(ctx, rank, card)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if lost := r.lost[rank]; lost != nil {
		p.Fail(lost)
	}
	r.peers[rank] = p
	return p, nil
}

// lose ends what waits for a rank that is gone.
func (r *reach) lose(rank int, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == nil {
		r.lost = map[int]error{}
	}
	if r.lost[rank] != nil {
		return
	}
	r.lost[rank] = why
	if r.peers != nil && r.peers[rank] != nil {
		r.peers[rank].Fail(why)
	}
}

// restTime bounds how long a rank that leaves waits until what it has said is with the others.
const restTime = 5 * time.Second

// rest waits until this rank's writes to other hosts have completed, so that they are there before the news that
// it has left. It waits for no rank that has failed or is masked.
func (r *reach) rest(limit time.Duration, masked func(int) bool) {
	r.mu.Lock()
	peers := slices.Clone(r.peers)
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), min(limit, restTime))
	defer cancel()
	for rank, p := range peers {
		if p != nil && !masked(rank) {
			_ = p.Flush(ctx) // whoever waits for it is told that this rank left
		}
	}
}

func (r *reach) close() error {
	r.mu.Lock()
	d := r.domain
	r.mu.Unlock()
	if d == nil {
		return nil
	}
	err := d.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return errors.Join(err, r.release())
}

// keeps says whether memory is kept that something might land in.
func (r *reach) keeps() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.retired) > 0
}

// settle takes note that in a generation all has landed that was on its way.
func (r *reach) settle(generation uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settled = generation
	return r.release()
}

// release gives back what was kept. The lock is held.
func (r *reach) release() error {
	var errs []error
	for _, m := range r.retired {
		errs = append(errs, m.Close())
	}
	r.retired = nil
	return errors.Join(errs...)
}

// Spans says whether the communicator has ranks on several hosts.
func (o Operations) Spans() bool { return o.comm.spans() }

// OneHost refuses what works between ranks of one host alone. All ranks refuse alike.
func (o Operations) OneHost(op string) error { return o.comm.requireOneHost(op) }

// OpenFabric opens another domain of the kind that [WithFabric] gives: for an object that has one to itself.
func (o Operations) OpenFabric(ctx context.Context, f fabric.Options) (*fabric.Domain, error) {
	return o.comm.newDomain(ctx, f)
}

// Fabric is how this rank reaches windows on other hosts, from the first window on; nil on one host.
func (o Operations) Fabric() *fabric.Domain {
	o.comm.reach.mu.Lock()
	defer o.comm.reach.mu.Unlock()
	return o.comm.reach.domain
}

// FabricPeer is a rank of another host, once a window has been made with it; else nil.
func (o Operations) FabricPeer(rank int) *fabric.Peer {
	r := &o.comm.reach
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.peers == nil {
		return nil
	}
	return r.peers[rank]
}

// FabricSignal takes a signal of the fabric's for an object, the same on all ranks. It is collective.
func (o Operations) FabricSignal(ctx context.Context, op string) (int, error) {
	return o.FabricSignals(ctx, op, 1)
}

// FabricSignals takes n signals that follow each other, and returns the first.
func (o Operations) FabricSignals(ctx context.Context, op string, n int) (first int, err error) {
	r := &o.comm.reach
	notes, err := o.comm.verifyWith(ctx, op, fmt.Sprintf("signals: %d", n),
		binary.LittleEndian.AppendUint32(nil, uint32(r.signal)), nil)
	if err != nil {
		return 0, err
	}
	for _, n := range notes { // a rank that was masked has missed some
		if len(n) == 4 {
			first = max(first, int(binary.LittleEndian.Uint32(n)))
		}
	}
	if n > fabricSignals-first {
		return 0, Unsupportedf("%s: it needs %d signals, and %d of the %d of a communicator of several hosts are taken, by "+
			"groups and plans; make a new communicator", op, n, first, fabricSignals)
	}
	r.signal = first + n
	return first, nil
}

// Renewable is an object that reaches other hosts by domains of its own. SetMask gives its regions new keys, as it
// does those of windows: it calls Settle on all ranks, then Renew on all, then Take and Resume.
type Renewable interface {
	// Reaches says whether the object is connected to a rank, and why nothing goes there any more.
	Reaches(rank int) (connected bool, err error)
	// Settle posts nothing from now on, and returns when what was posted has landed, but for ranks that are lost, and
	// for those that are left out, which may be silent.
	Settle(ctx context.Context, out func(rank int) bool) error
	// Renew ends connections to ranks that are gone, alive or not, and to those that were left out before and are taken
	// back, and gives all regions new keys. It returns their cards.
	Renew(gone func(rank int) bool, epoch uint32) (cards [][]byte, err error)
	// Take takes note of a card of another rank.
	Take(rank int, card []byte) error
	// Resume goes on to post.
	Resume()
}

// Renews makes SetMask renew the regions of an object, which all ranks have made. It is collective. remove takes it
// back.
func (o Operations) Renews(ctx context.Context, op string, r Renewable) (remove func(), err error) {
	c := o.comm
	if !c.spans() {
		return func() {}, nil
	}
	notes, err := c.verifyWith(ctx, op, "regions", binary.LittleEndian.AppendUint64(nil, c.reach.number), nil)
	if err != nil {
		return nil, err
	}
	number := uint64(0)
	for _, n := range notes { // a rank that was masked has missed some
		if len(n) == 8 {
			number = max(number, binary.LittleEndian.Uint64(n))
		}
	}
	c.reach.mu.Lock()
	defer c.reach.mu.Unlock()
	if c.reach.others == nil {
		c.reach.others = map[uint64]Renewable{}
	}
	c.reach.others[number], c.reach.number = r, number+1
	return func() {
		c.reach.mu.Lock()
		defer c.reach.mu.Unlock()
		delete(c.reach.others, number)
	}, nil
}

// Carries makes known what carries to other ranks for kernels, which find that it has failed, but not why: lost says
// it of a rank, or is nil. It waits for nothing, and asks the communicator nothing. remove takes it back.
func (o Operations) Carries(lost func(rank int) error) (remove func()) {
	return o.comm.carriers.add(lost)
}

// Unreachable is the error of an operation that cannot write to a rank of another host any more. The other ranks
// are told.
func (o Operations) Unreachable(op string, rank int, why error) error {
	c := o.comm
	if err := c.begin(op); err != nil {
		return err
	}
	c.noteEnd(rank, why)
	c.spread(channel.Fault{Cause: channel.CauseDied, Rank: rank})
	if err := c.begin(op); err != nil {
		return err
	}
	return &PeerError{Rank: rank, Op: op, Err: why}
}

// Region is this rank's part as this rank writes from it to ranks of other hosts; nil on one host, and for a window of
// no bytes. Its key is no other rank's.
func (w *Window) Region() *fabric.Region { return cmp.Or(w.source, w.region) }

// Remote is the part of a rank of another host as this rank's [Operations.FabricPeer] reaches it. It is the zero
// Remote, of no bytes, for ranks of this host and those that were masked when the window was made.
func (w *Window) Remote(rank int) fabric.Remote {
	if w.remotes == nil {
		return fabric.Remote{}
	}
	return w.remotes[rank]
}
