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
// Every rank writes its counts and, for each (token, rank) pair, a record into its metadata, and
// reads that of all ranks: one exchange. From them each computes where its own rows go and which
// rows come here, in the same way on every rank.
func (h *host) route(ctx context.Context, op string, kind int, s *weft.Stream, topk,
	weights weft.Tensor,
) (*hostRouting, error) {
	round, err := h.enter(op)
	if err != nil {
		return nil, err
	}
	if err := h.claimMetadata(ctx, op, round); err != nil {
		return nil, err
	}
	out := h.metadata(h.Comm.Rank(), round)
	if own := cmp.Or(onHost(op, s), h.writeMetadata(op, &out, topk, weights)); own != nil {
		return nil, h.refuse(ctx, op, own)
	}
	h.far.showMetadata(&out, round)
	h.rounds.Open(uint64(newCall(kind, nil, false)))
	if err := h.awaitCalls(ctx, round, op, nil); err != nil {
		return nil, err
	}

	h.sumCounts(round)
	g := &h.Geometry
	if h.Spec.Overflow == spec.OverflowRefuse && h.Spec.Capacity > 0 {
		if o := g.Overflow(h.scratch.total, h.scratch.tokenTotal, h.Comm.Mask(), &h.scratch.zones); o != nil {
			return nil, cmp.Or(h.leave(ctx, op), error(o))
		}
	}
	r, src := h.newBatch(&out, topk, weights)
	if err := h.leave(ctx, op); err != nil {
		r.batch.Release()
		return nil, err
	}
	r.batch.Epoch = round
	if src >= 0 {
		r.batch.Release()
		return nil, h.rounds.Broken(&weft.PeerError{
			Rank: src, Op: op,
			Err: fmt.Errorf("%w: its routing contradicts itself", weft.ErrMismatch),
		})
	}
	return r, h.ended(nil)
}

// metadata is a rank's routing metadata of the operation that opens in a round.
func (h *host) metadata(rank int, round uint64) metadata {
	return metadataAt(&h.Geometry, h.routing[rank], round)
}

// claimMetadata waits until this rank's metadata of a round may be written: other hosts have got what was there.
func (h *host) claimMetadata(ctx context.Context, op string, round uint64) error {
	return h.rounds.AwaitShown(ctx, op, round-2)
}

// operand is where a rank's first or second operand of the operation in progress lies.
func (h *host) operand(rank, i int) enginehost.OperandRef {
	return h.rounds.Operand(rank, h.rounds.Last(), i)
}

// sumCounts adds up the counts of all ranks that take part.
func (h *host) sumCounts(round uint64) {
	clear(h.scratch.counts)
	clear(h.scratch.tokens)
	for _, r := range h.rounds.Live {
		m := h.metadata(r, round)
		h.scratch.views[r], h.scratch.counts[r], h.scratch.tokens[r] = m, m.counts, m.tokens
	}
	spec.SumCounts(h.scratch.total, h.scratch.before, h.scratch.counts, h.Comm.Rank())
	spec.SumCounts(h.scratch.tokenTotal, h.scratch.tokenBefore, h.scratch.tokens, h.Comm.Rank())
}

