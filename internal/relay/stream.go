package relay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/parse"
	"github.com/weftgo/weft/internal/rankset"
)

// A message between two nodes begins with its kind. Numbers are little-endian.
const (
	kindDelta   = 1 + iota // process 16, number 64, what 8, and what the process says
	kindState              // process 16, number 64, and all that the process has said up to that number
	kindDecided            // a decision
	kindPing               // nothing
	kindLeave              // nothing; the sender leaves when the receiver has said bye
	kindBye                // nothing; the receiver need not pass on what follows
)

// What a process says in its stream.
const (
	whatBeat      = 1 + iota // nothing
	whatPart                 // rank 16, part 8, the part
	whatAbort                // an abort
	whatLeft                 // rank 16
	whatComplaint            // 1 + process 16
	whatNews                 // news
	whatProposal             // a proposal
	whatVote                 // a vote
	whatStatus               // of each of several: rank 16, part 8, length 16, the part
)

var (
	le           = binary.LittleEndian
	pingMessage  = bootstrap.NewMessage([]byte{kindPing})
	leaveMessage = bootstrap.NewMessage([]byte{kindLeave})
	byeMessage   = bootstrap.NewMessage([]byte{kindBye})
)

// abort sets the abort words of ranks.
type abort struct {
	from  int
	fault channel.Fault
	to    rankset.Set
}

// news is that a process is lost, and whether its end is certain.
type news struct {
	process int
	certain bool
	text    string
}

const maxText = 200

func appendRank(b []byte, rank int) []byte { return le.AppendUint16(b, uint16(rank)) }

func (a abort) append(b []byte) []byte {
	b = append(appendRank(b, a.from), byte(a.fault.Cause))
	b = appendRank(appendRank(b, a.fault.Rank), a.fault.Reporter)
	return control.AppendSet(le.AppendUint64(b, a.fault.Generation), a.to)
}

func (f *fields) abort() abort {
	return abort{
		from: int(f.U16()),
		fault: channel.Fault{
			Cause: channel.Cause(f.U8()), Rank: int(int16(f.U16())), Reporter: int(int16(f.U16())), Generation: f.U64(),
		},
		to: f.set(),
	}
}

func (m news) append(b []byte) []byte {
	b = append(appendRank(b, m.process), 0)
	if m.certain {
		b[len(b)-1] = 1
	}
	text := m.text[:min(len(m.text), maxText)]
	return append(append(b, byte(len(text))), text...)
}

func (f *fields) news() news {
	return news{process: int(f.U16()), certain: f.U8() == 1, text: string(f.Take(int(f.U8())))}
}

func appendDecision(b []byte, d control.Decision) []byte {
	return control.AppendSet(appendRank(le.AppendUint64(b, d.Generation), d.Leader), d.Out)
}

func (f *fields) decision() control.Decision {
	return control.Decision{Generation: f.U64(), Leader: int(f.U16()), Out: f.set()}
}

// fields takes a message apart.
type fields struct{ parse.Fields }

func (f *fields) set() rankset.Set {
	set, _, ok := control.CutSet(f.Take(8 * rankset.Words))
	f.Bad = f.Bad || !ok
	return set
}

// emit puts something into this process's stream: applies it here, and sends it to all neighbours.
// The caller holds mu.
func (n *Node) emit(what byte, body []byte) {
	own := n.processes[n.cfg.Self]
	own.seq++
	b := append(header(kindDelta, n.cfg.Self, own.seq), what)
	b = append(b, body...)
	if err := n.apply(own, what, &fields{parse.Fields{Rest: body}}); err != nil {
		panic(fmt.Sprintf("relay: own message of kind %d: %v", what, err))
	}
	n.forward(bootstrap.NewMessage(b), nil)
}

func header(kind byte, process int, seq uint64) []byte {
	return le.AppendUint64(le.AppendUint16([]byte{kind}, uint16(process)), seq)
}

// maxQueued is how many bytes may wait for a neighbour that does not read. One that connects anew
// gets everything anew.
const maxQueued = 64 << 20

