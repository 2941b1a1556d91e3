package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weftgo/weft/internal/rankset"
)

// op is a collective call. Joining is the first one of a job: it exchanges the addresses.
type op uint8

const (
	opJoin op = iota
	opAllGather
	opBarrier
)

func (o op) String() string { return [...]string{"join", "all-gather", "barrier"}[o] }

// hub is rank 0's state of the collectives.
type hub struct {
	shares [][]share // received and not used yet, by rank: at most one of the current and one of the next collective
	short  int       // how many ranks the collective that rank 0 is in still misses
}

func (m *mesh) AllGather(ctx context.Context, b []byte) ([][]byte, error) {
	if len(b) > MaxMessage {
		return nil, fmt.Errorf("all-gather: %w: %d bytes, at most %d", ErrTooLong, len(b), MaxMessage)
	}
	return m.collect(ctx, opAllGather, b)
}

func (m *mesh) Barrier(ctx context.Context) error {
	_, err := m.collect(ctx, opBarrier, nil)
	return err
}

// collect runs one collective: every rank's share goes to rank 0, and all of them come back. That
// is two rounds for every rank, however many there are; rank 0 takes the shares in any order.
func (m *mesh) collect(ctx context.Context, op op, b []byte) ([][]byte, error) {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%v: %w", op, late(ctx)) // not entered, so nothing is broken
	}
	m.mu.Lock()
	err := m.broken
	if m.closed {
		err = ErrClosed
	}
	if err != nil {
		m.mu.Unlock()
		return nil, err
	}
	s := share{seq: m.seq, op: op, bytes: bytes.Clone(b)}
	m.seq++
	m.since = time.Now()
	m.mu.Unlock()

	defer reportWhile(ctx, func(ctx context.Context) Wait {
		w := Wait{Op: op.String(), Ranks: m.missingRanks(ctx, s), Size: m.size, Address: m.meeting}
		m.mu.Lock()
		defer m.mu.Unlock()
		w.Refused = slices.Clone(m.refused)
		return w
	})()
	var blocks [][]byte
	if m.rank == 0 {
		blocks, err = m.gather(ctx, s)
	} else {
		blocks, err = m.contribute(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	return own(blocks), nil
}

// own copies blocks, which ranks of one process may share, into one allocation.
func own(blocks [][]byte) [][]byte {
	total := 0
	for _, b := range blocks {
		total += len(b)
	}
	all := make([]byte, 0, total)
	result := make([][]byte, len(blocks))
	for i, b := range blocks {
		start := len(all)
		all = append(all, b...)
		result[i] = all[start:len(all):len(all)]
	}
	return result
}

// stopped returns why the collective can't complete: a rank that will never enter it. The caller
// holds mu.
func (m *mesh) stopped(s share) error {
	for i := range m.faults {
		f := &m.faults[i]
		if m.limit[f.rank] <= s.seq {
			return f.err(s.op.String())
		}
	}
	return nil
}

// doomed returns why the job can't form: the fault of a rank that has not joined, or that died
// before all had. Rank 0 decides it, for all. The caller holds mu.
func (m *mesh) doomed() *fault {
	for _, n := range m.news {
		if m.limit[n.rank] == 0 {
			return &n.fault
		}
	}
	return nil
}

// gather is collect on rank 0.
func (m *mesh) gather(ctx context.Context, s share) ([][]byte, error) {
	m.mu.Lock()
	m.entered[0] = s.seq + 1
	m.hub.shares[0] = append(m.hub.shares[0], s)
	m.hub.short = len(m.absent(s.seq))
	m.mu.Unlock()

	err := m.wait(ctx, func() (bool, error) {
		if m.hub.short == 0 && m.doomed() == nil {
			m.formed = true
		}
		return m.hub.short == 0 && m.formed, m.stopped(s)
	})
	if err == errExpired {
		return nil, m.giveUpGather(ctx, s)
	}
	if err != nil {
		return nil, err
	}

	m.mu.Lock()
	g := gathered{seq: s.seq, blocks: make([][]byte, m.size)}
	calls := make([]op, m.size)
	for r, q := range m.hub.shares {
		g.blocks[r], calls[r] = q[0].bytes, q[0].op
		m.hub.shares[r] = q[1:]
	}
	links := make(map[link]int, m.size)
	for l, a := range m.peers {
		links[l] = a.rank
	}
	m.mu.Unlock()

	if camps := rankset.CampsOf(slices.All(calls)); camps.Differ() {
		// A fault has a rank, for the others' collectives. Where most do not agree it is one that differs from rank 0.
		culprit := camps.Culprit()
		if culprit < 0 {
			culprit = slices.IndexFunc(calls, func(o op) bool { return o != s.op })
		}
		f := fault{rank: uint32(culprit), reason: reasonMismatch, text: camps.Calling("calls", op.String)}
		m.observe(0, f)
		return nil, f.err(s.op.String())
	}
	p := pack(g.split()...)
	for l, peer := range links {
		m.post(peer, l, p)
	}
	return g.blocks, nil
}

// absent lists the ranks that have not entered a collective. The caller holds mu.
func (m *mesh) absent(seq uint64) []uint32 {
	var ranks []uint32
	for r, n := range m.entered {
		if n <= seq {
			ranks = append(ranks, uint32(r))
		}
	}
	return ranks
}

// takeShare handles a rank's message at rank 0.
func (m *mesh) takeShare(from int, s share) error {
	if m.rank != 0 {
		return fmt.Errorf("%w: share sent to rank %d", ErrProtocol, m.rank)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// No rank gets ahead of rank 0 by more than the one collective it may have entered first.
	if s.seq != m.entered[from] || s.seq > m.seq {
		return fmt.Errorf("%w: share of collective %d, where %d is due", ErrProtocol, s.seq, m.entered[from])
	}
	m.entered[from]++
	m.hub.shares[from] = append(m.hub.shares[from], s)
	if s.seq < m.seq && m.hub.short > 0 {
		if m.hub.short--; m.hub.short == 0 {
			m.wake()
		}
	}
	return nil
}

// giveUpGather ends a collective that rank 0's context ended, on every rank: without rank 0 it
// can't complete. It is the fault of a rank that did not come in time, or of rank 0 if it was
// cancelled.
func (m *mesh) giveUpGather(ctx context.Context, s share) error {
	cause := late(ctx)
	m.mu.Lock()
	f := fault{rank: 0, reason: reasonAborted, text: "rank 0 was cancelled"}
	ranks := m.absent(s.seq)
	var err error = fmt.Errorf("%v: %w", s.op, cause)
	if errors.Is(cause, ErrTimeout) && len(ranks) > 0 {
		f = fault{rank: ranks[0], reason: reasonTimeout, text: m.overdue(ranks, s.op, turnedAway(m.refused))}
		err = &PeerError{Rank: int(f.rank), Op: s.op.String(), Err: limited(cause, f.text)}
	} else {
		m.entered[0] = s.seq
	}
	m.broken = err
	m.mu.Unlock()
	m.observe(0, f)
	return err
}

// contribute is collect on the other ranks.
func (m *mesh) contribute(ctx context.Context, s share) ([][]byte, error) {
	m.mu.Lock()
	hub := m.out[0]
	err := m.stopped(s)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	m.post(0, hub, pack(s))
	var blocks [][]byte
	err = m.wait(ctx, func() (bool, error) {
		if m.complete(&blocks) {
			return true, nil
		}
		return false, m.stopped(s)
	})
	if err != errExpired {
		return blocks, err
	}
	return m.giveUpContribution(ctx, s, hub)
}

// complete takes the blocks of the collective in progress if all have come back. The caller holds
// mu.
func (m *mesh) complete(blocks *[][]byte) bool {
	if len(m.down) < m.size {
		return false
	}
	*blocks, m.down = m.down, nil
	return true
}

// takeGathered handles a message of rank 0 at another rank.
func (m *mesh) takeGathered(from int, g gathered) error {
	if from != 0 {
		return fmt.Errorf("%w: rank %d sent a message that only rank 0 sends", ErrProtocol, from)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return nil // for a collective that this rank has aborted
	}
	if g.seq+1 != m.seq || int(g.first) != len(m.down) || len(g.blocks) == 0 || len(g.blocks) > m.size-len(m.down) {
		return fmt.Errorf("%w: unexpected part of collective %d", ErrProtocol, g.seq)
	}
	m.down = append(m.down, g.blocks...)
	if len(m.down) == m.size {
		m.wake()
	}
	return nil
}

// inquiryTimeout bounds the wait of a rank whose deadline has passed for rank 0's answer to who was
// missing.
const inquiryTimeout = 250 * time.Millisecond

// giveUpContribution ends a collective that this rank's context ended. The rank asks rank 0 for the
// culprit; if rank 0 does not answer, it is the culprit. Should the collective complete meanwhile,
// all is well.
func (m *mesh) giveUpContribution(ctx context.Context, s share, hub link) ([][]byte, error) {
	cause := late(ctx)
	var err error = fmt.Errorf("%v: %w", s.op, cause)
	if errors.Is(cause, ErrTimeout) {
		m.mu.Lock()
		m.answer = nil
		m.mu.Unlock()
		m.post(0, hub, pack(inquiry{s.seq}))
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), inquiryTimeout)
		defer cancel()
		var blocks [][]byte
		werr := m.wait(grace, func() (bool, error) {
			return m.complete(&blocks) || m.answer != nil && m.answer.seq == s.seq, m.stopped(s)
		})
		if blocks != nil {
			return blocks, nil
		}
		if werr != nil && werr != errExpired {
			return nil, werr
		}
		err = m.lateRanks(cause, s.op)
	}
	m.mu.Lock()
	m.broken = err
	m.mu.Unlock()
	m.observe(m.rank, fault{rank: uint32(m.rank), reason: reasonAborted, text: cause.Error()})
	return nil, err
}

