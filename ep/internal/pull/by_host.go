package pull

import (
	"context"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine/host/mirror"
	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/simd"
)

// hostSums says which rows of this host's ranks belong to each token of a source: of this rank, which sums its own, and
// of each rank of another host, to which one of this host's ranks sends the sums. Which one that is may change with
// a mask, so every rank knows all of them.
type hostSums struct {
	first  []int32 // tokens of a source: tokens[first[src]:first[src+1]]
	tokens []int32 // the first row of each
	ids    []int32 // the number of each at its source
	rows   []hostRow
}

// hostRow is a row of a token, in the order in which they are added: of ranks, then selections.
type hostRow struct {
	rank, row, k int32
	weight       float32
}

// of is the rows of the i-th token.
func (s *hostSums) of(i int) []hostRow {
	to := int32(len(s.rows))
	if i+1 < len(s.tokens) {
		to = s.tokens[i+1]
	}
	return s.rows[s.tokens[i]:to]
}

// byHost says whether sums for each host go home.
func (h *host) byHost() bool { return h.Spec.Reduction.ByHost() }

// exactSums says whether they are fp32 where rows are not, and not rounded.
func (h *host) exactSums() bool {
	return h.Spec.Reduction == spec.PartialByHostFP32 && h.Spec.Output != weft.Float32
}

// near are the ranks of this host that take part.
func (h *host) near() []int {
	if h.far == nil {
		return h.rounds.Live
	}
	return h.rounds.Hosts()[h.far.here()]
}

// readHosts finds the rows of this host for all sources whose sums are formed here. It returns a rank whose metadata
// makes no sense, or -1.
func (h *host) readHosts(r *hostRouting) int {
	g, s := &h.Geometry, &r.sums
	s.first, s.tokens, s.rows = sized(s.first, g.Ranks+1), s.tokens[:0], s.rows[:0]
	s.ids = s.ids[:0]
	w := hostWalk{h: h, s: s, next: make([]int32, g.Experts), visits: make([]int32, g.Ranks), at: make([]int, g.Ranks)}
	for _, d := range h.near() {
		if g.Layout == spec.ExpertPacked {
			g.ExpertZones(&h.scratch.zones, d, h.scratch.total)
			copy(w.next[d*g.Local:], h.scratch.zones.Start)
		}
	}
	for src := range g.Ranks {
		s.first[src] = int32(len(s.tokens))
		counts := h.scratch.counts[src]
		if counts == nil {
			continue
		}
		if src == h.Comm.Rank() || h.rounds.Far(src) {
			if !w.walk(src) {
				return src
			}
			continue
		}
		for _, d := range h.near() {
			for e := d * g.Local; e < (d+1)*g.Local; e++ {
				w.next[e] += counts[e]
			}
			w.visits[d] += h.scratch.tokens[src][d]
		}
	}
	s.first[g.Ranks] = int32(len(s.tokens))
	return -1
}

// hostWalk goes through the records of a source for all ranks of this host.
type hostWalk struct {
	h      *host
	s      *hostSums
	next   []int32 // by expert: the next selection's row
	visits []int32 // by rank: the next token's row
	at     []int   // by rank: the next record
}

// walk adds the tokens of a source; false if its records make no sense.
func (w *hostWalk) walk(src int) bool {
	h, g := w.h, &w.h.Geometry
	view, tokens := &h.scratch.views[src], h.scratch.tokens[src]
	for _, d := range h.near() {
		w.at[d] = int(view.first[d])
		if n := tokens[d]; n < 0 || int(n) > g.Tokens || w.at[d] < 0 || w.at[d] > g.Records()-int(n) {
			return false
		}
	}
	for last := int32(-1); ; {
		token := int32(-1)
		for _, d := range h.near() {
			if w.at[d] < int(view.first[d]+tokens[d]) {
				rec := view.record(w.at[d])
				if t := *rec.token; token < 0 || t < token {
					token = t
				}
			}
		}
		if token < 0 {
			return true
		}
		if token <= last || int(token) >= g.Tokens {
			return false
		}
		last = token
		w.s.tokens, w.s.ids = append(w.s.tokens, int32(len(w.s.rows))), append(w.s.ids, token)
		for _, d := range h.near() {
			if w.at[d] >= int(view.first[d]+tokens[d]) {
				continue
			}
			if rec := view.record(w.at[d]); *rec.token == token {
				w.at[d]++
				if !w.add(src, d, &rec) {
					return false
				}
			}
		}
	}
}