// forward sends a message to all neighbours but the one that it came from. The caller holds mu.
func (n *Node) forward(m bootstrap.Message, from *link) {
	for l := range n.links {
		if l == from || l.shut {
			continue
		}
		if l.Queued() > maxQueued {
			n.cut(l)
			continue
		}
		l.Send(m)
	}
}

// cut ends a link; its reader sees that. The caller holds mu.
func (n *Node) cut(l *link) {
	if !n.closed {
		n.work.Go(l.Cut)
	}
}

// errMalformed says that a neighbour has sent what no node sends.
var errMalformed = fmt.Errorf("%w: malformed message between hosts", bootstrap.ErrProtocol)

// handle takes a message of a neighbour.
func (n *Node) handle(l *link, b []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.processes[l.peer].gone {
		return errMalformed // nothing of it is believed, not even what it passes on
	}
	l.heard, l.spoke = n.clock, true
	f := &fields{parse.Fields{Rest: b}}
	kind := f.U8()
	switch kind {
	case kindPing:
		return nil
	case kindLeave:
		n.leaves(l)
		return nil
	case kindBye:
		l.bye = true
		n.settle()
		if l.said && !(l.asked && l.parent) { // else it is an answer
			l.shut = true
			n.work.Go(func() { l.Shut(time.Now().Add(farewell)) })
		}
		return nil
	case kindDecided:
		d := f.decision()
		if f.Bad || d.Leader >= n.cfg.Size {
			return errMalformed
		}
		n.learn(d, l)
		n.deliberate()
		return nil
	case kindDelta, kindState:
	default:
		return errMalformed
	}
	i, seq := int(f.U16()), f.U64()
	if f.Bad || i >= len(n.processes) {
		return errMalformed
	}
	p := n.processes[i]
	if i == n.cfg.Self || p.gone || seq <= p.seq {
		return nil
	}
	var err error
	if kind == kindState {
		err = n.restore(p, f)
	} else if err = errMalformed; seq == p.seq+1 {
		err = n.apply(p, f.U8(), f)
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", i, err)
	}
	if p.seq == 0 {
		defer n.announce()
	}
	p.seq, p.missed = seq, 0
	n.hosts[p.Host] = n.clock
	n.forward(bootstrap.NewMessage(b), l)
	if p.told != nil {
		n.believe(i)
	}
	return nil
}

// apply does what a process says. The caller holds mu.
func (n *Node) apply(p *process, what byte, f *fields) error {
	switch what {
	case whatBeat:
	case whatPart:
		r, part := int(f.U16()), control.Part(f.U8())
		if f.Bad || !p.set.Has(r) {
			return errMalformed
		}
		if p.shown = p.shown.With(r); control.SetPart(n.pages[r], part, f.Rest) != nil {
			return errMalformed
		}
		f.Rest = nil
	case whatStatus:
		for len(f.Rest) > 0 {
			r, part, now := int(f.U16()), control.Part(f.U8()), f.Take(int(f.U16()))
			if f.Bad || !p.set.Has(r) {
				return errMalformed
			}
			if p.shown = p.shown.With(r); control.SetPart(n.pages[r], part, now) != nil {
				return errMalformed
			}
		}
	case whatAbort:
		a := f.abort()
		if f.Bad || !p.set.Has(a.from) {
			return errMalformed
		}
		n.abort(p, a)
	case whatLeft:
		r := int(f.U16())
		if f.Bad || !p.set.Has(r) {
			return errMalformed
		}
		n.leave(p, rankset.Of(r))
	case whatComplaint:
		if p.complaint = int(f.U16()) - 1; p.complaint >= len(n.processes) {
			return errMalformed
		}
	case whatNews:
		m := f.news()
		if f.Bad || m.process >= len(n.processes) {
			return errMalformed
		}
		p.told = append(p.told, m)
	case whatProposal:
		p.proposal = f.proposal()
		if f.Bad || p.proposal.value.Leader >= n.cfg.Size {
			return errMalformed
		}
		if p != n.processes[n.cfg.Self] {
			n.deliberate()
		}
	case whatVote:
		p.vote = f.vote()
		if f.Bad || p.vote.value.Leader >= n.cfg.Size {
			return errMalformed
		}
		if p != n.processes[n.cfg.Self] {
			n.deliberate()
		}
	default:
		return errMalformed
	}
	if f.Bad || len(f.Rest) > 0 {
		return errMalformed
	}
	return nil
}