// writeMetadata fills this rank's metadata.
func (h *host) writeMetadata(op string, out *metadata, topk, weights weft.Tensor) error {
	if err := h.CheckRouting(op, topk, weights); err != nil {
		return err
	}
	g := &h.Geometry
	tokens, k := topk.Shape[0], g.TopK
	sel := spec.SelectionsOf(topk)
	clear(out.counts)
	clear(out.tokens)
	ranks := h.scratch.ranks
	for t := range tokens {
		clear(ranks)
		for j := range k {
			e := sel.At(t*k + j)
			if e == -1 {
				continue
			}
			if e < 0 || e >= int64(g.Experts) {
				return weft.Invalidf("%s: token %d selects expert %d of %d; -1 stands for none", op, t, e, g.Experts)
			}
			for i := range j {
				if sel.At(t*k+i) == e {
					return weft.Invalidf("%s: token %d selects expert %d twice; use -1 for the second and add "+
						"its weight to the first", op, t, e)
				}
			}
			out.counts[e]++
			ranks.add(int(e) / g.Local)
		}
		for d := range ranks.all() {
			out.tokens[d]++
		}
	}
	next := int32(0)
	cursor := h.scratch.cursor[:g.Ranks]
	for i := range g.Ranks {
		r := h.inOrder(i)
		out.first[r], cursor[r] = next, next
		next += out.tokens[r]
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

// inOrder is the i-th rank in the order of records: those of a host follow each other.
func (h *host) inOrder(i int) int {
	if h.far == nil {
		return i
	}
	return h.far.order[i]
}

// newBatch computes the routing from the metadata of all ranks. It also returns a rank whose metadata
// makes no sense, or -1.
func (h *host) newBatch(own *metadata, topk, weights weft.Tensor) (*hostRouting, int) {
	g := &h.Geometry
	r := h.newRouting()
	tokens := topk.Shape[0]
	r.batch.Tokens, r.batch.Masked = tokens, h.Comm.Operations().MaskPointer()
	r.batch.Weights = spec.WeightsIf(!weights.IsZero())
	n := tokens * g.TopK
	far := 0
	if h.far != nil {
		far = n + g.Ranks
	}
	r.ints = sized(r.ints, 2*n+tokens+1+4*g.Local+2*g.Ranks+1+g.Ranks*g.Local+far)
	buf := r.ints
	r.zones = spec.CarveZones(&buf, g.Local)
	r.experts, r.rows, r.firstDestination = spec.Carve(&buf, n), spec.Carve(&buf, n), spec.Carve(&buf, tokens+1)
	r.firstToken, r.tokens, r.counts = spec.Carve(&buf, g.Ranks+1), spec.Carve(&buf, g.Ranks), spec.Carve(&buf,
		g.Ranks*g.Local)
	if h.far != nil {
		r.nth, r.selected = spec.Carve(&buf, n), spec.Carve(&buf, g.Ranks)
		clear(r.selected)
	}
	g.ExpertZones(&r.zones, h.Comm.Rank(), h.scratch.total)
	h.placeTokens(r, own, topk, weights)
	bad := h.readTokens(r)
	if bad < 0 && h.byHost() {
		bad = h.readHosts(r)
	}
	return r, bad
}

func (h *host) SetWeights(_ context.Context, s *weft.Stream, r *spec.Batch, weights weft.Tensor) error {
	const op = spec.OpSetWeights
	if h.pending() {
		return weft.Invalidf("%s: the handle's %s has been sent and not received; receive it first", op, h.sent.op)
	}
	if err := onHost(op, s); err != nil {
		return err
	}
	h.routingOf(r).setWeights(weights)
	return nil
}

func (r *hostRouting) setWeights(weights weft.Tensor) {
	r.weights = append(r.weights[:0], weft.SliceOf[float32](weights)...)
	r.batch.Weights = spec.WeightsAtHome
}

// placeTokens computes where this rank's tokens went.
func (h *host) placeTokens(r *hostRouting, own *metadata, topk, weights weft.Tensor) {
	tokens := r.batch.Tokens
	if weights.IsZero() {
		r.weights = nil
	} else {
		r.weights = append(r.weights[:0], weft.SliceOf[float32](weights)...)
	}
	total := 0
	for _, d := range own.tokens {
		total += int(d)
	}
	r.destinations = sized(r.destinations, total)[:0]

	h.firstRows()
	r.hostTokens = sized(r.hostTokens, h.hosts)
	clear(r.hostTokens)
	sel := spec.SelectionsOf(topk)
	clear(h.scratch.sent)
	for t := range tokens {
		r.firstDestination[t] = int32(len(r.destinations))
		h.placeSelections(r, &sel, t)
		h.placeDestinations(r, t)
	}
	r.firstDestination[tokens] = int32(len(r.destinations))
	r.traffic.Tokens = tokens
}

// firstRows turns before, the selections of each expert by the ranks below this one, into the row of
// this rank's first selection. Zones of ExpertMajor all have the same size: there before is that row
// in the zone already.
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
		if r.nth != nil {
			r.nth[i] = r.selected[d]
			r.selected[d]++
		}
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

// placeDestinations lists the ranks that token t goes to, and finds its rows there in the layouts
// with one row per rank.
func (h *host) placeDestinations(r *hostRouting, t int) {
	g := &h.Geometry
	me, first, sent := h.Comm.Rank(), h.scratch.tokenBefore, h.scratch.sent
	for d := range h.scratch.ranks.all() {
		v := destination{
			rank: int32(d), index: first[d] + sent[d], nth: sent[d], row: -1, live: h.scratch.kept.has(d),
		}
		switch g.Layout {
		case spec.RankMajor:
			v.row, v.live = int32(me*g.Tokens+t), true
		case spec.TokenMajor:
			if int(v.index) < g.Capacity {
				v.row, v.live = v.index, true
			}
		}
		sent[d]++
		r.destinations = append(r.destinations, v)
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
	if h.byHost() {
		h.countHosts(r, t)
	}
	if h.Spec.Reduction == spec.PartialBySelection {
		r.orderDestinations(t)
	}
}

// orderDestinations puts the destinations of token t, which are the last ones, in the order of its
// last selections that have a row there. Those without one add nothing.
func (r *hostRouting) orderDestinations(t int) {
	g := &r.h.Geometry
	last, all := r.h.scratch.last, r.destinations[r.firstDestination[t]:]
	for _, v := range all {
		last[v.rank] = 0
	}
	for k := range g.TopK {
		if i := t*g.TopK + k; r.rows[i] >= 0 {
			last[int(r.experts[i])/g.Local] = int32(k)
		}
	}
	slices.SortStableFunc(all, func(a, b destination) int { return int(last[a.rank] - last[b.rank]) })
}

// readTokens computes the rows that come to this rank. It returns a rank whose metadata makes
// no sense, or -1: a rank that the others have left behind reads what they write without it, and
// must get out alive.
func (h *host) readTokens(r *hostRouting) int {
	g := &h.Geometry
	tokens, rows, bad := h.readCounts(r)
	if bad >= 0 {
		return bad
	}
	r.recvTokens = sized(r.recvTokens, tokens)[:0]
	if !g.Layout.ByExpert() {
		rows += tokens
	}
	r.recvRows = sized(r.recvRows, rows)[:0]
	copy(h.scratch.cursor[:g.Local], r.zones.Start)
	for src := range g.Ranks {
		r.firstToken[src] = int32(len(r.recvTokens))
		if r.tokens[src] > 0 && !h.readSource(r, src) {
			return src
		}
	}
	r.firstToken[g.Ranks] = int32(len(r.recvTokens))

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
			r.tokens[src] = 0
			continue
		}
		copy(own, c[me*g.Local:])
		for _, n := range own {
			if n < 0 || int(n) > g.Tokens {
				return 0, 0, src
			}
			selections += int(n)
		}
		n := h.scratch.tokens[src][me]
		if n < 0 || int(n) > g.Tokens {
			return 0, 0, src
		}
		r.tokens[src] = n
		tokens += int(n)
	}
	return tokens, selections, -1
}

// readSource appends the tokens and rows of one rank's records; false if they make no sense.
func (h *host) readSource(r *hostRouting, src int) bool {
	g := &h.Geometry
	view, n := &h.scratch.views[src], int(r.tokens[src])
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
		arrived := len(r.recvTokens)
		r.recvTokens = append(r.recvTokens, recvToken{token: token, first: int32(len(r.recvRows))})
		if !g.Layout.ByExpert() {
			row := int32(arrived)
			if g.Layout == spec.RankMajor {
				row = int32(src*g.Tokens) + token
			} else if arrived >= g.Capacity {
				row = -1
			}
			r.recvRows = append(r.recvRows, recvRow{row: row, k: -1})
		}
		if !h.addRows(r, &rec) {
			return false
		}
	}
	return true
}

// addRows appends the rows of a record's selections; false if one of them is no expert of this
// rank.
func (h *host) addRows(r *hostRouting, rec *record) bool {
	g := &h.Geometry
	next := h.scratch.cursor
	for k, le := range rec.experts {
		if le < 0 {
			continue
		}
		if int(le) >= g.Local {
			return false
		}
		l := recvRow{row: int32(le), k: int32(k), weight: rec.weights[k]}
		if g.Layout.ByExpert() {
			l.row = next[le]
			next[le]++
			if l.row-r.zones.Start[le] >= r.zones.Kept[le] {
				l.row = -1
			}
		}
		r.recvRows = append(r.recvRows, l)
	}
	return true
}
