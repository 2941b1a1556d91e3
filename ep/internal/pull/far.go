package pull

import (
	"context"
	"fmt"
	"math"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/engine/host/mirror"
	"github.com/weftgo/weft/ep/spec"
)

// far is how rows reach ranks of other hosts. A nil one is of a single host.
//
// A rank writes a token's row once to each other host that has an expert for it: to the keeper there, whose window
// all ranks of that host map and pull from. Rows that go home are written to their home itself.
type far struct {
	h      *host
	window *weft.Window // where ranks of other hosts put rows
	outbox *weft.Window // rows and numbers on their way home, where they lie in no window; nil: nothing is combined
	landings
	hostLast []int32
	order    []int  // ranks, host by host
	followed uint64 // 1 + the generation

	parts                   []mirror.Part
	spread, brought, dotted uint64 // rounds for which this rank last wrote into each kind of landing
}

// landings are where others' rows lie in a rank's part of the window. Each rank of another host has places of its
// own, so that what a rank which was left out writes late lies in no other's place.
type landings struct {
	index             [][]int32 // by host, and rank: its number among the ranks of other hosts
	rows, scalesAt    int       // bytes of the rows of a source, token by token, and where their scales begin
	sums, sumsAt      int       // bytes of the rows that come home from a rank, and where all these begin
	numbers, numberAt int       // the same of numbers
	bytes             int
}

// Counters of the own bytes of rounds.
const (
	spreadAt   = 0
	broughtAt  = channel.Stride
	summedAt   = 2 * channel.Stride
	farCounter = 3 * channel.Stride
)

// Counters show the number of a round and, in the lowest bits, how many chunks of its rows have come.
const (
	chunkBits  = 6
	allChunks  = 1<<chunkBits - 1
	mostChunks = allChunks - 1
	chunkBytes = 256 << 10 // at least: a chunk costs two small writes beside its rows
	linesOfAll = 4096      // bounds the chunks of a rank with many peers
)

// farBytes is how many of the own bytes of rounds go before the routing metadata.
func farBytes(comm *weft.Comm) int {
	if comm.Operations().Spans() {
		return farCounter
	}
	return 0
}

// farLines is how many chunks may be on their way between two ranks.
func farLines(comm *weft.Comm) int { return max(4, min(2*mostChunks, linesOfAll/comm.Size())) }

func newLandings(h *host) (l landings, err error) {
	g, s, n := &h.Geometry, &h.Spec, h.Comm.Size()
	l.index = make([][]int32, h.hosts)
	others := int32(0)
	for at := range l.index {
		l.index[at] = make([]int32, n)
		next := int32(0)
		for r := range n {
			if h.Comm.Host(r) != at {
				l.index[at][r] = next
				next++
			}
		}
		others = max(others, next)
	}
	tokens := float64(g.Tokens)
	row, scale := spec.AlignUp(s.RowSize()), spec.AlignUp(s.ScaleSize())
	most := tokens * float64(max(row+scale, s.OutputSize())+g.TopK*(s.SumSize()+4)+192)
	if most*float64(others) > math.MaxInt/8 {
		return l, weft.Unsupportedf("%d tokens of %d ranks on other hosts: together they need more memory than there are "+
			"addresses; lower MaxTokens or the size of a row", g.Tokens, others)
	}
	l.scalesAt = g.Tokens * row
	l.rows = spec.AlignUp(l.scalesAt + g.Tokens*scale)
	if s.Combines() {
		l.rows = max(l.rows, spec.AlignUp(g.Tokens*s.OutputSize()))
		perToken := 1
		if h.selects() {
			perToken = min(g.TopK, g.Local)
		}
		l.sums = spec.AlignUp(g.Tokens * perToken * s.SumSize())
		l.numbers = spec.AlignUp(g.Tokens * min(g.TopK, g.Local) * 4)
	}
	l.sumsAt = int(others) * l.rows
	l.numberAt = l.sumsAt + int(others)*l.sums
	l.bytes = l.numberAt + int(others)*l.numbers
	return l, nil
}

// selects says whether a row for each selection goes home, and not one for each token.
func (h *host) selects() bool { return h.Spec.Layout.ByExpert() && h.Spec.Reduction == spec.Exact }

func (h *host) newFar(ctx context.Context, alloc func(size int) (*weft.Window, error)) error {
	if !h.Comm.Operations().Spans() {
		return nil
	}
	f := &far{h: h}
	var err error
	if f.landings, err = newLandings(h); err != nil {
		return err
	}
	for host := range f.index {
		for r := range h.Comm.Size() {
			if h.Comm.Host(r) == host {
				f.order = append(f.order, r)
			}
		}
	}
	if f.window, err = alloc(f.bytes); err != nil {
		return err
	}
	if h.Spec.Combines() {
		if f.outbox, err = alloc(f.dotsAt() + f.numberOutbox()); err != nil {
			return err
		}
	}
	f.hostLast = make([]int32, h.hosts)
	h.far = f
	return nil
}

