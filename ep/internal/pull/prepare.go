package pull

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	enginehost "github.com/weftgo/weft/engine/host"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

func (h *host) Prepare(ctx context.Context, s *weft.Stream, a spec.PrepareArgs) (*spec.Batch, error) {
	r, err := h.route(ctx, spec.OpPrepare, callPrepare, s, a.TopK, a.Weights)
	if err != nil {
		return nil, err
	}
	return r.batch, nil
}

// route computes a Routing.
//
// Every rank writes its counts and, for each (token, rank) pair, a record on its board, and reads
// everyone's: one exchange. From them each computes where its own rows go and which rows come here,
// in the same way on every rank.
func (h *host) route(ctx context.Context, op string, kind int, s *weft.Stream, topk,
	weights weft.Tensor,
) (*hostRouting, error) {
	epoch, err := h.enter(op)
	if err != nil {
		return nil, err
	}
	out := h.own().routing(epoch)
	own := cmp.Or(onHost(op, s), h.writeRouting(op, &out, topk, weights))
	h.post(epoch, newCall(kind, nil, false), enginehost.OperandRef{}, enginehost.OperandRef{}, own)
	if err := h.awaitAll(ctx, epoch, op, own); err != nil {
		return nil, err
	}

	h.countBoards(epoch)
	g := &h.Geometry
	if h.Spec.Overflow == spec.OverflowRefuse && h.Spec.Capacity > 0 {
		if o := g.Overflow(h.scratch.total, h.scratch.visitTotal, h.Comm.Mask(), &h.scratch.zones); o != nil {
			return nil, cmp.Or(h.leave(epoch, op), error(o))
		}
	}
	r, src := h.readRouting(&out, topk, weights)
	if err := h.leave(epoch, op); err != nil {
		r.batch.Release()
		return nil, err
	}
	r.batch.Epoch = epoch
	if src >= 0 {
		r.batch.Release()
		return nil, h.broken(&weft.PeerError{
			Rank: src, Op: op,
			Err: fmt.Errorf("%w: its routing contradicts itself", weft.ErrMismatch),
		})
	}
	return r, nil
}

// countBoards adds up the routing of all ranks that have entered the epoch.
func (h *host) countBoards(epoch uint64) {
	for r, b := range h.boards {
		h.scratch.counts[r], h.scratch.visits[r] = nil, nil
		if h.scratch.notices[r] != nil {
			h.scratch.views[r] = b.routing(epoch)
			h.scratch.counts[r] = h.scratch.views[r].counts
			h.scratch.visits[r] = h.scratch.views[r].distinct
		}
	}
	spec.SumCounts(h.scratch.total, h.scratch.before, h.scratch.counts, h.Comm.Rank())
	spec.SumCounts(h.scratch.visitTotal, h.scratch.visitBefore, h.scratch.visits, h.Comm.Rank())
}

// writeRouting fills this rank's part of the board.
func (h *host) writeRouting(op string, out *routing, topk, weights weft.Tensor) error {
	if err := h.CheckRouting(op, topk, weights); err != nil {
		return err
	}
	g := &h.Geometry
	tokens, k := topk.Shape[0], g.TopK
	sel := spec.SelectionsOf(topk)
	clear(out.counts)
	clear(out.distinct)
	ranks := h.scratch.ranks
	for t := range tokens {
		clear(ranks)
		for j := range k {
			e := sel.At(t*k + j)
			if e == -1 {
				continue
			}
			if e < 0 || e >= int64(g.Experts) {
				return weft.Invalidf("token %d selects expert %d of %d; -1 stands for none", t, e, g.Experts)
			}
			for i := range j {
				if sel.At(t*k+i) == e {
					return weft.Invalidf("token %d selects expert %d twice; use -1 for the second and add "+
						"its weight to the first", t, e)
				}
			}
			out.counts[e]++
			ranks.add(int(e) / g.Local)
		}
		for d := range ranks.all() {
			out.distinct[d]++
		}
	}
	next := int32(0)
	cursor := h.scratch.cursor[:g.Ranks]
	for r, n := range out.distinct {
		out.first[r], cursor[r] = next, next
		next += n
	}
	var w []float32
	if !weights.IsZero() {
		w = weft.SliceOf[float32](weights)
	}
	for t := range tokens {
		clear(ranks)
		for j := range k {
			e := sel.At(t*k + j)
			if e < 0 {
				continue
			}
			d := int(e) / g.Local
			rec := out.record(int(cursor[d]))
			if !ranks.has(d) {
				ranks.add(d)
				*rec.token = int32(t)
				for i := range rec.experts {
					rec.experts[i] = -1
				}
			}
			rec.experts[j] = int16(int(e) - d*g.Local)
			if w != nil {
				rec.weights[j] = w[t*k+j]
			} else {
				rec.weights[j] = 1
			}
		}
		for d := range ranks.all() {
			cursor[d]++
		}
	}
	return nil
}

