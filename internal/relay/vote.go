package relay

import (
	"math/rand/v2"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/rankset"
)

// ballot numbers attempts to decide. No two processes have the same.
type ballot struct {
	number  uint32
	process uint16
}

func (a ballot) before(b ballot) bool {
	return a.number < b.number || a.number == b.number && a.process < b.process
}

// proposal is what a process that leads an attempt shows. The slot is the generation of the decision
// that is to be replaced.
type proposal struct {
	slot   uint64
	ballot ballot
	accept bool             // the value is to be accepted
	value  control.Decision // with accept
}

// vote is what a process shows of the attempts at a slot. It takes part in none before the one that
// it has promised.
type vote struct {
	slot     uint64
	promised ballot
	accepted ballot
	value    control.Decision // that was accepted
	gone     rankset.Set      // ranks that the voter has believed nothing of since
}

func (b ballot) append(to []byte) []byte {
	return le.AppendUint16(le.AppendUint32(to, b.number), b.process)
}

func (f *fields) ballot() ballot { return ballot{f.U32(), f.U16()} }

func (p proposal) append(b []byte) []byte {
	b = append(p.ballot.append(le.AppendUint64(b, p.slot)), 0)
	if p.accept {
		b[len(b)-1] = 1
	}
	return appendDecision(b, p.value)
}

func (f *fields) proposal() proposal {
	return proposal{slot: f.U64(), ballot: f.ballot(), accept: f.U8() == 1, value: f.decision()}
}

func (v vote) append(b []byte) []byte {
	b = v.accepted.append(v.promised.append(le.AppendUint64(b, v.slot)))
	return control.AppendSet(appendDecision(b, v.value), v.gone)
}

func (f *fields) vote() vote {
	return vote{slot: f.U64(), promised: f.ballot(), accepted: f.ballot(), value: f.decision(), gone: f.set()}
}

// want is a decision that a member wants.
type want struct {
	slot uint64
	next control.Decision
}

// Decide implements [control.Transport].
func (m *Member) Decide(last uint64, next control.Decision) {
	n := m.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.members[m.rank] == m && n.succeeds(next.Out) {
		n.wants[m.rank] = want{last, next}
		n.deliberate()
	}
}

// reconsider drops what a member wants when it proposes something else. The caller holds mu.
func (n *Node) reconsider(m *Member) {
	w, ok := n.wants[m.rank]
	if target, out := control.Proposed(m.page); !ok || target == w.next.Generation && out == w.next.Out {
		return
	}
	delete(n.wants, m.rank)
	own := n.processes[n.cfg.Self].proposal
	if own.slot == w.slot && own.accept && own.value == w.next {
		n.emit(whatProposal, proposal{}.append(nil)) // who has accepted it has, but no one else need
	}
}