// lateRanks is the error of a rank whose deadline passed, after rank 0 was asked.
func (m *mesh) lateRanks(cause error, op op) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &PeerError{Op: op.String()}
	switch {
	case m.answer == nil:
		e.Err = fmt.Errorf("%w: rank 0 does not answer which rank is missing", cause)
	case len(m.answer.ranks) == 0:
		e.Err = fmt.Errorf("%w: every rank had entered the %v", cause, op)
	default:
		e.Rank = int(m.answer.ranks[0])
		e.Err = limited(cause, m.overdue(m.answer.ranks, op, m.answer.text))
	}
	return e
}

// overdue says which ranks have not entered the collective in progress, how long it lasts, where its ranks meet, and
// what bounds it: the words of a [LimitError]. The caller holds mu.
func (m *mesh) overdue(ranks []uint32, op op, more string) string {
	at := ""
	if m.meeting != "" {
		at = " at " + m.meeting
	}
	return fmt.Sprintf("%s%s in %s, which the context sets%s", describe(ranks, op), at, Seconds(time.Since(m.since)), more)
}

// limited is the error of a wait that ended at its context's deadline, in the words of [mesh.overdue].
func limited(cause error, overdue string) error {
	return &LimitError{fmt.Errorf("%w: %s", cause, overdue)}
}

// answerInquiry is rank 0's answer to which rank is missing. It needs no call on rank 0 to be in
// progress.
func (m *mesh) answerInquiry(from int, q inquiry) error {
	if m.rank != 0 {
		return fmt.Errorf("%w: inquiry sent to rank %d", ErrProtocol, m.rank)
	}
	m.mu.Lock()
	a := missing{seq: q.seq, ranks: m.absent(q.seq), text: turnedAway(m.refused)}
	l := m.out[from]
	m.mu.Unlock()
	m.post(from, l, pack(a))
	return nil
}

func (m *mesh) takeAnswer(from int, a missing) error {
	if from != 0 {
		return fmt.Errorf("%w: rank %d sent a message that only rank 0 sends", ErrProtocol, from)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answer = &a
	m.wake()
	return nil
}

// describe says which ranks have not entered a collective: "ranks 3, 5-7 have not joined".
func describe(ranks []uint32, op op) string {
	verb := " has"
	if len(ranks) > 1 {
		verb = " have"
	}
	text := rankset.Names(ranksOf(ranks)) + verb
	if op == opJoin {
		return text + " not joined"
	}
	return fmt.Sprintf("%s not entered the %v", text, op)
}
