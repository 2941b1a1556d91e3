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
		// Time for which this process stood still, or had no processor, says nothing of the others.
		now := time.Now()
		n.clock += min(now.Sub(last), 2*n.times.tick)
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
		if !l.shut {
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
		switch {
		case quiet > n.times.heartbeat && quiet > n.patience(n.processes[l.peer].Host):
			n.cut(l)
		case l.over != nil && quiet > n.times.attach:
			// It stays until there is another: what it brings late is not lost.
			n.avoid[l.peer] = n.clock + n.times.attach/4
			l.replace()
		}
	}
	own := n.processes[n.cfg.Self]
	if complaint != own.complaint {
		n.emit(whatComplaint, appendRank(nil, complaint+1))
	}
	for h, heard := range n.hosts {
		quiet := n.clock - heard
		if h == own.Host || quiet <= n.times.heartbeat {
			continue
		}
		limit, sets := n.patience(h), "which"
		if quiet <= limit {
			continue
		}
		if limit > n.times.heartbeat {
			sets = fmt.Sprint(unread, " times what")
		}
		why := fmt.Errorf("%w: nothing was heard of its host for %s, %s %s sets", bootstrap.ErrDied,
			bootstrap.Seconds(limit), sets, Variable)
		for i, p := range n.processes {
			if p.Host == h && !p.gone {
				n.lose(i, why)
			}
		}
	}
}

// unread is for how many heartbeats nothing may be heard of a host whose bytes have come and are yet to be read: this
// process is short of processors. On a machine of two processors with 17 threads ready to run, none of a process's ran
// for 3.3 s.
const unread = 4

// patience is how long nothing may be heard of a host before it is lost. The caller holds mu.
func (n *Node) patience(host int) time.Duration {
	for l := range n.links {
		if n.processes[l.peer].Host == host && l.Unread() {
			return unread * n.times.heartbeat
		}
	}
	return n.times.heartbeat
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
