package relay

import (
	"sync"
	"time"

	"github.com/weftgo/weft/internal/rankset"
)

// farewell is how long a node that leaves waits until its neighbours have taken its last words, and how long at least
// for theirs.
const farewell = time.Second

// Leave says that the rank has left. The node ends with its last member.
func (m *Member) Leave() {
	n := m.node
	n.mu.Lock()
	if n.members[m.rank] != m {
		n.mu.Unlock()
		return
	}
	delete(n.members, m.rank)
	delete(n.wants, m.rank)
	last := n.last()
	if !last {
		n.emit(whatLeft, appendRank(nil, m.rank))
	}
	n.mu.Unlock()
	if last {
		n.close(rankset.Of(m.rank))
	}
}

// Forsake says that a rank of this process does not join after all.
func (n *Node) Forsake() {
	n.mu.Lock()
	n.forsaken = true
	last := n.last()
	n.mu.Unlock()
	if last {
		n.Close()
	}
}

// last reports whether no member is left, nor to come. The caller holds mu.
func (n *Node) last() bool {
	return len(n.members) == 0 && (n.forsaken || n.joined >= len(n.cfg.Processes[n.cfg.Self].Ranks))
}

// Close ends a node, and calls what [Node.OnClose] has set. Members leave by [Member.Leave].
func (n *Node) Close() { n.close(rankset.Set{}) }

// OnClose sets what is called once the node has ended.
func (n *Node) OnClose(f func()) { n.onLast = f }

// close ends a node whose last ranks leave now.
//
// Ranks that share memory may have finished a call together before the messages of one have come to the
// node of another. Hence a node on which others depend first passes on what its neighbours have sent until
// they had read that it leaves. The ranks' end is the last thing that it says. It waits for its neighbours for
// about as long as a host may be silent: those that it leaves behind may be short of processors.
func (n *Node) close(ranks rankset.Set) {
	n.mu.Lock()
	if n.leaving {
		n.mu.Unlock()
		return
	}
	n.leaving = true
	for l := range n.links {
		n.ask(l)
	}
	n.settle()
	n.mu.Unlock()

	late := time.NewTimer(max(farewell, min(n.times.heartbeat, DefaultHeartbeat)))
	defer late.Stop()
	select {
	case <-n.drained:
	case <-late.C:
		if n.cfg.alone != nil {
			n.cfg.alone()
		}
	}

	n.mu.Lock()
	for r := range ranks.All() {
		n.emit(whatLeft, appendRank(nil, r))
	}
	n.closed = true
	if n.retry != nil {
		n.retry.Stop()
	}
	links := make([]*link, 0, len(n.links))
	for l := range n.links {
		n.say(l)
		l.shut = true
		links = append(links, l)
	}
	onLast := n.onLast
	n.onLast = nil
	n.mu.Unlock()
	n.end()

	deadline := time.Now().Add(farewell)
	var shut sync.WaitGroup
	for _, l := range links {
		shut.Go(func() { l.Shut(deadline) })
	}
	shut.Wait()
	// Peers end their side when they have read all. One that does not read has to do without.
	linger := time.AfterFunc(time.Until(deadline), func() {
		for _, l := range links {
			l.Cut()
		}
	})
	n.work.Wait()
	linger.Stop()
	if onLast != nil {
		onLast()
	}
}

// ask tells a neighbour that this node leaves, and asks for its last word. The caller holds mu.
func (n *Node) ask(l *link) {
	if !l.said {
		l.asked = true
		l.Send(leaveMessage)
	}
}

// say sends a neighbour the last word. The caller holds mu.
func (n *Node) say(l *link) {
	if !l.said {
		l.said = true
		l.Send(byeMessage)
	}
}

// leaves notes that a neighbour leaves. A node that stays gives it its last word, and looks for another parent if it
// needs one. One that leaves, too, has found its heir if that is its parent. The caller holds mu.
func (n *Node) leaves(l *link) {
	l.leaves = true
	n.avoid[l.peer] = n.clock + n.times.attach/4
	if n.leaving && !l.said {
		n.settle()
		return
	}
	n.say(l)
	l.replace()
}

// replace has another parent looked for, if this link is to one. The caller holds mu.
func (l *link) replace() {
	if l.over != nil {
		close(l.over)
		l.over = nil
	}
}

// settle looks how far the farewells of this node are. The caller holds mu.
//
// It waits until each neighbour has answered, and for the ranks' end of children that leave. It needs an heir, which is
// to pass on this node's end: a neighbour that has answered, and has not had the last word. A child that leaves, too,
// gets that at once, and makes this node its heir. Nodes wait for their neighbours' answers and their children's ends
// alone, so never for each other. A node whose heir this one is, and which has not said its end, answers a last time.
func (n *Node) settle() {
	select {
	case <-n.drained: // it has an heir, which waits for its ranks' end
		return
	default:
	}
	if !n.leaving || n.closed {
		return
	}
	waits, heir := false, false
	for l := range n.links {
		if l.leaves && !l.parent {
			n.say(l)
		}
		waits = waits || !l.bye && (l.asked || l.leaves && !l.parent)
		heir = heir || l.bye && !l.said && !n.processes[l.peer].gone
	}
	if waits || !heir && n.expects() || n.resigns() {
		return
	}
	close(n.drained)
}

// resigns asks the parents that leave and have this node for an heir, and reports whether an answer is missing. They
// answer at once: they have said their ranks' end by then, or look for another heir. The caller holds mu.
func (n *Node) resigns() (waits bool) {
	for l := range n.links {
		if !l.said || !l.leaves || l.bye {
			continue
		}
		if waits = true; !l.asked {
			l.asked = true
			l.Send(leaveMessage)
		}
	}
	return waits
}

// expects reports whether there are other processes, as far as this node knows, that are to have what
// this one has said, and that have it from others alone. The caller holds mu.
func (n *Node) expects() bool {
	if n.processes[n.cfg.Self].seq == 0 {
		return false
	}
	for i, p := range n.processes {
		if i != n.cfg.Self && p.died == nil && !p.gone && !n.beside(i) {
			return true
		}
	}
	return false
}
