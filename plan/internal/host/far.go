package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/plan/spec"
)

// far is what an engine has of ranks on other hosts. Plans share it, for none leaves a signal behind.
type far struct {
	comm       *weft.Comm
	rounds     *enginehost.Rounds
	links      []*link // by rank; nil for those of this host
	signals    []int   // the fabric's numbers: the first is of packets, then one for each channel between two ranks
	generation uint64
}

// link leads to a rank of another host.
type link struct {
	*far
	rank  int
	peer  *fabric.Peer
	taken []uint64 // of each signal from there: how many have been consumed
}

func newFar(comm *weft.Comm, rounds *enginehost.Rounds) *far {
	f := &far{
		comm: comm, rounds: rounds, links: make([]*link, comm.Size()), generation: comm.Operations().Generation(),
	}
	for r := range f.links {
		if peer := comm.Operations().FabricPeer(r); peer != nil && rounds.Far(r) {
			f.links[r] = &link{far: f, rank: r, peer: peer}
		}
	}
	return f
}

// claim makes sure that there are n signals. It is collective. A failure may have left some ranks with more than
// others; then all begin anew.
func (f *far) claim(ctx context.Context, op string, n int) error {
	notes, err := f.comm.Operations().GatherNotes(ctx, op, binary.LittleEndian.AppendUint32(nil, uint32(len(f.signals))))
	if err != nil {
		return err
	}
	enough := len(f.signals) >= n
	for _, note := range notes {
		if len(note) == 4 {
			has := int(binary.LittleEndian.Uint32(note))
			enough = enough && has == len(f.signals)
			n = max(n, has)
		}
	}
	if enough {
		return nil
	}
	first, err := f.comm.Operations().FabricSignals(ctx, op, n)
	if err != nil {
		return err
	}
	f.signals = f.signals[:0]
	for i := range n {
		f.signals = append(f.signals, first+i)
	}
	f.count()
	return nil
}

// count takes all signals that have come as consumed. No launch is underway.
func (f *far) count() {
	for _, l := range f.links {
		if l == nil {
			continue
		}
		l.taken = l.taken[:0]
		for _, id := range f.signals {
			l.taken = append(l.taken, l.peer.Signalled(id))
		}
	}
}

// settle comes behind the round that opens a launch. In a generation's first, what launches before it have signalled
// has landed, for [enginehost.Rounds.Begin] waits for that; once all ranks know how much it was they go on.
func (f *far) settle(ctx context.Context, op string) error {
	g := f.comm.Operations().Generation()
	if f.generation == g {
		return nil
	}
	f.count()
	if err := f.rounds.Await(ctx, op, f.rounds.Publish()); err != nil {
		return err
	}
	f.generation = g
	return nil
}

// come is how many signals of a number have come and were not consumed.
func (l *link) come(signal int) uint64 { return l.peer.Signalled(l.signals[signal]) - l.taken[signal] }

// has says whether the fabric has taken what it was asked to take. What fails ends the waits for the peer.
func (l *link) has(ok bool, err error) bool {
	if err != nil {
		l.rounds.Lose(l.rank, err)
	}
	return ok && err == nil
}

// flushed says whether all up to a mark has left this rank's memory.
func (l *link) flushed(m fabric.Mark) bool { return l.has(l.peer.Flushed(m)) }

// mailbox is what ranks of other hosts say of packets that they push here. A place of a channel takes a transfer's
// bytes as the fabric delivers them, in pieces; its line says which packets they are. When the signal behind it comes
// they become packets, by whole stores. Each transfer of a launch has a line of its own.
type mailbox struct {
	window  *weft.Window
	inbox   []int // by rank: where its lines begin in this rank's part
	come    []int // by rank: transfers of a launch
	outbox  []int // by rank: where this rank's lines for it begin in this rank's part
	there   []int // by rank: where they begin in that rank's part
	landing memory

	// Of a launch.
	sent []int // by rank: lines
	took []int // by rank
}

// lineBytes is one of a mailbox: where the packets begin and end in scratch.
const lineBytes = 16

// newMailbox makes the lines of a plan; nil if it pushes no packets to other hosts. It is collective.
func newMailbox(ctx context.Context, comm *weft.Comm, f *spec.File) (*mailbox, error) {
	n, self := comm.Size(), comm.Rank()
	transfers := make([][]int, n) // to, from
	for r := range transfers {
		transfers[r] = make([]int, n)
	}
	for at, op := range f.All() {
		if op.Via != spec.Port || !op.Kind.Packets() {
			continue
		}
		rank := &f.Ranks[at.Rank]
		for _, x := range op.Dst {
			if q := rank.Remotes[rank.Blocks[at.Block].Remote(op.Via, x.ID)].Rank; comm.Host(q) != comm.Host(at.Rank) {
				transfers[q][at.Rank]++
			}
		}
	}
	most := 0
	for r := range transfers {
		in, out := 0, 0
		for q := range transfers {
			in, out = in+transfers[r][q], out+transfers[q][r]
		}
		most = max(most, in+out)
	}
	if most == 0 {
		return nil, nil
	}
	m := &mailbox{
		come: transfers[self], inbox: make([]int, n), outbox: make([]int, n), there: make([]int, n),
		sent: make([]int, n), took: make([]int, n),
	}
	at := 0
	for r := range n {
		m.inbox[r] = at
		at += lineBytes * transfers[self][r]
	}
	for r := range n {
		m.outbox[r] = at
		at += lineBytes * transfers[r][self]
		for q := range self {
			m.there[r] += lineBytes * transfers[r][q]
		}
	}
	var err error
	m.window, err = comm.Alloc(ctx, lineBytes*most)
	return m, err
}

func (m *mailbox) close() error {
	err := m.landing.close()
	if m.window != nil {
		err = errors.Join(err, m.window.Close())
	}
	return err
}

// packets is the number of the signal that comes behind transfers of packets. Those of channels follow.
const packets = 0

// take makes packets of what has come.
func (r *rank) take() error {
	m := r.mail
	if m == nil {
		return nil
	}
	for q, l := range r.engine.far.links {
		if l == nil || m.took[q] == m.come[q] {
			continue
		}
		for n := l.come(packets); n > 0 && m.took[q] < m.come[q]; n-- {
			line := m.window.Bytes()[m.inbox[q]+lineBytes*m.took[q]:]
			from, to := binary.LittleEndian.Uint64(line), binary.LittleEndian.Uint64(line[8:])
			land, scratch := m.landing.window.Bytes(), r.scratch.window.Bytes()
			if from > to || from%8 != 0 || to%8 != 0 || to > uint64(min(len(land), len(scratch))) {
				return r.engine.rounds.Broken(&weft.PeerError{
					Rank: q, Op: r.plan.Name, Err: fmt.Errorf("%w: packets from %d to %d of scratch", weft.ErrMismatch, from, to),
				})
			}
			channel.CopySlot(scratch[from:to], land[from:to])
			m.took[q]++
			l.taken[packets]++
		}
	}
	return nil
}
