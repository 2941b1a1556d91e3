package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/rankset"
)

// Process is one process of a job: its ranks, ascending, and the number of its host. Processes of
// one host see each other's end by themselves.
type Process struct {
	Ranks []int
	Host  int
}

// Link carries messages to and from the node of another process. A [bootstrap.Link] is one.
type Link interface {
	Send(bootstrap.Message)
	Queued() int
	Unread() bool
	Receive(handle func([]byte) error) error
	Shut(deadline time.Time)
	Cut()
}

// Config says what a node is made with.
type Config struct {
	Self      int       // this process's place among the processes
	Processes []Process // ascending by their lowest rank
	Size      int       // ranks
	Heartbeat time.Duration
	Fanout    int // how many processes connect to one at most; 32 if 0

	// Dial connects to a process. The error wraps [bootstrap.ErrDied] if its host says that nothing
	// listens there. Absent asks for just that.
	Dial   func(ctx context.Context, process int) (Link, error)
	Absent func(ctx context.Context, process int) bool
	// Ended, if set, is what the launcher says of how a rank's process has ended; empty if it has not.
	Ended  func(rank int) string
	Logger *slog.Logger

	learned func(last, next control.Decision, chosen bool) // for tests; chosen: by votes seen here
	alone   func()                                         // for tests: it leaves without an heir or an answer
}

// EventKind is what has become of a rank.
type EventKind uint8

// The kinds of [Event].
const (
	Left EventKind = iota + 1 // it left in good order
	Died                      // its process ended, or its host cannot be reached
)

// Event tells a member of a rank on another host.
type Event struct {
	Rank int
	Kind EventKind
	Err  error // of Died: wraps [bootstrap.ErrDied]
}

// ErrClosed is why a node that has left takes no member.
var ErrClosed = errors.New("this process's node has left")

// Node is one process's place in the tree, for one communicator.
type Node struct {
	cfg    Config
	of     []int    // by rank: its process
	pages  [][]byte // by rank: the copy of its page
	times  times
	known  atomic.Pointer[control.Decision]
	unable atomic.Bool // too few processes for a decision can be reached, and have been for a while
	life   context.Context
	end    context.CancelFunc
	work   sync.WaitGroup
	onLast func() // when the last member has left

	mu        sync.Mutex
	leaving   bool // nothing but farewells is left to do
	drained   chan struct{}
	closed    bool
	clock     time.Duration // for which this process has been awake
	able      time.Duration // when enough processes for a decision could be reached last
	processes []*process
	hosts     []time.Duration // by host: when it was heard last
	gone      rankset.Set     // ranks of processes whose end is certain
	members   map[int]*Member
	joined    int
	forsaken  bool // a rank of this process will not join
	links     map[*link]struct{}
	avoid     []time.Duration // by process: dialled again from then on
	wants     map[int]want    // by rank
	retry     *time.Timer
	events    []delivery
	wake      chan struct{} // there are events
	changed   chan struct{} // closed and replaced when a process is heard for the first time, or lost
}

// process is what this node knows of a process.
type process struct {
	Process
	set       rankset.Set
	seq       uint64 // of the last message of its stream; 0: none
	left      rankset.Set
	shown     rankset.Set // ranks that have published anything
	aborts    []abort
	complaint int // the process that it hears nothing of, beside it in the tree; -1: none
	told      []news
	proposal  proposal
	vote      vote
	missed    time.Duration // since when nothing listens in its place; others may know that it left. 0: something does
	died      error         // nothing more is expected of it
	gone      bool          // its end is certain, and nothing of it is believed any more
}

// link is a link in use.
type link struct {
	Link
	peer   int
	parent bool
	heard  time.Duration
	spoke  bool          // something has come by it
	over   chan struct{} // of a parent: closed once another one is needed

	// How a link ends: one end asks for the other's last word that it has to pass on, gets it, and says its own.
	asked  bool // this node leaves, and has said so
	leaves bool // the neighbour leaves, and has said so
	said   bool // the neighbour need not pass on what this node sends from here on
	bye    bool // this node need not pass on what the neighbour sends from here on
	shut   bool // this node sends nothing more
}

type delivery struct {
	Event
	to *Member // nil: all members
}

// New makes a node. Links are taken in and made after [Node.Start].
func New(cfg Config) *Node {
	n := &Node{
		cfg: cfg, of: make([]int, cfg.Size), pages: make([][]byte, cfg.Size), times: timesOf(cfg.Heartbeat),
		members: map[int]*Member{}, links: map[*link]struct{}{}, wants: map[int]want{},
		avoid: make([]time.Duration, len(cfg.Processes)),
		wake:  make(chan struct{}, 1), changed: make(chan struct{}), drained: make(chan struct{}),
	}
	if n.cfg.Fanout == 0 {
		n.cfg.Fanout = 32
	}
	n.known.Store(&control.Decision{})
	n.life, n.end = context.WithCancel(context.Background())
	slab := make([]byte, cfg.Size*pageStride+channel.Stride)
	slab = slab[-uintptr(unsafe.Pointer(&slab[0]))%channel.Stride:]
	for r := range n.pages {
		n.pages[r] = slab[r*pageStride : (r+1)*pageStride : (r+1)*pageStride]
	}
	hosts := 0
	for i, p := range cfg.Processes {
		n.processes = append(n.processes, &process{Process: p, set: rankset.Of(p.Ranks...), complaint: -1})
		for _, r := range p.Ranks {
			n.of[r] = i
		}
		hosts = max(hosts, p.Host+1)
	}
	// A process may begin a little later than this one.
	n.hosts = make([]time.Duration, hosts)
	for h := range n.hosts {
		n.hosts[h] = 3 * cfg.Heartbeat
	}
	return n
}