// add adds the rows of a record of a rank.
func (w *hostWalk) add(src, rank int, rec *record) bool {
	g := &w.h.Geometry
	if !g.Layout.ByExpert() {
		row := int32(src*g.Tokens) + *rec.token
		if g.Layout == spec.TokenMajor {
			row = w.visits[rank]
		}
		w.visits[rank]++
		if int(row) < g.Rows() {
			w.s.rows = append(w.s.rows, hostRow{int32(rank), row, -1, 1})
		}
		return true
	}
	for k, le := range rec.experts {
		if le < 0 {
			continue
		}
		if int(le) >= g.Local {
			return false
		}
		e := rank*g.Local + int(le)
		row := w.next[e]
		w.next[e]++
		if int(row) >= g.Capacity {
			continue
		}
		if g.Layout == spec.ExpertMajor {
			row += int32(int(le) * g.Capacity)
		}
		w.s.rows = append(w.s.rows, hostRow{int32(rank), row, int32(k), rec.weights[k]})
	}
	return true
}

// reweigh gives the rows of all sources the weights that came with a dispatch.
func (h *host) reweigh(r *hostRouting, round uint64) {
	s := &r.sums
	if !h.byHost() || !h.Spec.Layout.ByExpert() {
		return
	}
	for src := range h.Geometry.Ranks {
		if s.first[src] == s.first[src+1] || !h.live(src) {
			continue
		}
		view := h.metadata(src, round)
		for _, d := range h.near() {
			i := int(s.first[src])
			for at, end := view.span(&h.Geometry, d); at < end; at++ {
				rec := view.record(at)
				for i < int(s.first[src+1])-1 && s.ids[i] < *rec.token {
					i++
				}
				for j, l := range s.of(i) {
					if int(l.rank) == d && s.ids[i] == *rec.token {
						s.of(i)[j].weight = rec.weights[l.k]
					}
				}
			}
		}
	}
}

// sumOfHost sums the rows of this host for the i-th token, rounded once; or not, where sums are of fp32, with room for
// a row of that type.
func (c *gather) sumOfHost(dst unsafe.Pointer, i int, room []float32) {
	s := &c.h.Spec
	n, t := s.OutputSize(), element(s.Output)
	var rows [spec.MaxTopK]unsafe.Pointer
	var weights [spec.MaxTopK]float32
	k := 0
	for _, l := range c.r.sums.of(i) {
		o := c.h.scratch.operands[l.rank]
		switch {
		case o.rows < 0:
			continue
		case int(l.row) >= o.rows:
			c.bad.Store(l.rank + 1)
			continue
		}
		rows[k], weights[k] = unsafe.Add(o.base, int(l.row)*n), l.weight
		k++
	}
	switch {
	case room != nil:
		if !c.weighted {
			for i := range k {
				weights[i] = 1
			}
		}
		wideSum(t, dst, room, rows[:k], weights[:k])
	case c.weighted:
		simd.WeightedSum(t, dst, s.Hidden, rows[:k], weights[:k], nil)
	default:
		simd.PlainSum(t, dst, s.Hidden, rows[:k], nil)
	}
}

// room is that of a sum's rows, where sums are of fp32 and rows are not; nil: none is needed.
func (h *host) room() []float32 {
	if !h.exactSums() {
		return nil
	}
	return make([]float32, h.Spec.Hidden)
}

// sumFar sums tokens of a rank of another host into the outbox.
type sumFar struct {
	*gather
	at, token int
}

func (s *sumFar) rows(from, to int) {
	n, room := s.h.Spec.SumSize(), s.h.room()
	for i := from; i < to; i++ {
		s.sumOfHost(unsafe.Add(pointer(s.h.far.outbox.Bytes()), (s.at+i)*n), s.token+i, room)
	}
}

// shipSums sends homes on other hosts the sums of this host's rows, of those homes for which this rank does that.
// All ranks of this host have opened the operation.
func (c *gather) shipSums(ctx context.Context) error {
	h, f, r := c.h, c.h.far, c.r
	if f == nil {
		return nil
	}
	if err := f.claim(ctx, c.op, c.round, &f.brought); err != nil {
		return err
	}
	if !c.Scalars.IsZero() {
		if err := f.claimDots(ctx, c.op, c.round); err != nil {
			return err
		}
		f.shipNumbers(r, c.round, c.Scalars.Data)
	}
	me, n, packed := h.Comm.Rank(), h.Spec.SumSize(), 0
	for i := range h.Comm.Size() {
		home := (me + i) % h.Comm.Size()
		from, to := int(r.sums.first[home]), int(r.sums.first[home+1])
		if from == to || !h.rounds.Far(home) || !h.live(home) || h.rounds.KeeperHere(home) != me {
			continue
		}
		at := f.sumsAt + int(f.index[h.Comm.Host(home)][me])*f.sums
		chunk := f.chunk(to-from, n)
		for first := 0; first < to-from; first += chunk {
			k := min(chunk, to-from-first)
			h.each(k, k*n*h.Spec.TopK, &sumFar{c, packed, from + first})
			value := progress(c.round, first, chunk)
			if first+k == to-from {
				value = complete(c.round)
			}
			f.parts = append(f.parts, mirror.Part{
				From: f.outbox.Region(), Offset: packed * n,
				To: f.window.Remote(home), At: at + first*n, Bytes: k * n,
			})
			h.rounds.Ship(home, summedAt, value, f.parts[len(f.parts)-1:len(f.parts):len(f.parts)])
			h.rounds.Pump()
			packed += k
		}
	}
	return nil
}