// Decides implements [control.Transport].
func (m *Member) Decides(out rankset.Set) bool {
	n := m.node
	if n.unable.Load() {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.succeeds(out)
}

// succeeds reports whether a decision that leaves these ranks out may follow the known one: it has a member of that, or
// the end of all members is certain. A side that was left out, and has lost the others' connections alone, would
// otherwise leave them out in turn: they vote, whatever the value is. The caller holds mu.
func (n *Node) succeeds(out rankset.Set) bool {
	members := rankset.Below(n.cfg.Size).Minus(n.known.Load().Out)
	return !members.Minus(out).Empty() || n.gone.Contains(members)
}

// decides reports whether enough processes can be reached for a decision. The caller holds mu.
func (n *Node) decides() bool {
	reach := n.reachable()
	return n.majority(reach) || reach.Union(n.gone) == rankset.Below(n.cfg.Size)
}

// majority reports whether ranks are more than half of those that the last decision left in, or half
// with the lowest of them. Any two such sets share a rank.
func (n *Node) majority(ranks rankset.Set) bool {
	members := rankset.Below(n.cfg.Size).Minus(n.known.Load().Out)
	have := members.Minus(members.Minus(ranks))
	return 2*have.Len() > members.Len() || 2*have.Len() == members.Len() && have.Lowest() == members.Lowest()
}

// enough reports whether the processes whose votes fit can decide: if they have a majority, or if
// none but them is left, and none of them can still learn from those that are gone.
func (n *Node) enough(slot uint64, fits func(vote) bool) bool {
	var votes rankset.Set
	frozen := n.gone
	for _, p := range n.processes {
		if p.vote.slot != slot || !fits(p.vote) {
			continue
		}
		votes = votes.Union(p.set)
		if !p.gone {
			frozen = frozen.Minus(frozen.Minus(p.vote.gone))
		}
	}
	return n.majority(votes) || !votes.Empty() && votes.Union(frozen) == rankset.Below(n.cfg.Size)
}

// deliberate does what follows from what all processes show: learns what was decided, votes, and
// leads an attempt if a member wants a decision. The caller holds mu.
func (n *Node) deliberate() {
	for n.learnChosen() || n.cast() || n.lead() {
	}
}

// learnChosen learns the value that enough processes have accepted.
func (n *Node) learnChosen() bool {
	slot := n.known.Load().Generation
	for _, p := range n.processes {
		v := p.vote
		if v.slot != slot || v.accepted == (ballot{}) || v.value.Generation <= slot {
			continue
		}
		if n.enough(slot, func(o vote) bool { return o.accepted == v.accepted }) {
			n.learn(v.value, nil)
			return true
		}
	}
	return false
}

// learn takes a decision that is later than the known one.
func (n *Node) learn(d control.Decision, from *link) {
	if d.Generation <= n.known.Load().Generation {
		return
	}
	if n.cfg.learned != nil {
		n.cfg.learned(*n.known.Load(), d, from == nil)
	}
	n.known.Store(&d)
	for _, m := range n.members {
		if d.Out.Has(m.rank) {
			control.AbortPage(m.page, channel.Fault{
				Cause: channel.CauseMasked, Rank: m.rank, Reporter: d.Leader, Generation: d.Generation,
			})
		}
	}
	for _, p := range n.processes {
		kept := p.aborts[:0]
		for _, a := range p.aborts {
			if !a.fault.Older(d.Generation) {
				kept = append(kept, a)
			}
		}
		p.aborts = kept
	}
	n.forward(decided(d), from)
}

func decided(d control.Decision) bootstrap.Message {
	return bootstrap.NewMessage(appendDecision([]byte{kindDecided}, d))
}

// cast votes for the latest attempt, and reports whether the vote has changed.
func (n *Node) cast() bool {
	if n.closed {
		return false
	}
	slot, own := n.known.Load().Generation, n.processes[n.cfg.Self]
	v := own.vote
	if v.slot != slot {
		v = vote{slot: slot}
	}
	for _, p := range n.processes {
		pr := p.proposal
		switch {
		case p.gone || pr.slot != slot || pr.ballot == (ballot{}):
		case pr.accept && !pr.ballot.before(v.promised) && v.accepted != pr.ballot:
			v.promised, v.accepted, v.value = pr.ballot, pr.ballot, pr.value
		case !pr.accept && v.promised.before(pr.ballot):
			v.promised = pr.ballot
		}
	}
	if v.gone = n.gone; v == own.vote || v.promised == (ballot{}) {
		return false
	}
	n.emit(whatVote, v.append(nil))
	return true
}

// wanted is what a member wants to take the place of the known decision.
func (n *Node) wanted() (want, bool) {
	slot := n.known.Load().Generation
	for _, r := range n.processes[n.cfg.Self].Ranks {
		if w, ok := n.wants[r]; ok && w.slot == slot {
			return w, true
		}
	}
	return want{}, false
}

// lead takes the next step of this process's attempt, and reports whether there was one.
func (n *Node) lead() bool {
	if n.closed {
		return false
	}
	slot := n.known.Load().Generation
	own := n.processes[n.cfg.Self].proposal
	w, wanted := n.wanted()
	if own.slot != slot || own.ballot == (ballot{}) {
		return wanted && n.try()
	}
	if wanted && own.ballot.before(n.highest()) && n.retry == nil {
		// Another attempt is underway. This one begins anew if that fails.
		n.retry = time.AfterFunc(time.Millisecond+rand.N(n.times.tick), func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.retry = nil
			if _, wanted := n.wanted(); wanted && !n.closed && n.try() {
				n.deliberate()
			}
		})
	}
	if own.accept || !n.enough(slot, func(v vote) bool { return v.promised == own.ballot }) {
		return false
	}
	// Of what was accepted in earlier attempts the last may have been decided, and is proposed again.
	last := ballot{}
	for _, p := range n.processes {
		if v := p.vote; v.slot == slot && last.before(v.accepted) {
			last, own.value = v.accepted, v.value
		}
	}
	if last == (ballot{}) {
		if !wanted {
			return false
		}
		own.value = w.next
	}
	own.accept = true
	n.emit(whatProposal, own.append(nil))
	return true
}

// try begins an attempt with a ballot above all that are known.
func (n *Node) try() bool {
	b := ballot{number: n.highest().number + 1, process: uint16(n.cfg.Self)}
	n.emit(whatProposal, proposal{slot: n.known.Load().Generation, ballot: b}.append(nil))
	return true
}

// highest is the highest ballot of the slot that this node knows of.
func (n *Node) highest() (b ballot) {
	slot := n.known.Load().Generation
	for _, p := range n.processes {
		if p.proposal.slot == slot && b.before(p.proposal.ballot) {
			b = p.proposal.ballot
		}
		if p.vote.slot == slot && b.before(p.vote.promised) {
			b = p.vote.promised
		}
	}
	return b
}
