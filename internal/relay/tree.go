package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weftgo/weft/bootstrap"
)

// attach keeps this node connected to one with a lower number, as long as there is one.
func (n *Node) attach() {
	for n.life.Err() == nil {
		peer := n.candidate()
		if peer < 0 {
			n.pause(n.times.tick)
			continue
		}
		ctx, cancel := context.WithTimeout(n.life, n.times.attach)
		l, err := n.cfg.Dial(ctx, peer)
		cancel()
		if err != nil {
			n.unreached(peer, err)
			n.pause(n.times.tick / 4)
			continue
		}
		over := make(chan struct{})
		n.work.Go(func() { n.serve(l, peer, over) })
		select {
		case <-over:
		case <-n.life.Done():
		}
	}
}

func (n *Node) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-n.life.Done():
	}
}

// candidate is the process to connect to, or -1 if there is none at this time. The tree's own
// parent comes first, then what is above that, then any other with a lower number. Those that did not
// answer a moment ago come last. A process that was given up is asked now and then: it may tell that
// the others have gone on.
func (n *Node) candidate() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	best, lost := -1, -1
	consider := func(i int) {
		switch p := n.processes[i]; {
		case p.gone, n.parts(i):
		case p.died != nil:
			if lost < 0 && n.avoid[i] <= n.clock {
				lost = i
			}
		case best < 0, n.avoid[i] < n.avoid[best] && n.avoid[best] > n.clock:
			best = i
		}
	}
	for i := n.cfg.Self; i > 0; {
		i = (i - 1) / n.cfg.Fanout
		consider(i)
	}
	for i := range n.cfg.Self {
		consider(i)
	}
	if best >= 0 && n.avoid[best] > n.clock {
		return -1
	}
	if best < 0 {
		return lost
	}
	return best
}

// unreached notes that a process did not answer. If its host says for as long as the heartbeat that it is not there, it
// is lost; in between others are asked, who may know that it has left.
func (n *Node) unreached(peer int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.avoid[peer] = n.clock + n.times.attach/4
	switch p := n.processes[peer]; {
	case p.died != nil:
		n.avoid[peer] = n.clock + n.times.heartbeat/2
	case !errors.Is(err, bootstrap.ErrDied):
	case p.missed == 0:
		p.missed = max(n.clock, 1)
	case n.clock-p.missed > n.times.heartbeat:
		n.absent(peer)
	}
}

// absent notes, and tells, that nothing listens in a process's place. The caller holds mu.
func (n *Node) absent(peer int) {
	n.report(news{process: peer, text: "its connection ended, and nothing listens in its place"})
}

// report notes that a process is lost, and tells all others. The caller holds mu.
func (n *Node) report(m news) {
	p := n.processes[m.process]
	if m.process == n.cfg.Self || n.closed || p.gone || p.died != nil && !m.certain {
		return
	}
	n.emit(whatNews, m.append(nil))
	n.believe(n.cfg.Self)
}

// believe takes the news that a process tells. What is not certain is known better by a node that is
// connected to the process. The caller holds mu.
func (n *Node) believe(from int) {
	for _, m := range n.processes[from].told {
		p := n.processes[m.process]
		if m.process == n.cfg.Self || p.gone || p.died != nil && !m.certain {
			continue
		}
		if m.certain || from == n.cfg.Self || !n.beside(m.process) {
			n.lose(m.process, fmt.Errorf("%w: %s", bootstrap.ErrDied, m.text))
		}
		if m.certain {
			n.bury(p)
		}
	}
}

// beside reports whether there is a link to a process. The caller holds mu.
func (n *Node) beside(process int) bool {
	for l := range n.links {
		if l.peer == process {
			return true
		}
	}
	return false
}

// parts reports whether there is a link to a process that leaves. The caller holds mu.
func (n *Node) parts(process int) bool {
	for l := range n.links {
		if l.peer == process && l.leaves {
			return true
		}
	}
	return false
}

// lose gives a process up. The caller holds mu.
func (n *Node) lose(i int, why error) {
	p := n.processes[i]
	if p.died != nil || p.gone || i == n.cfg.Self {
		return
	}
	p.died = why
	n.cfg.Logger.Warn("process lost", "ranks", fmt.Sprint(p.set), "error", why)
	for r := range p.set.Minus(p.left).All() {
		n.tell(Event{Rank: r, Kind: Died, Err: why}, nil)
	}
	n.announce()
	n.settle()
	if n.cfg.Ended != nil && !n.closed {
		n.work.Go(func() { n.askLauncher(i) })
	}
}