// follow finds the routing metadata of the ranks that take part: after a mask others may keep it.
func (f *far) follow() {
	if f == nil {
		return
	}
	if g := f.h.Comm.Operations().Generation() + 1; f.followed != g {
		f.followed = g
		for _, r := range f.h.rounds.Live {
			f.h.routing[r] = f.h.rounds.Shown(r)[farCounter:]
		}
	}
}

// numberOutbox is the size of the numbers that are on their way home. Selections without a row have one, too.
func (f *far) numberOutbox() int { return f.bytes - f.numberAt }

// chunk is how many of n rows go at once.
func (f *far) chunk(n, rowBytes int) int {
	most := min(mostChunks, max(1, farLines(f.h.Comm)/2-1))
	return max((n+most-1)/most, (chunkBytes+rowBytes-1)/rowBytes, 1)
}

// progress is the value of a counter when the chunk with a row has come; of the last one more is said.
func progress(round uint64, row, chunk int) uint64 { return round<<chunkBits | uint64(row/chunk+1) }

func complete(round uint64) uint64 { return round<<chunkBits | allChunks }

// claim is what comes before this rank writes into others' landings in a round that it has opened. It waits until
// nobody reads what it wrote there last: until all ranks have opened a later round. Of the last one this rank has seen
// that.
func (f *far) claim(ctx context.Context, op string, round uint64, last *uint64) error {
	before := *last
	*last = round
	if err := f.h.rounds.AwaitShipped(ctx, op); err != nil {
		return err
	}
	f.parts = f.parts[:0]
	if before+1 < round {
		return nil
	}
	return f.h.rounds.Await(ctx, op, round)
}

// showMetadata makes each other host get its part of the routing metadata with the next round.
func (f *far) showMetadata(out *metadata, round uint64) {
	if f == nil {
		return
	}
	at := farCounter + int(round%2)*int(f.h.Geometry.MetadataSize())
	for i := 0; i < len(f.order); {
		host, first, n := f.h.Comm.Host(f.order[i]), int(out.first[f.order[i]]), 0
		for ; i < len(f.order) && f.h.Comm.Host(f.order[i]) == host; i++ {
			n += int(out.tokens[f.order[i]])
		}
		head := f.h.Geometry.MetadataHead()
		f.h.rounds.Show(host, at, at+head)
		if n > 0 {
			f.h.rounds.Show(host, at+head+first*out.size, at+head+(first+n)*out.size)
		}
	}
}

// rowsMove is the rows of this rank's tokens on their way to experts.
type rowsMove struct {
	op                   string
	round                uint64
	r                    *hostRouting
	data, scales         enginehost.OperandRef
	rowBytes, scaleBytes int
}

// ship sends each other host the rows of the tokens that it has experts for, each once.
func (f *far) ship(ctx context.Context, m rowsMove) error {
	if f == nil {
		return nil
	}
	if err := f.claim(ctx, m.op, m.round, &f.spread); err != nil {
		return err
	}
	rounds, tokens := f.h.rounds, m.r.batch.Tokens
	n := f.chunk(f.h.Geometry.Tokens, m.rowBytes+m.scaleBytes)
	for first := 0; first == 0 || first < tokens; first += n {
		end := min(first+n, tokens)
		value := progress(m.round, first, n)
		if end == tokens {
			value = complete(m.round)
		}
		for host := range f.index {
			keeper := rounds.Keeper(host)
			if keeper < 0 {
				continue
			}
			begin := len(f.parts)
			f.addRuns(&m, host, keeper, first, end)
			if parts := f.parts[begin:len(f.parts):len(f.parts)]; len(parts) > 0 || end == tokens {
				rounds.Ship(keeper, spreadAt, value, parts)
			}
		}
		rounds.Pump()
	}
	rounds.ShippedAll()
	return nil
}

// addRuns adds the rows of tokens [from, to) that a host needs; tokens that follow each other go together.
func (f *far) addRuns(m *rowsMove, host, keeper, from, to int) {
	for t := from; t < to; t++ {
		if !f.needs(m.r, t, host) {
			continue
		}
		first := t
		for t+1 < to && f.needs(m.r, t+1, host) {
			t++
		}
		at := int(f.index[host][f.h.Comm.Rank()]) * f.rows
		f.addRun(m.data, keeper, at, first, t, m.rowBytes)
		if m.scaleBytes > 0 {
			f.addRun(m.scales, keeper, at+f.scalesAt, first, t, m.scaleBytes)
		}
	}
}

