package control

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

// fabric is a Transport between ranks that share no memory. Each has views of its own of all pages.
// What one rank sends another comes late and in order; between different pairs of ranks there is no
// order, nor between them and decisions.
type fabric struct {
	nodes []*node
	links [][]chan func() // from, to
	work  sync.WaitGroup
	stop  chan struct{}

	mu      sync.Mutex
	random  *rand.Rand
	decided []Decision // all of them, in order
	dead    []rankset.Set
	serving rankset.Set
}

// node is a rank, its memory and its end of the fabric.
type node struct {
	*Rank
	fabric *fabric
	views  [][]byte
	known  atomic.Pointer[Decision]
	killed atomic.Bool
	ctx    context.Context
	kill   context.CancelFunc
}

func newFabric(ranks int, seed uint64, timeout time.Duration) *fabric {
	f := &fabric{random: rand.New(rand.NewPCG(seed, 0)), stop: make(chan struct{}), decided: make([]Decision, 1)}
	f.dead = make([]rankset.Set, 1)
	for rank := range ranks {
		n := &node{fabric: f}
		n.known.Store(&Decision{})
		n.ctx, n.kill = context.WithTimeout(context.Background(), time.Minute)
		for range ranks {
			n.views = append(n.views, aligned(PageSize))
		}
		n.Rank = New(Config{
			Rank: rank, Size: ranks, InProcess: ranks, Policy: channel.PolicyFor(ranks, ranks, 1), Timeout: timeout,
			Fault: func(string) error { return n.begin() }, Blame: n.Tell, Logger: slog.New(slog.DiscardHandler),
		}, n.views[rank])
		n.Connect(n.views, n)
		f.nodes = append(f.nodes, n)
		links := make([]chan func(), ranks)
		for to := range links {
			links[to] = make(chan func(), 1<<12)
			f.work.Go(func() { f.carry(links[to]) })
		}
		f.links = append(f.links, links)
	}
	for _, n := range f.nodes {
		f.work.Go(n.showStatus)
	}
	return f
}

func (f *fabric) close() {
	close(f.stop)
	f.work.Wait()
	for _, n := range f.nodes {
		n.kill()
	}
}

// aligned is memory as the system maps it.
func aligned(size int) []byte {
	mem := make([]byte, size+channel.Stride)
	return mem[-uintptr(unsafe.Pointer(&mem[0]))%channel.Stride:][:size]
}

// late is how long something is on its way: mostly short, and sometimes long.
func (f *fabric) late() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.random.IntN(20) == 0 {
		return time.Duration(f.random.IntN(int(4 * time.Millisecond)))
	}
	return time.Duration(f.random.IntN(int(100 * time.Microsecond)))
}

func (f *fabric) carry(link <-chan func()) {
	for {
		select {
		case <-f.stop:
			return
		case deliver := <-link:
			time.Sleep(f.late())
			deliver()
		}
	}
}

// send lets something happen at a peer. What a rank sent before it was killed may arrive.
func (n *node) send(peer int, deliver func(to *node)) {
	if n.killed.Load() {
		return
	}
	to := n.fabric.nodes[peer]
	n.fabric.links[n.rank][peer] <- func() {
		if !to.killed.Load() {
			deliver(to)
		}
	}
}

func (n *node) toAll(deliver func(to *node)) {
	for peer := range n.fabric.nodes {
		if peer != n.rank {
			n.send(peer, deliver)
		}
	}
}

func (n *node) Publish(part Part) {
	now := AppendPart(nil, n.views[n.rank], part)
	n.toAll(func(to *node) {
		if err := SetPart(to.views[n.rank], part, now); err != nil {
			panic(err)
		}
	})
}

// showStatus replicates the rank's status again and again.
func (n *node) showStatus() {
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		select {
		case <-n.fabric.stop:
			tick.Stop()
			return
		case <-tick.C:
		}
		n.Publish(Record)
		n.Publish(Words)
	}
}

func (n *node) Abort(peers rankset.Set, f channel.Fault) {
	for p := range peers.All() {
		n.send(p, func(to *node) { to.own.fault.Abort(f) })
	}
}

func (n *node) Decision() Decision { return *n.known.Load() }

func (n *node) Decides(rankset.Set) bool { return true }

