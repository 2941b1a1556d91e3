package relay

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/rankset"
)

// board is processes whose messages a test delivers one by one, in an order of its own.
type board struct {
	ledger
	nodes   []*Node
	members []*Member
	dead    []bool
	wires   map[[2]int]*wire // from, to
}

// wire is one direction between two processes that are neighbours.
type wire struct {
	on    *link // of the receiver
	queue [][]byte
}

func (w *wire) Send(m bootstrap.Message)         { w.queue = append(w.queue, m.Bytes()) }
func (w *wire) Queued() int                      { return 0 }
func (w *wire) Unread() bool                     { return false }
func (w *wire) Receive(func([]byte) error) error { return nil }
func (w *wire) Shut(time.Time)                   {}
func (w *wire) Cut()                             {}

func newBoard(perProcess []int) *board {
	b := &board{wires: map[[2]int]*wire{}, dead: make([]bool, len(perProcess))}
	var processes []Process
	for i, n := range perProcess {
		p := Process{Host: i}
		for range n {
			p.Ranks = append(p.Ranks, b.size)
			b.size++
		}
		processes = append(processes, p)
	}
	for i, p := range processes {
		n := New(Config{
			Self: i, Processes: processes, Size: b.size, Heartbeat: time.Hour, Logger: slog.New(slog.DiscardHandler),
			Absent:  func(context.Context, int) bool { return false },
			learned: func(last, next control.Decision, chosen bool) { b.learn(i, last, next, chosen) },
		})
		// With a timer in place, even one that has run out, the node sets none of its own, which would send while the
		// test looks at wires. Attempts begin anew by retryNow.
		n.retry = time.AfterFunc(0, func() {})
		b.nodes = append(b.nodes, n)
		near := make([][]byte, b.size)
		for _, r := range p.Ranks {
			near[r] = aligned(control.PageSize)
		}
		for _, r := range p.Ranks {
			m, err := n.Join(r, near, func(Event) {})
			if err != nil {
				panic(err)
			}
			b.members = append(b.members, m)
		}
	}
	return b
}

// connect makes two processes neighbours, or anew: what was on its way is lost.
func (b *board) connect(i, j int) {
	b.part(i, j)
	for _, d := range [][2]int{{i, j}, {j, i}} {
		b.wires[d] = &wire{}
	}
	for _, d := range [][2]int{{i, j}, {j, i}} {
		n := b.nodes[d[0]]
		n.mu.Lock()
		b.wires[[2]int{d[1], d[0]}].on = n.open(b.wires[d], d[1], nil)
		n.mu.Unlock()
	}
}

func (b *board) part(i, j int) {
	for _, d := range [][2]int{{i, j}, {j, i}} {
		if w := b.wires[d]; w != nil {
			n := b.nodes[d[1]]
			n.mu.Lock()
			delete(n.links, w.on)
			n.mu.Unlock()
			delete(b.wires, d)
		}
	}
}

// deliver delivers the oldest message of a wire, and reports whether there was one that arrived.
func (b *board) deliver(d [2]int) bool {
	w := b.wires[d]
	if w == nil || len(w.queue) == 0 || b.dead[d[1]] {
		return false
	}
	m := w.queue[0]
	w.queue = w.queue[1:]
	if err := b.nodes[d[1]].handle(w.on, m); err != nil {
		b.part(d[0], d[1])
	}
	return true
}

// settle delivers everything.
func (b *board) settle() {
	for moved := true; moved; {
		moved = false
		for i := range b.nodes {
			for j := range b.nodes {
				for b.deliver([2]int{i, j}) {
					moved = true
				}
			}
		}
	}
}

// retryNow is what a process does a moment after its attempt was overtaken.
func (n *Node) retryNow() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, wanted := n.wanted(); wanted && n.try() {
		n.deliberate()
	}
}

// want makes a rank want a decision: any that it is in itself.
func (b *board) want(m *Member, out rankset.Set, ahead int) {
	last := m.Decision()
	next := control.Decision{Generation: last.Generation + 1 + uint64(ahead), Leader: m.rank, Out: out.Without(m.rank)}
	m.Decide(last.Generation, next)
}