const pageStride = (control.PageSize + channel.Stride - 1) / channel.Stride * channel.Stride

// Start begins to connect.
func (n *Node) Start() {
	n.spawn(n.tick)
	n.spawn(n.deliver)
	n.spawn(n.attach)
}

// spawn runs something until Close, which waits for it.
func (n *Node) spawn(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.work.Go(f)
	}
}

// Admit takes in a link that a process has made.
func (n *Node) Admit(l Link, peer int) {
	n.mu.Lock()
	closed := n.closed
	if !closed {
		n.work.Go(func() { n.serve(l, peer, nil) })
	}
	n.mu.Unlock()
	if closed {
		l.Cut()
	}
}

// ProcessOf is the process of a rank.
func (n *Node) ProcessOf(rank int) int { return n.of[rank] }

// Formed returns when every process was heard of, or with an error of the first that is lost or was
// not when the context ended.
func (n *Node) Formed(ctx context.Context) error {
	for {
		n.mu.Lock()
		missing, changed := -1, n.changed
		for i, p := range n.processes {
			if p.died != nil {
				n.mu.Unlock()
				return &bootstrap.PeerError{Rank: p.Ranks[0], Op: "join", Err: p.died}
			}
			if p.seq == 0 && i != n.cfg.Self && missing < 0 {
				missing = i
			}
		}
		n.mu.Unlock()
		if missing < 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err := fmt.Errorf("%w: nothing was heard of its process between hosts", context.Cause(ctx))
			return &bootstrap.PeerError{Rank: n.cfg.Processes[missing].Ranks[0], Op: "join", Err: err}
		}
	}
}

// announce wakes those that wait for a change. The caller holds mu.
func (n *Node) announce() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// tell queues an event for all members, or one. The caller holds mu.
func (n *Node) tell(e Event, to *Member) {
	n.events = append(n.events, delivery{e, to})
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// deliver calls the members' handlers, in the order of events.
func (n *Node) deliver() {
	for {
		select {
		case <-n.wake:
		case <-n.life.Done():
			return
		}
		n.mu.Lock()
		events := n.events
		n.events = nil
		n.mu.Unlock()
		for _, e := range events {
			n.mu.Lock()
			var to []*Member
			for _, m := range n.members {
				if (e.to == nil || e.to == m) && m.near[e.Rank] == nil {
					to = append(to, m)
				}
			}
			n.mu.Unlock()
			for _, m := range to {
				m.onEvent(e.Event)
			}
		}
	}
}

// Member is a rank of this process: a [control.Transport] to the ranks of other hosts.
type Member struct {
	node    *Node
	rank    int
	page    []byte
	near    [][]byte // by rank: pages that this process maps
	onEvent func(Event)
	status  [3][]byte     // as its parts were sent last
	waits   control.Waits // as it was looked at last
}

// Join makes a rank of this process a member. Its own page is near, with those of all ranks that it
// shares memory with; the others' are nil. OnEvent is called for ranks that are not near, one call at
// a time, and must not wait.
func (n *Node) Join(rank int, near [][]byte, onEvent func(Event)) (*Member, error) {
	m := &Member{node: n, rank: rank, page: near[rank], near: near, onEvent: onEvent}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leaving {
		return nil, ErrClosed
	}
	n.members[rank] = m
	n.joined++
	for _, p := range n.processes {
		for _, a := range p.aborts {
			if a.to.Has(rank) {
				control.AbortPage(m.page, a.fault)
			}
		}
		for _, r := range p.Ranks {
			switch {
			case p.left.Has(r):
				n.tell(Event{Rank: r, Kind: Left, Err: bootstrap.ErrLeft}, m)
			case p.died != nil:
				n.tell(Event{Rank: r, Kind: Died, Err: p.died}, m)
			}
		}
	}
	return m, nil
}

// View is the copy of a rank's page.
func (n *Node) View(rank int) []byte { return n.pages[rank] }

// Publish implements [control.Transport].
func (m *Member) Publish(part control.Part) {
	n := m.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.members[m.rank] != m {
		return
	}
	n.emit(whatPart, m.part(part))
	if part == control.Intent {
		n.reconsider(m)
	}
}

// part encodes a part of the rank's own page.
func (m *Member) part(part control.Part) []byte {
	return control.AppendPart(append(appendRank(nil, m.rank), byte(part)), m.page, part)
}

// Abort implements [control.Transport].
func (m *Member) Abort(peers rankset.Set, f channel.Fault) {
	var far rankset.Set
	for p := range peers.All() {
		if m.near[p] == nil {
			far = far.With(p)
			continue
		}
		control.AbortPage(m.near[p], f)
	}
	n := m.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if far = far.Minus(n.gone); n.members[m.rank] != m || far.Empty() || f.Cause == channel.CauseMasked {
		return // who is left out learns it from the decision
	}
	n.show(m) // the words of the fault come first
	n.emit(whatAbort, abort{from: m.rank, fault: f, to: far}.append(nil))
}

// Decision implements [control.Transport].
func (m *Member) Decision() control.Decision { return *m.node.known.Load() }
