package ep

import (
	"unsafe"

	"github.com/weftgo/weft"
)

// Routing is what Prepare makes of the tokens' selections: for every (token, selection) the rank and the row where it goes, and for this rank the
// rows that come. It stays good for any number of dispatches and combines of its handle, beside other Routings, and holds no memory but its own.
// Release, which may be left out, lets the handle's next Prepare use that memory again.
type Routing struct {
	handle *Handle
	ints   []int32 // the memory of the int32 slices below
	tokens int     // tokens of this rank
	masked uint64  // ranks left out when it was prepared
	epoch  uint64  // of its Prepare: the same on every rank

	// Home: where this rank's tokens went.
	weights []float32 // [tokens, topk]; nil without weights
	experts []int32   // [tokens, topk]; -1 where there is none
	rows    []int32   // [tokens, topk]: the row at the expert's rank; -1 where nothing was sent
	// The ranks that have token t, ascending: visits[visit[t]:visit[t+1]].
	visit  []int32
	visits []visit

	// Here: the tokens that came, by source rank, then token: arrivals[arrive[src]:arrive[src+1]].
	arrive   []int32
	arrivals []arrival
	// The rows of arrival i: landings[arrivals[i].first:arrivals[i+1].first].
	landings []landing

	zones    zones
	counts   []int32 // [ranks, local experts]: selections by source
	distinct []int32 // [ranks]: tokens by source
	total    int     // rows routed here, dropped ones included
	kept     int     // rows that exist
	traffic  Traffic
}

// visit is a rank that has one of our tokens.
type visit struct {
	rank    int32
	arrival int32 // its index among the rank's arrivals: where the rank leaves its partial sum
	row     int32 // the token's row, for layouts with one row per rank; -1 if it was dropped
	live    bool  // at least one row of it was kept
}

// arrival is a token that one of the ranks sends here.
type arrival struct {
	token int32 // at its source
	first int32 // its first landing
}

// landing is a row of a token here.
type landing struct {
	row    int32
	k      int32 // the selection; -1 for layouts with one row per rank
	weight float32
}

// Traffic counts what a dispatch by a Routing moves, in rows, from this rank's point of view. Times the bytes of a row it gives the usual ways to
// count bandwidth.
type Traffic struct {
	// Tokens this rank dispatches, and rows that it receives.
	Tokens, Received int
	// Selections of this rank's tokens (DeepEP's low-latency convention, local ones included).
	Selections int
	// Visits: distinct (token, rank) pairs of this rank's tokens (the logical convention, local ones included).
	Visits int
	// RemoteRows that cross to other ranks in the handle's wire form.
	RemoteRows int
}

// Release gives the Routing's memory back to its handle. The Routing, tensors that it returned, and received tensors as far as they describe their
// rows, must not be used after.
func (r *Routing) Release() {
	h := r.handle
	if h == nil {
		return
	}
	r.handle = nil
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.idle) < cap(h.idle) {
		h.idle = append(h.idle, r)
	}
}

// newRouting takes an idle Routing, or makes one.
func (h *Handle) newRouting() *Routing {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.idle)
	if n == 0 {
		return &Routing{handle: h}
	}
	r := h.idle[n-1]
	h.idle = h.idle[:n-1]
	r.handle, r.traffic = h, Traffic{}
	return r
}

// carve cuts n numbers off the front of buf.
func carve(buf *[]int32, n int) []int32 {
	s := (*buf)[:n:n]
	*buf = (*buf)[n:]
	return s
}

// sized returns a slice of length n, in the memory of s if it is large enough.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// Traffic returns the counts of this rank.
func (r *Routing) Traffic() Traffic { return r.traffic }

// Tokens is the number of tokens that this rank dispatches.
func (r *Routing) Tokens() int { return r.tokens }

// Rows is the number of rows of the tensors that Dispatch returns and Combine takes: what arrives for [HostCounts] with a packed layout, else the
// capacity.
func (r *Routing) Rows() int {
	h := r.handle
	if h.spec.Layout.packed() && h.spec.Counts == HostCounts {
		return r.kept
	}
	return h.geometry.rows()
}

// Received is the number of rows that exist here, pads included, dropped ones not.
func (r *Routing) Received() int { return r.kept }

// Demand is the number of rows routed here, pads and dropped ones included: more than [Routing.Received] when rows were dropped.
func (r *Routing) Demand() int { return r.total }

// ExpertCounts returns the rows that stand in each local expert's zone, pads not counted: int32 [local experts]. For layouts with one row per rank
// it counts the selections of each local expert. The tensor is borrowed from the Routing.
func (r *Routing) ExpertCounts() weft.Tensor { return weft.TensorOf(r.zones.kept) }

// ExpertDemand returns the selections of each local expert, dropped ones included: int32 [local experts].
func (r *Routing) ExpertDemand() weft.Tensor { return weft.TensorOf(r.zones.demand) }

// PaddedCounts returns the rows of each local expert's zone, pads included: int32 [local experts].
func (r *Routing) PaddedCounts() weft.Tensor { return weft.TensorOf(r.zones.padded) }