// askLauncher looks whether the launcher knows how a lost process has ended: then its end is certain.
func (n *Node) askLauncher(i int) {
	for range 20 {
		if how := n.cfg.Ended(n.processes[i].Ranks[0]); how != "" {
			n.mu.Lock()
			n.report(news{process: i, certain: true, text: "its process ended: " + how})
			n.mu.Unlock()
			return
		}
		if n.pause(100 * time.Millisecond); n.life.Err() != nil {
			return
		}
	}
}

// bury notes that a process's end is certain. From now on nothing that it has said is believed, if it
// comes late. The caller holds mu.
func (n *Node) bury(p *process) {
	if p.gone {
		return
	}
	p.gone = true
	n.gone = n.gone.Union(p.set)
	for l := range n.links {
		if n.processes[l.peer] == p {
			n.cut(l)
		}
	}
	n.announce()
	n.settle()
	n.deliberate()
}

// Witness tells all nodes of the end of a rank's process on this host, which its memory or the kernel
// has shown to this process.
func (n *Node) Witness(rank int, how string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.report(news{process: n.of[rank], certain: true, text: how})
}

// serve uses a link until it ends. If the neighbour is the parent, over is closed as soon as another one
// is needed.
func (n *Node) serve(l Link, peer int, over chan struct{}) {
	n.mu.Lock()
	if n.closed || peer < 0 || peer >= len(n.processes) || peer == n.cfg.Self || n.processes[peer].gone {
		n.mu.Unlock()
		if over != nil {
			close(over)
		}
		l.Cut()
		return
	}
	k := n.open(l, peer, over)
	n.mu.Unlock()

	err := l.Receive(func(b []byte) error { return n.handle(k, b) })

	n.mu.Lock()
	delete(n.links, k)
	k.replace()
	n.settle()
	switch {
	case k.silent(n):
		n.avoid[peer] = n.clock + n.times.attach/4
	case !k.spoke: // it may have left, and another may know
		n.avoid[peer] = n.clock + n.times.tick
	}
	if k.spoke && !k.bye && !n.closed {
		n.cfg.Logger.Debug("link between hosts ended", "ranks", fmt.Sprint(n.processes[peer].set), "error", err)
		n.work.Go(func() { n.probe(peer) })
	}
	n.mu.Unlock()
	l.Cut()
}

// open begins to use a link: the neighbour gets all that this node knows, and then what is new. The
// caller holds mu.
func (n *Node) open(l Link, peer int, over chan struct{}) *link {
	k := &link{Link: l, peer: peer, parent: over != nil, over: over, heard: n.clock}
	for former := range n.links {
		if k.parent && former.parent && former.silent(n) {
			n.cut(former)
		}
	}
	n.links[k] = struct{}{}
	if d := n.known.Load(); d.Generation > 0 {
		l.Send(decided(*d))
	}
	for i, p := range n.processes {
		if p.seq > 0 {
			l.Send(bootstrap.NewMessage(n.state(i)))
		}
	}
	if n.leaving {
		n.ask(k)
	}
	return k
}

// silent reports whether nothing has come by a link for so long that another one is looked for. The
// caller holds mu.
func (l *link) silent(n *Node) bool { return n.clock-l.heard > n.times.attach }

// probe finds out whether a process has ended whose link did. The system closes what a process had
// open in any order.
func (n *Node) probe(peer int) {
	for d := time.Millisecond; d < time.Second; d *= 2 {
		if n.pause(d); n.life.Err() != nil {
			return
		}
		n.mu.Lock()
		settled := n.processes[peer].died != nil || n.processes[peer].gone || n.beside(peer)
		n.mu.Unlock()
		if settled {
			return
		}
		ctx, cancel := context.WithTimeout(n.life, n.times.attach)
		absent := n.cfg.Absent(ctx, peer)
		cancel()
		if absent {
			n.mu.Lock()
			n.absent(peer)
			n.mu.Unlock()
			return
		}
	}
}