// awaitSums waits until the sums of tokens [from, to) have come from other hosts.
func (c *gather) awaitSums(ctx context.Context, from, to int) error {
	h, f, r := c.h, c.h.far, c.r
	last := f.hostLast
	clear(last)
	for _, v := range r.destinations[r.firstDestination[from]:r.firstDestination[to]] {
		last[h.Comm.Host(int(v.rank))] = v.nthOfHost + 1
	}
	for host, n := range last {
		keeper := h.rounds.Keeper(host)
		if n == 0 || host == f.here() || keeper < 0 {
			continue
		}
		chunk := f.chunk(int(r.hostTokens[host]), h.Spec.SumSize())
		value := progress(c.round, int(n)-1, chunk)
		if to == r.batch.Tokens {
			value = complete(c.round)
		}
		if err := f.await(ctx, c.op, keeper, summedAt, value); err != nil {
			return err
		}
	}
	return nil
}

// hostHome sums this rank's tokens from the sums of hosts.
type hostHome gather

func (c *hostHome) rows(from, to int) {
	h, r, s := c.h, c.r, &c.h.Spec
	n, t := s.OutputSize(), element(s.Output)
	own, room := make([]byte, s.SumSize()), h.room()
	home := newWideHome(h)
	var hosts [spec.MaxTopK]int
	var rows [spec.MaxTopK]unsafe.Pointer
	var bias [2]unsafe.Pointer
	for tok := c.first + from; tok < c.first+to; tok++ {
		for i := range c.Biases {
			bias[i] = unsafe.Add(c.Bias[i].Data, tok*n)
		}
		k := 0
		for _, v := range r.destinations[r.firstDestination[tok]:r.firstDestination[tok+1]] {
			if !v.live || !h.live(int(v.rank)) {
				continue
			}
			host := h.Comm.Host(int(v.rank))
			at := k // hosts are in ascending order, ranks need not be
			for at > 0 && hosts[at-1] > host {
				at--
			}
			if at > 0 && hosts[at-1] == host {
				continue
			}
			copy(hosts[at+1:k+1], hosts[at:k])
			copy(rows[at+1:k+1], rows[at:k])
			hosts[at], rows[at] = host, c.hostRow(host, &v, own, room)
			k++
		}
		if home != nil {
			home.sum(unsafe.Add(c.Out.Data, tok*n), rows[:k], bias[:c.Biases])
			continue
		}
		simd.PlainSum(t, unsafe.Add(c.Out.Data, tok*n), s.Hidden, rows[:k], bias[:c.Biases])
	}
}

// hostRow is a host's sum for a token: made here, of this host's rows, or come from there.
func (c *hostHome) hostRow(host int, v *destination, own []byte, room []float32) unsafe.Pointer {
	h := c.h
	if h.far == nil || host == h.far.here() {
		(*gather)(c).sumOfHost(pointer(own), int(c.r.sums.first[h.Comm.Rank()]+v.nthOfHost), room)
		return pointer(own)
	}
	return unsafe.Add(pointer(h.far.sumsFrom(h.rounds.Keeper(host))), int(v.nthOfHost)*h.Spec.SumSize())
}

// countHosts numbers the destinations of a token, which are the last ones, among the tokens that go to their hosts.
func (h *host) countHosts(r *hostRouting, t int) {
	all := r.destinations[r.firstDestination[t]:]
	for i := range all {
		host := h.Comm.Host(int(all[i].rank))
		seen := false
		for j := range all[:i] {
			if h.Comm.Host(int(all[j].rank)) == host {
				all[i].nthOfHost, seen = all[j].nthOfHost, true
				break
			}
		}
		if !seen {
			all[i].nthOfHost = r.hostTokens[host]
			r.hostTokens[host]++
		}
	}
}
