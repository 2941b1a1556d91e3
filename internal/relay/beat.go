package relay

import (
	"fmt"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/rankset"
)

// times follow from the heartbeat: after so long a silence a host is lost.
type times struct {
	heartbeat time.Duration
	attach    time.Duration // after so long a silence of its parent a node looks for another
	grace     time.Duration // for so long a node without a majority waits for news that an end is certain
	stall     time.Duration // after so long a silence a neighbour is said to be silent
	beat      time.Duration // between two beats of a host, and of a link
	tick      time.Duration // between two looks at all that
}

func timesOf(heartbeat time.Duration) times {
	return times{
		heartbeat: heartbeat, attach: heartbeat / 3, grace: heartbeat / 5, stall: heartbeat / 6, beat: heartbeat / 20,
		tick: min(max(heartbeat/50, 2*time.Millisecond), 100*time.Millisecond),
	}
}

// tick beats, shows the members' statuses, and looks for silence, again and again.
func (n *Node) tick() {
	ticker := time.NewTicker(n.times.tick)
	defer ticker.Stop()
	last, beaten := time.Now(), time.Duration(0)
	for first := true; ; first = false {
		n.mu.Lock()
		if n.closed {
			n.mu.Unlock()
			return
		}
		// Time for which this process stood still says nothing of the others.
		now := time.Now()
		n.clock += min(now.Sub(last), n.times.heartbeat/10)
		last = now
		n.show(n.waiting()...)
		if first || n.clock-beaten >= n.times.beat {
			beaten = n.clock
			n.beat(first)
		}
		n.listen()
		if n.decides() {
			n.able = n.clock
		}
		n.unable.Store(n.clock-n.able > n.times.grace)
		n.mu.Unlock()
		select {
		case <-ticker.C:
		case <-n.life.Done():
			return
		}
	}
}

// waiting are the members that have waited for one thing since the last look, or wait no more. The caller
// holds mu.
func (n *Node) waiting() (long []*Member) {
	for _, m := range n.members {
		what := control.WaitsFor(m.page)
		if what == m.waits {
			long = append(long, m)
		}
		m.waits = what
	}
	return long
}

// beat shows that this host is there, unless another of its processes does, and that this link is.
// The caller holds mu.
func (n *Node) beat(first bool) {
	for l := range n.links {
		if !l.said {
			l.Send(pingMessage)
		}
	}
	own := n.processes[n.cfg.Self]
	for _, p := range n.processes[:n.cfg.Self] {
		if !first && p.Host == own.Host && p.died == nil && !p.gone && n.clock-n.hosts[p.Host] < 2*n.times.beat {
			return
		}
	}
	n.emit(whatBeat, nil)
}

// listen looks for links and hosts that are silent. The caller holds mu.
func (n *Node) listen() {
	complaint := -1
	for l := range n.links {
		quiet := n.clock - l.heard
		if quiet > n.times.stall && complaint < l.peer {
			complaint = l.peer
		}
		if l.parent && quiet > n.times.attach || quiet > n.times.heartbeat {
			n.cut(l)
		}
	}
	own := n.processes[n.cfg.Self]
	if complaint != own.complaint {
		n.emit(whatComplaint, appendRank(nil, complaint+1))
	}
	for h, heard := range n.hosts {
		if h == own.Host || n.clock-heard <= n.times.heartbeat {
			continue
		}
		why := fmt.Errorf("%w: nothing was heard of its host for %s, which %s sets", bootstrap.ErrDied,
			bootstrap.Seconds(n.times.heartbeat), Variable)
		for i, p := range n.processes {
			if p.Host == h && !p.gone {
				n.lose(i, why)
			}
		}
	}
}

// Behind gives the rank that keeps what a peer shows from being seen here, or the peer if there is
// none: a rank of the process on the way that is silent.
func (m *Member) Behind(peer int) int {
	n := m.node
	n.mu.Lock()
	defer n.mu.Unlock()
	silent := func(i int) bool { return n.clock-n.hosts[n.processes[i].Host] > n.times.stall }
	blame := func(i int) int {
		if r := n.processes[i].set.Minus(n.known.Load().Out).Lowest(); r >= 0 {
			return r
		}
		return peer
	}
	if m.near[peer] != nil || !silent(n.of[peer]) {
		return peer
	}
	for l := range n.links {
		if n.clock-l.heard > n.times.stall {
			return blame(l.peer)
		}
	}
	for i, p := range n.processes {
		if p.complaint >= 0 && p.complaint != n.cfg.Self && !silent(i) {
			return blame(p.complaint)
		}
	}
	return peer
}

// reachable is the ranks of processes that have not been given up. The caller holds mu.
func (n *Node) reachable() (set rankset.Set) {
	for _, p := range n.processes {
		if p.died == nil && !p.gone {
			set = set.Union(p.set)
		}
	}
	return set
}

// Variable is the environment variable that says after how long a silence a host is lost, as a
// duration: "5s".
const Variable = "WEFT_HEARTBEAT"

// DefaultHeartbeat is how long that is without it.
const DefaultHeartbeat = 5 * time.Second