// readRouting computes the Routing from everyone's boards. It also returns a rank whose board makes
// no sense, or -1.
func (h *host) readRouting(own *routing, topk, weights weft.Tensor) (*hostRouting, int) {
	g := &h.Geometry
	r := h.newRouting()
	tokens := topk.Shape[0]
	r.batch.Tokens, r.batch.Masked, r.batch.Weights = tokens, h.Comm.Mask(), spec.WeightsIf(!weights.IsZero())
	n := tokens * g.TopK
	r.ints = sized(r.ints, 2*n+tokens+1+4*g.Local+2*g.Ranks+1+g.Ranks*g.Local)
	buf := r.ints
	r.zones = spec.CarveZones(&buf, g.Local)
	r.experts, r.rows, r.visit = spec.Carve(&buf, n), spec.Carve(&buf, n), spec.Carve(&buf, tokens+1)
	r.arrive, r.distinct, r.counts = spec.Carve(&buf, g.Ranks+1), spec.Carve(&buf, g.Ranks), spec.Carve(&buf,
		g.Ranks*g.Local)
	g.ExpertZones(&r.zones, h.Comm.Rank(), h.scratch.total)
	h.readHome(r, own, topk, weights)
	return r, h.readArrivals(r)
}

func (h *host) Weigh(_ context.Context, s *weft.Stream, r *spec.Batch, weights weft.Tensor) error {
	const op = spec.OpWeigh
	if h.pending != "" {
		return weft.Invalidf("%s: the handle's %s has been sent and not received; receive it first", op, h.pending)
	}
	if err := onHost(op, s); err != nil {
		return err
	}
	h.routingOf(r).weigh(weights)
	return nil
}

func (r *hostRouting) weigh(weights weft.Tensor) {
	r.weights = append(r.weights[:0], weft.SliceOf[float32](weights)...)
	r.batch.Weights = spec.WeightsAtHome
}

// readHome computes where this rank's tokens went.
func (h *host) readHome(r *hostRouting, own *routing, topk, weights weft.Tensor) {
	tokens := r.batch.Tokens
	if weights.IsZero() {
		r.weights = nil
	} else {
		r.weights = append(r.weights[:0], weft.SliceOf[float32](weights)...)
	}
	total := 0
	for _, d := range own.distinct {
		total += int(d)
	}
	r.visits = sized(r.visits, total)[:0]

	h.firstRows()
	sel := spec.SelectionsOf(topk)
	clear(h.scratch.sent)
	for t := range tokens {
		r.visit[t] = int32(len(r.visits))
		h.placeSelections(r, &sel, t)
		h.placeVisits(r, t)
	}
	r.visit[tokens] = int32(len(r.visits))
	r.traffic.Tokens = tokens
}

// firstRows turns before, the selections of each expert by the ranks below this one, into the row
// of this rank's first selection. Zones of ExpertMajor are alike: there what stands before in the
// zone is all there is to know.
func (h *host) firstRows() {
	g := &h.Geometry
	if g.Layout != spec.ExpertPacked {
		return
	}
	z := &h.scratch.zones
	for d := range g.Ranks {
		g.ExpertZones(z, d, h.scratch.total)
		for le, start := range z.Start {
			h.scratch.before[d*g.Local+le] += start
		}
	}
}

// placeSelections finds the rows of token t in the layouts by expert. It leaves the ranks that the
// token goes to, and those that keep a row of it, in the scratch.
func (h *host) placeSelections(r *hostRouting, sel *spec.Selections, t int) {
	g := &h.Geometry
	ranks, kept := h.scratch.ranks, h.scratch.kept
	clear(ranks)
	clear(kept)
	next := h.scratch.before
	for i := t * g.TopK; i < (t+1)*g.TopK; i++ {
		e := int32(sel.At(i))
		r.experts[i], r.rows[i] = e, -1
		if e < 0 {
			continue
		}
		r.traffic.Selections++
		d := int(e) / g.Local
		if !h.live(d) {
			continue
		}
		ranks.add(d)
		if !g.Layout.ByExpert() {
			continue
		}
		row := next[e]
		next[e]++
		if int(row) >= g.Capacity {
			continue
		}
		if g.Layout == spec.ExpertMajor {
			row += int32((int(e) - d*g.Local) * g.Capacity)
		}
		r.rows[i] = row
		kept.add(d)
	}
}

// placeVisits lists the ranks that token t goes to, and finds its rows there in the layouts with
// one row per rank.
func (h *host) placeVisits(r *hostRouting, t int) {
	g := &h.Geometry
	me, first, sent := h.Comm.Rank(), h.scratch.visitBefore, h.scratch.sent
	for d := range h.scratch.ranks.all() {
		v := visit{rank: int32(d), arrival: first[d] + sent[d], row: -1, live: h.scratch.kept.has(d)}
		switch g.Layout {
		case spec.RankMajor:
			v.row, v.live = int32(me*g.Tokens+t), true
		case spec.TokenMajor:
			if int(v.arrival) < g.Capacity {
				v.row, v.live = v.arrival, true
			}
		}
		sent[d]++
		r.visits = append(r.visits, v)
		if v.live {
			r.traffic.Visits++
			if d != me {
				r.traffic.RemoteRows++
			}
		}
		if g.Layout.ByExpert() {
			continue
		}
		for i := t * g.TopK; i < (t+1)*g.TopK; i++ {
			if e := r.experts[i]; e >= 0 && int(e)/g.Local == d {
				r.rows[i] = v.row
			}
		}
	}
	if h.Spec.Reduction == spec.PartialBySelection {
		r.orderVisits(t)
	}
}