// ExpertOffsets returns the first row of each local expert's zone: int32 [local experts].
func (r *Routing) ExpertOffsets() weft.Tensor { return weft.TensorOf(r.zones.start) }

// SourceCounts returns the tokens that each rank sends here: int32 [ranks].
func (r *Routing) SourceCounts() weft.Tensor { return weft.TensorOf(r.distinct) }

// Ranges returns, for the layouts by expert, where each source rank's rows stand in each local expert's zone, as begin<<32 | count: int64 [local
// experts, ranks]. Begin counts from the start of the zone.
func (r *Routing) Ranges() weft.Tensor {
	g := &r.handle.geometry
	out := make([]int64, g.local*g.ranks)
	for le := range g.local {
		begin := int32(0)
		for src := range g.ranks {
			n := max(0, min(r.counts[src*g.local+le], r.zones.kept[le]-begin))
			out[le*g.ranks+src] = int64(begin)<<32 | int64(n)
			begin += n
		}
	}
	return weft.TensorOf(out, g.local, g.ranks)
}

// SourceTokens returns, for each row, the token's index at its source rank, or -1 for rows that hold no token: int32 [Rows()].
func (r *Routing) SourceTokens() weft.Tensor {
	out := make([]int32, r.Rows())
	for i := range out {
		out[i] = -1
	}
	r.eachLanding(func(_ int, a arrival, l landing) { out[l.row] = a.token })
	return weft.TensorOf(out)
}

// SourceRanks returns, for each row, its source rank, or -1 for rows that hold no token: int32 [Rows()].
func (r *Routing) SourceRanks() weft.Tensor {
	out := make([]int32, r.Rows())
	for i := range out {
		out[i] = -1
	}
	r.eachLanding(func(src int, _ arrival, l landing) { out[l.row] = int32(src) })
	return weft.TensorOf(out)
}

// RowWeights returns, for the layouts by expert, the weight of each row's selection, 0 for rows that hold no token: fp32 [Rows()].
func (r *Routing) RowWeights() weft.Tensor {
	out := make([]float32, r.Rows())
	r.eachLanding(func(_ int, _ arrival, l landing) { out[l.row] = l.weight })
	return weft.TensorOf(out)
}

func (r *Routing) eachLanding(f func(src int, a arrival, l landing)) {
	for src := range r.handle.geometry.ranks {
		for i := r.arrive[src]; i < r.arrive[src+1]; i++ {
			for _, l := range r.landingsOf(i) {
				if l.row >= 0 {
					f(src, r.arrivals[i], l)
				}
			}
		}
	}
}

// RowSelections returns, for the layouts with one row per rank, each row's local experts and their weights, in the order of the token's
// selections: int32 [Rows(), top-k], -1 where the selection is another rank's, and fp32 [Rows(), top-k], 0 there.
func (r *Routing) RowSelections() (experts, weights weft.Tensor) {
	k := r.handle.spec.TopK
	e := make([]int32, r.Rows()*k)
	for i := range e {
		e[i] = -1
	}
	w := make([]float32, r.Rows()*k)
	for src := range r.handle.geometry.ranks {
		for i := r.arrive[src]; i < r.arrive[src+1]; i++ {
			if row := r.rowOf(i); row >= 0 {
				for _, s := range r.selectionsOf(i) {
					e[row*k+int(s.k)] = s.row
					w[row*k+int(s.k)] = s.weight
				}
			}
		}
	}
	return weft.TensorOf(e, r.Rows(), k), weft.TensorOf(w, r.Rows(), k)
}

func (r *Routing) landingsOf(i int32) []landing {
	from := r.arrivals[i].first
	to := int32(len(r.landings))
	if int(i)+1 < len(r.arrivals) {
		to = r.arrivals[i+1].first
	}
	if !r.handle.spec.Layout.byExpert() {
		to = from + 1 // the row; the selections follow it
	}
	return r.landings[from:to]
}

// selectionsOf lists, for layouts with one row per rank, the local experts of arrival i; the landing's row holds the expert.
func (r *Routing) selectionsOf(i int32) []landing {
	from := r.arrivals[i].first + 1
	to := int32(len(r.landings))
	if int(i)+1 < len(r.arrivals) {
		to = r.arrivals[i+1].first
	}
	return r.landings[from:to]
}

func (r *Routing) rowOf(i int32) int { return int(r.landings[r.arrivals[i].first].row) }

// selections reads a tensor of expert indices, int32 or int64, one at a time.
type selections struct {
	narrow []int32
	wide   []int64
}

func selectionsOf(t weft.Tensor) selections {
	n := t.Elems()
	if t.DType == weft.Int64 {
		return selections{wide: unsafe.Slice((*int64)(t.Data), n)}
	}
	return selections{narrow: unsafe.Slice((*int32)(t.Data), n)}
}

func (s selections) at(i int) int64 {
	if s.wide != nil {
		return s.wide[i]
	}
	return int64(s.narrow[i])
}