func (f *far) addRun(from enginehost.OperandRef, keeper, at, first, last, rowBytes int) {
	w, _ := f.h.Comm.Operations().Window(from.Window) // an operand of this rank's, which it has found itself
	stride := int(from.Stride)
	f.parts = append(f.parts, mirror.Part{
		From: w.Region(), Offset: int(from.Offset) + first*stride,
		To: f.window.Remote(keeper), At: at + first*stride,
		Bytes: (last-first)*stride + rowBytes,
	})
}

// needs says whether a host keeps a row of a token.
func (f *far) needs(r *hostRouting, token, host int) bool {
	for _, v := range r.destinations[r.firstDestination[token]:r.firstDestination[token+1]] {
		if v.live && f.h.Comm.Host(int(v.rank)) == host && f.h.live(int(v.rank)) {
			return true
		}
	}
	return false
}

// landed is where the rows of a rank of another host are read on this one.
func (f *far) landed(src int) []byte {
	mem := f.window.Peer(f.h.rounds.KeeperHere(src))
	return mem[int(f.index[f.here()][src])*f.rows:][:f.rows]
}

func (f *far) here() int { return f.h.Comm.Host(f.h.Comm.Rank()) }

// await waits until what a rank of another host ships has come up to a value: to the keeper, or home to this rank.
func (f *far) await(ctx context.Context, op string, src, counter int, value uint64) error {
	c := channel.CounterAt(f.counters(src, counter), counter)
	f.h.rounds.Pump()
	if step := f.h.rounds.Step; step != nil {
		step()
	}
	if c.Load() >= value {
		return nil
	}
	come := func() bool { return c.Load() >= value }
	if counter == spreadAt {
		return f.h.rounds.AwaitShowing(ctx, op, src, value>>chunkBits, come)
	}
	return f.h.rounds.AwaitFar(ctx, op, src, come)
}

func (f *far) counters(src, counter int) []byte {
	if counter == spreadAt {
		return f.h.rounds.Shown(src)
	}
	return f.h.rounds.OwnBytes(src)
}

// keep waits until all rows have come that this rank keeps for its host: others read them, and nobody else looks for
// them.
func (f *far) keep(ctx context.Context, op string, round uint64) error {
	me := f.h.Comm.Rank()
	for _, src := range f.h.rounds.Live {
		if !f.h.rounds.Far(src) || f.h.rounds.KeeperHere(src) != me {
			continue
		}
		if err := f.await(ctx, op, src, spreadAt, complete(round)); err != nil {
			return err
		}
	}
	return nil
}

// openFar is open for a source of another host.
func (m *mover) openFar(src int, last int32, op string) error {
	f, data, scales := m.h.far, m.h.operand(src, 0), m.h.operand(src, 1)
	mem := f.landed(src)
	m.stride, m.scaleStride = int(data.Stride), int(scales.Stride)
	m.data = pointer(mem)
	need := uint64(last)*uint64(data.Stride) + uint64(m.rowBytes)
	room := uint64(len(mem))
	fits := data.Window != 0 && data.Stride != 0
	if m.scaleBytes > 0 {
		m.scales = pointer(mem[f.scalesAt:])
		fits = fits && scales.Window != 0 &&
			uint64(last)*uint64(scales.Stride)+uint64(m.scaleBytes) <= room-uint64(f.scalesAt)
		room = uint64(f.scalesAt)
	}
	if !fits || need > room {
		return m.h.rounds.Broken(&weft.PeerError{
			Rank: src, Op: op,
			Err: fmt.Errorf("%w: it ships %d bytes where its routing needs %d", weft.ErrMismatch, room, need),
		})
	}
	return nil
}

// pullFar is the move of a source of another host: chunk by chunk as they come.
func (m *mover) pullFar(ctx context.Context, src int, from, to int32, op string) error {
	h, all := m.h, m.r.recvTokens
	if err := m.openFar(src, all[to-1].token, op); err != nil {
		return err
	}
	n := h.far.chunk(h.Geometry.Tokens, m.rowBytes+m.scaleBytes)
	for from < to {
		chunk := int(all[from].token) / n
		end := from + 1
		for end < to && int(all[end].token)/n == chunk {
			end++
		}
		if err := h.far.await(ctx, op, src, spreadAt, progress(m.round, chunk*n, n)); err != nil {
			return err
		}
		m.first = from
		h.each(int(end-from), int(end-from)*m.rowBytes, m)
		from = end
	}
	return nil
}

// pullHosts moves the rows of sources on other hosts.
func (m *mover) pullHosts(ctx context.Context, op string) error {
	h, r := m.h, m.r
	me, n := h.Comm.Rank(), h.Comm.Size()
	for i := range n {
		src := (me + i) % n
		from, to := r.firstToken[src], r.firstToken[src+1]
		switch {
		case from == to || !h.rounds.Far(src):
		case !h.live(src):
			m.zeroFrom(from, to)
		default:
			if err := m.pullFar(ctx, src, from, to, op); err != nil {
				return err
			}
		}
	}
	return h.far.keep(ctx, op, m.round)
}