// orderVisits puts the visits of token t, which are the last ones, in the order of its last
// selections that have a row there. Those without one add nothing.
func (r *hostRouting) orderVisits(t int) {
	g := &r.h.Geometry
	last := r.h.scratch.last
	for _, v := range r.visits[r.visit[t]:] {
		last[v.rank] = 0
	}
	for k := range g.TopK {
		if i := t*g.TopK + k; r.rows[i] >= 0 {
			last[int(r.experts[i])/g.Local] = int32(k)
		}
	}
	slices.SortStableFunc(r.visits[r.visit[t]:], func(a, b visit) int { return int(last[a.rank] - last[b.rank]) })
}

// readArrivals computes the rows that come to this rank. It returns a rank whose board makes no
// sense, or -1: a rank that the others have left behind reads what they write without it, and must
// get out alive.
func (h *host) readArrivals(r *hostRouting) int {
	g := &h.Geometry
	tokens, rows, bad := h.readCounts(r)
	if bad >= 0 {
		return bad
	}
	r.arrivals = sized(r.arrivals, tokens)[:0]
	if !g.Layout.ByExpert() {
		rows += tokens
	}
	r.landings = sized(r.landings, rows)[:0]
	copy(h.scratch.cursor[:g.Local], r.zones.Start)
	for src := range g.Ranks {
		r.arrive[src] = int32(len(r.arrivals))
		if r.distinct[src] > 0 && !h.readSource(r, src) {
			return src
		}
	}
	r.arrive[g.Ranks] = int32(len(r.arrivals))

	switch {
	case g.Layout.ByExpert():
		r.total, r.kept = r.zones.Total, r.zones.Rows
	case g.Layout == spec.TokenMajor:
		r.total, r.kept = tokens, min(tokens, g.Capacity)
	default:
		r.total, r.kept = tokens, tokens
	}
	r.traffic.Received = r.kept
	return -1
}

// readCounts takes over how much every rank sends here: tokens, and selections of each expert. It
// returns the sums, and a rank whose counts make no sense, or -1.
func (h *host) readCounts(r *hostRouting) (tokens, selections, bad int) {
	g := &h.Geometry
	me := h.Comm.Rank()
	for src, c := range h.scratch.counts {
		own := r.counts[src*g.Local : (src+1)*g.Local]
		if c == nil {
			clear(own)
			r.distinct[src] = 0
			continue
		}
		copy(own, c[me*g.Local:])
		for _, n := range own {
			if n < 0 || int(n) > g.Tokens {
				return 0, 0, src
			}
			selections += int(n)
		}
		n := h.scratch.visits[src][me]
		if n < 0 || int(n) > g.Tokens {
			return 0, 0, src
		}
		r.distinct[src] = n
		tokens += int(n)
	}
	return tokens, selections, -1
}

// readSource appends the arrivals and landings of one rank's records; false if they make no sense.
func (h *host) readSource(r *hostRouting, src int) bool {
	g := &h.Geometry
	view, n := &h.scratch.views[src], int(r.distinct[src])
	first := int(view.first[h.Comm.Rank()])
	if first < 0 || first > g.Records()-n {
		return false
	}
	last := int32(-1)
	for i := range n {
		rec := view.record(first + i)
		token := *rec.token
		if token <= last || int(token) >= g.Tokens {
			return false
		}
		last = token
		arrived := len(r.arrivals)
		r.arrivals = append(r.arrivals, arrival{token: token, first: int32(len(r.landings))})
		if !g.Layout.ByExpert() {
			row := int32(arrived)
			if g.Layout == spec.RankMajor {
				row = int32(src*g.Tokens) + token
			} else if arrived >= g.Capacity {
				row = -1
			}
			r.landings = append(r.landings, landing{row: row, k: -1})
		}
		if !h.land(r, &rec) {
			return false
		}
	}
	return true
}

// land appends the landings of a record's selections; false if one of them is no expert of this
// rank.
func (h *host) land(r *hostRouting, rec *record) bool {
	g := &h.Geometry
	next := h.scratch.cursor
	for k, le := range rec.experts {
		if le < 0 {
			continue
		}
		if int(le) >= g.Local {
			return false
		}
		l := landing{row: int32(le), k: int32(k), weight: rec.weights[k]}
		if g.Layout.ByExpert() {
			l.row = next[le]
			next[le]++
			if l.row-r.zones.Start[le] >= r.zones.Kept[le] {
				l.row = -1
			}
		}
		r.landings = append(r.landings, l)
	}
	return true
}