// TestVotes lets processes vote while messages come in any order, links break, and processes die, seen by
// others or not, with messages of theirs still on the way. All learn the same decisions in the same order.
func TestVotes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(2, 5).Draw(t, "processes")
		b := newBoard(rapid.SliceOfN(rapid.IntRange(1, 2), count, count).Draw(t, "ranks"))
		process := rapid.IntRange(0, count-1)
		pair := func() (i, j int) {
			i = process.Draw(t, "i")
			return i, (i + rapid.IntRange(1, count-1).Draw(t, "j")) % count
		}
		for i := 1; i < count; i++ {
			b.connect(i, (i-1)/2)
		}
		for range rapid.IntRange(20, 200).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{
				"deliver", "deliver", "deliver", "deliver", "deliver", "deliver", "want", "retry", "withdraw", "connect", "part",
				"kill", "see",
			}).Draw(t, "what") {
			case "deliver":
				var full [][2]int
				for i := range count {
					for j := range count {
						if w := b.wires[[2]int{i, j}]; w != nil && len(w.queue) > 0 && !b.dead[j] {
							full = append(full, [2]int{i, j})
						}
					}
				}
				if len(full) > 0 {
					d := rapid.SampledFrom(full).Draw(t, "wire")
					for range rapid.IntRange(1, 6).Draw(t, "messages") {
						b.deliver(d)
					}
				}
			case "want":
				m := b.members[rapid.IntRange(0, b.size-1).Draw(t, "rank")]
				if !b.dead[m.node.cfg.Self] {
					out := rapid.SliceOfN(rapid.IntRange(0, b.size-1), 0, b.size).Draw(t, "out")
					b.want(m, rankset.Of(out...), rapid.IntRange(0, 2).Draw(t, "ahead"))
				}
			case "retry":
				if i := process.Draw(t, "i"); !b.dead[i] {
					b.nodes[i].retryNow()
				}
			case "withdraw":
				m := b.members[rapid.IntRange(0, b.size-1).Draw(t, "rank")]
				if !b.dead[m.node.cfg.Self] {
					m.Publish(control.Intent)
				}
			case "connect":
				if i, j := pair(); !b.dead[i] && !b.dead[j] {
					b.connect(i, j)
				}
			case "part":
				b.part(pair())
			case "kill": // what it has sent stays on its way
				if i := process.Draw(t, "i"); slices.Contains(b.dead[:i], false) || slices.Contains(b.dead[i+1:], false) {
					b.dead[i] = true
					b.bury(i, b.nodes[i].cfg.Processes[i].Ranks)
				}
			case "see":
				if i, j := pair(); b.dead[j] && !b.dead[i] {
					b.nodes[i].Witness(b.nodes[j].cfg.Processes[j].Ranks[0], "seen")
				}
			}
		}
		b.end(t)
	})
}

// end connects all that live, and tells them who does not. They know the same then, and decide once more.
func (b *board) end(t *rapid.T) {
	var living []int
	for i := range b.nodes {
		for j := range b.nodes {
			if b.dead[i] && !b.dead[j] {
				b.nodes[j].Witness(b.nodes[i].cfg.Processes[i].Ranks[0], "seen")
			}
		}
		if !b.dead[i] {
			living = append(living, i)
		}
	}
	for _, i := range living {
		for _, j := range living {
			if i < j {
				b.connect(i, j)
			}
		}
	}
	b.settle()
	b.check(t)
	first := b.nodes[living[0]]
	before := *first.known.Load()
	leader := b.members[slices.IndexFunc(b.members, func(m *Member) bool { return m.node == first })]
	for range 20 {
		if first.known.Load().Generation == before.Generation {
			b.want(leader, first.gone, 0)
			first.retryNow()
			b.settle()
		}
	}
	if first.known.Load().Generation == before.Generation {
		t.Errorf("those that live do not decide: %+v", before)
	}
	for _, i := range living {
		if *b.nodes[i].known.Load() != *first.known.Load() {
			t.Errorf("process %d knows %+v, process %d %+v", i, *b.nodes[i].known.Load(), living[0], *first.known.Load())
		}
	}
	for _, n := range b.nodes {
		n.mu.Lock()
		n.closed = true
		n.mu.Unlock()
	}
	b.check(t)
}