// Decide goes to the fabric itself, which outlives all ranks, and from there to each rank.
func (n *node) Decide(last uint64, next Decision) {
	f := n.fabric
	if n.killed.Load() {
		return
	}
	f.later(func() {
		f.mu.Lock()
		if f.decided[len(f.decided)-1].Generation == last {
			f.decided, f.dead = append(f.decided, next), append(f.dead, f.killed())
		}
		now := f.decided[len(f.decided)-1]
		f.mu.Unlock()
		for _, to := range f.nodes {
			f.later(func() {
				for {
					old := to.known.Load()
					if old.Generation >= now.Generation || to.known.CompareAndSwap(old, &now) {
						return
					}
				}
			})
		}
	})
}

// later does something out of order.
func (f *fabric) later(what func()) {
	f.work.Go(func() {
		time.Sleep(f.late())
		what()
	})
}

func (f *fabric) killed() (set rankset.Set) {
	for _, n := range f.nodes {
		if n.killed.Load() {
			set = set.With(n.rank)
		}
	}
	return set
}

// die kills a rank. Its peers see that after all that it had sent.
func (n *node) die() {
	n.toAll(func(to *node) { to.MarkDied(n.rank, errors.New("killed")) })
	n.killed.Store(true)
	n.kill()
}

func (n *node) begin() error { return n.Waiter.Err(n.Fault(nil), "test") }

func (n *node) fail(err error) error {
	if f := n.FaultOf(err); f.Cause != channel.CauseNone {
		n.Tell(f)
	}
	return err
}

// gatherNotes is what a communicator does about a gather.
func (n *node) gatherNotes(note []byte) ([][]byte, error) {
	if err := n.begin(); err != nil {
		return nil, err
	}
	all, err := n.Gather(n.ctx, "test gather", note)
	if err != nil {
		return nil, n.fail(err)
	}
	return all, n.begin()
}

// goOn is what a communicator does about a mask, until it has one or the rank is dead.
func (n *node) goOn(set func() rankset.Set) error {
	var err error
	for range 200 {
		if err = n.SetMask(n.ctx, "test mask", set(), nil); err == nil || n.ctx.Err() != nil {
			return err
		}
		if !errors.Is(err, bootstrap.ErrMismatch) {
			_ = n.fail(err)
		}
	}
	return err
}

// awaitAll returns true when all living ranks have come here. It returns false when there is a
// fault, or the rank is dead.
func (n *node) awaitAll() bool {
	f := n.fabric
	here := func(come bool) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		all := rankset.Below(len(f.nodes))
		if f.serving == all {
			return true
		}
		if come {
			f.serving = f.serving.With(n.rank)
		} else {
			f.serving = f.serving.Without(n.rank)
		}
		if f.serving.Union(f.killed()) == all {
			f.serving = all
		}
		return f.serving == all
	}
	for ; n.ctx.Err() == nil; time.Sleep(100 * time.Microsecond) {
		if here(true) {
			return true
		}
		if n.begin() != nil {
			return here(false)
		}
	}
	return false
}

// check looks at all decisions, and at what the living ranks have made of them.
func (f *fabric) check(t interface{ Errorf(string, ...any) }) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := rankset.Below(len(f.nodes))
	for i, d := range f.decided[1:] {
		before := f.decided[i]
		if d.Generation <= before.Generation {
			t.Errorf("decision %+v after %+v", d, before)
		}
		if members := all.Minus(before.Out); members.Minus(d.Out).Empty() && !f.dead[i+1].Contains(members) {
			t.Errorf("decision %+v has no member of %+v, whose members are not dead", d, before)
		}
	}
	var first *node
	for _, n := range f.nodes {
		if n.killed.Load() {
			continue
		}
		own := func(d Decision) bool { return d.Generation == n.Generation() && d.Out == n.Mask() }
		if !slices.ContainsFunc(f.decided, own) {
			t.Errorf("rank %d has mask %v of generation %d, which was not decided", n.rank, n.Mask(), n.Generation())
		}
		if first == nil {
			first = n
		}
		if n.Generation() != first.Generation() || n.Mask() != first.Mask() {
			t.Errorf("rank %d has mask %v of generation %d, rank %d %v of %d", n.rank, n.Mask(), n.Generation(),
				first.rank, first.Mask(), first.Generation())
		}
	}
}
