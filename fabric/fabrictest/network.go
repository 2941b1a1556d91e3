package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/internal/provider"
)

// Network connects endpoints. All its methods may be called from any goroutine.
type Network struct {
	class Class

	mu        sync.Mutex
	random    *rand.Rand
	endpoints map[string]*endpoint // by name
	ranks     map[int]*endpoint
	opened    int
	links     []*link // with something underway or said about them
	late      []*packet
	written   map[*endpoint]int // bytes that were posted
	carried   map[*endpoint]int // those of writes of more than a word
	mistakes  []error
}

// New makes a network of a class. The seed decides what it does.
func New(class Class, seed uint64) *Network {
	return &Network{
		class: class, random: rand.New(rand.NewPCG(seed, 0x5eed)),
		endpoints: map[string]*endpoint{}, ranks: map[int]*endpoint{}, written: map[*endpoint]int{},
		carried: map[*endpoint]int{},
	}
}

// Open opens a domain on the network, for the rank that the options name. Their Provider and Source do
// not count.
func (n *Network) Open(ctx context.Context, o fabric.Options) (*fabric.Domain, error) {
	return fabric.New(ctx, o, func() (provider.Endpoint, error) {
		e := n.endpoint()
		n.mu.Lock()
		defer n.mu.Unlock()
		n.ranks[o.Rank] = e // the last one stays
		return e, nil
	})
}

// Written is how many bytes a rank has posted so far, to all others.
func (n *Network) Written(rank int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.written[n.ranks[rank]]
}

// Carried is Written without the words that count signals: of writes of more than 8 bytes.
func (n *Network) Carried(rank int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.carried[n.ranks[rank]]
}

// Check returns the mistakes that were seen so far.
func (n *Network) Check() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.mistakes...)
}

func (n *Network) mistake(format string, args ...any) {
	n.mistakes = append(n.mistakes, fmt.Errorf(format, args...))
}

// Cut makes silence between two ranks: nothing lands, nothing completes, nothing fails.
func (n *Network) Cut(a, b int) { n.between(a, b, func(l *link) { l.cut = true }) }

// CutAfter is a Cut as soon as so many more pieces have landed, in either direction.
func (n *Network) CutAfter(a, b, pieces int) { n.between(a, b, func(l *link) { l.lasts = pieces }) }

// Heal ends a Cut.
func (n *Network) Heal(a, b int) { n.between(a, b, func(l *link) { l.cut, l.lasts = false, 0 }) }

// Reset fails what is underway between two ranks. Some of it may land late all the same, and later
// writes pass.
func (n *Network) Reset(a, b int) { n.between(a, b, n.reset) }

// Kill ends a rank as the end of its process does: what others write to it fails, and later posts are
// never taken.
func (n *Network) Kill(rank int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.ranks[rank]; e != nil {
		n.kill(e)
	}
}

func (n *Network) between(a, b int, do func(*link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	from, to := n.ranks[a], n.ranks[b]
	if from == nil || to == nil {
		return
	}
	do(n.link(from, to))
	do(n.link(to, from))
}

// A link is one direction between two endpoints.
type link struct {
	from, to  *endpoint
	queue     []*packet // in the order of posting
	cut       bool
	lasts     int // pieces until it is; 0: it is not going to be
	connected bool
	refusals  int   // posts that are turned away until the link is connected
	broken    error // of a write that had completed already: the next one fails instead
}

// link finds or makes one.
func (n *Network) link(from, to *endpoint) *link {
	for _, l := range n.links {
		if l.from == from && l.to == to {
			return l
		}
	}
	l := &link{from: from, to: to, refusals: 1 + n.random.IntN(5)}
	n.links = append(n.links, l)
	return l
}

// Errors of the system, with which connections end.
const (
	canceled = 125 // ECANCELED
	noKey    = 266 // FI_ENOKEY
)

func failure(code int, text string) error {
	return &provider.Failure{Call: "write", Code: code, Text: text}
}

// reset fails all that is underway on a link.
func (n *Network) reset(l *link) {
	for _, p := range l.queue {
		n.abandon(p, failure(canceled, "the connection was reset"))
	}
	l.queue = nil
	l.connected, l.refusals = false, 1+n.random.IntN(5)
}

// abandon fails a packet. What is left of it lands late, or never.
func (n *Network) abandon(p *packet, err error) {
	p.snapshot()
	p.complete(err)
	p.hasData = false // nobody is told of what lands late
	if p.lost = true; p.held != nil {
		return
	}
	if n.random.IntN(2) == 0 {
		n.late = append(n.late, p)
	}
}

func (n *Network) kill(e *endpoint) {
	e.dead = true
	for _, l := range n.links {
		if l.from == e || l.to == e {
			n.reset(l)
			l.connected, l.refusals = false, 1
		}
	}
}

// step moves something, if anything can move while an endpoint polls.
func (n *Network) step(poller *endpoint) {
	if len(n.late) > 0 && n.random.IntN(4) == 0 {
		i := n.random.IntN(len(n.late))
		p := n.late[i]
		if !p.to.dead && p.land() != nil || len(p.left) == 0 || p.to.dead {
			n.late = append(n.late[:i], n.late[i+1:]...)
		}
	}
	if len(n.links) == 0 {
		return
	}
	at := n.random.IntN(len(n.links))
	for i := range n.links {
		l := n.links[(at+i)%len(n.links)]
		if n.moves(l, poller) {
			n.move(l)
			return
		}
	}
}

// moves says whether a link has something that can move now.
func (n *Network) moves(l *link, poller *endpoint) bool {
	return len(l.queue) > 0 && !l.cut && (!n.class.Manual || l.to == poller)
}

// move lands a piece of one of a link's packets.
func (n *Network) move(l *link) {
	i := 0
	if !n.class.Ordered {
		i = n.random.IntN(min(len(l.queue), 16))
	}
	p := l.queue[i]
	if p.early && !p.completed && n.random.IntN(4) == 0 {
		if _, err := p.reach(); err == nil { // keys are checked before anything completes
			p.snapshot()
			p.complete(nil)
		}
	}
	if err := p.land(); err != nil {
		if p.completed {
			l.broken = err
		}
		l.queue = append(l.queue[:i], l.queue[i+1:]...)
		p.complete(err)
		n.reset(l)
		return
	}
	if l.lasts > 0 {
		l.lasts--
		l.cut = l.lasts == 0
	}
	if len(p.left) > 0 {
		return
	}
	l.queue = append(l.queue[:i], l.queue[i+1:]...)
	if p.hasData {
		p.to.queue(provider.Completion{Arrived: true, Data: p.data})
	}
	p.complete(nil)
}