// abort notes an abort, and does it to members.
func (n *Node) abort(p *process, a abort) {
	for r := range a.to.All() {
		if m := n.members[r]; m != nil {
			control.AbortPage(m.page, a.fault)
		}
	}
	for i := range p.aborts {
		if o := &p.aborts[i]; o.from == a.from && o.fault == a.fault {
			o.to = o.to.Union(a.to)
			return
		}
	}
	p.aborts = append(p.aborts, a)
}

// leave notes that ranks of a process have left. When all have, its end is certain.
func (n *Node) leave(p *process, ranks rankset.Set) {
	for r := range ranks.Minus(p.left).All() {
		p.left = p.left.With(r)
		n.tell(Event{Rank: r, Kind: Left, Err: bootstrap.ErrLeft}, nil)
	}
	if p.left == p.set && !p.gone && p != n.processes[n.cfg.Self] {
		n.bury(p)
	}
}

// state is all that a process has said.
func (n *Node) state(i int) []byte {
	p := n.processes[i]
	b := header(kindState, i, p.seq)
	b = p.vote.append(p.proposal.append(b))
	b = le.AppendUint16(b, uint16(p.complaint+1))
	b = le.AppendUint16(b, uint16(len(p.told)))
	for _, m := range p.told {
		b = m.append(b)
	}
	b = le.AppendUint32(b, uint32(len(p.aborts)))
	for _, a := range p.aborts {
		b = a.append(b)
	}
	b = control.AppendSet(control.AppendSet(b, p.shown), p.left)
	for r := range p.shown.All() {
		for _, part := range partsOfState {
			b = le.AppendUint16(b, 0)
			start := len(b)
			b = control.AppendPart(b, n.pages[r], part)
			le.PutUint16(b[start-2:], uint16(len(b)-start))
		}
	}
	return b
}

// In this order a view shows nothing early.
var partsOfState = [...]control.Part{
	control.Words, control.Said, control.Record, control.Intent, control.Former, control.Notes,
}

// restore makes a process's state what a neighbour knows of it.
func (n *Node) restore(p *process, f *fields) error {
	prop, v, complaint := f.proposal(), f.vote(), int(f.U16())-1
	var told []news
	for range f.U16() {
		if told = append(told, f.news()); f.Bad || told[len(told)-1].process >= len(n.processes) {
			return errMalformed
		}
	}
	var aborts []abort
	for range f.U32() {
		if aborts = append(aborts, f.abort()); f.Bad || !p.set.Has(aborts[len(aborts)-1].from) {
			return errMalformed
		}
	}
	shown, left := f.set(), f.set()
	if f.Bad || !p.set.Contains(shown) || !p.set.Contains(left) || complaint >= len(n.processes) ||
		prop.value.Leader >= n.cfg.Size || v.value.Leader >= n.cfg.Size {
		return errMalformed
	}
	p.proposal, p.vote, p.complaint, p.told = prop, v, complaint, told
	for _, a := range aborts {
		n.abort(p, a)
	}
	p.shown = shown
	for r := range shown.All() {
		for _, part := range partsOfState {
			if control.SetPart(n.pages[r], part, f.Take(int(f.U16()))) != nil {
				return errMalformed
			}
		}
	}
	if f.Bad || len(f.Rest) > 0 {
		return errMalformed
	}
	n.leave(p, left)
	n.deliberate()
	return nil
}

// show sends what has changed of members' statuses, in one message. The caller holds mu.
func (n *Node) show(members ...*Member) {
	var b []byte
	for _, m := range members {
		for i, part := range [...]control.Part{control.Words, control.Said, control.Record} {
			now := control.AppendPart(nil, m.page, part)
			if bytes.Equal(now, m.status[i]) || m.status[i] == nil && len(bytes.Trim(now, "\x00")) == 0 {
				continue
			}
			m.status[i] = now
			b = le.AppendUint16(append(appendRank(b, m.rank), byte(part)), uint16(len(now)))
			b = append(b, now...)
		}
	}
	if len(b) > 0 {
		n.emit(whatStatus, b)
	}
}
