package ep

import "github.com/weftgo/weft"

// hostRouting is what the host engine knows of a Routing.
type hostRouting struct {
	batch *Batch
	h     *host
	ints  []int32 // the memory of the int32 slices below

	// Home: where this rank's tokens went.
	weights []float32 // [tokens, topk]; nil without weights
	experts []int32   // [tokens, topk]; -1 where there is none
	rows    []int32   // [tokens, topk]: the row at the expert's rank; -1 where nothing was sent
	// The ranks that have token t, in the order in which their sums are added:
	// visits[visit[t]:visit[t+1]].
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

// Free implements [Info].
func (r *hostRouting) Free() {
	h := r.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.idle) < cap(h.idle) {
		h.idle = append(h.idle, r)
	}
}

// newRouting takes an idle Routing, or makes one, for a batch.
func (h *host) newRouting() *hostRouting {
	h.mu.Lock()
	defer h.mu.Unlock()
	var r *hostRouting
	if n := len(h.idle); n > 0 {
		r, h.idle = h.idle[n-1], h.idle[:n-1]
	} else {
		r = &hostRouting{h: h}
	}
	r.traffic = Traffic{}
	r.batch = h.batches.take()
	r.batch.base, r.batch.info = h.Base, r
	return r
}

// routingOf is what the host engine knows of a batch that [Batch.Check] has found to be this handle's.
func (h *host) routingOf(r *Batch) *hostRouting { return r.info.(*hostRouting) }

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

func (r *hostRouting) Traffic() Traffic { return r.traffic }

func (r *hostRouting) Rows() int {
	h := r.h
	if h.spec.Layout.packed() && h.spec.Counts == HostCounts {
		return r.kept
	}
	return h.geometry.rows()
}

func (r *hostRouting) Received() int { return r.kept }

func (r *hostRouting) Told() int { return r.kept }

func (r *hostRouting) Demand() int { return r.total }

// Tensor implements [Info].
func (r *hostRouting) Tensor(part Part) weft.Tensor {
	switch part {
	case RowDemand:
		return weft.TensorOf([]int32{int32(r.total)})
	case ExpertCounts:
		return weft.TensorOf(r.zones.kept)
	case ExpertDemand:
		return weft.TensorOf(r.zones.demand)
	case PaddedCounts:
		return weft.TensorOf(r.zones.padded)
	case ExpertOffsets:
		return weft.TensorOf(r.zones.start)
	case SourceCounts:
		return weft.TensorOf(r.distinct)
	case Ranges:
		return r.ranges()
	case SourceTokens:
		return r.ofRows(func(_ int, a arrival, _ landing) int32 { return a.token })
	case SourceRanks:
		return r.ofRows(func(src int, _ arrival, _ landing) int32 { return int32(src) })
	case SourceSelections:
		return r.ofRows(func(_ int, _ arrival, l landing) int32 { return l.k })
	case RowWeights:
		return r.rowWeights()
	case RowExperts:
		k := r.h.spec.TopK
		experts := make([]int32, r.Rows()*k)
		for i := range experts {
			experts[i] = -1
		}
		r.tellSelections(experts, nil)
		return weft.TensorOf(experts, r.Rows(), k)
	case RowSelectionWeights:
		k := r.h.spec.TopK
		weights := make([]float32, r.Rows()*k)
		r.tellSelections(nil, weights)
		return weft.TensorOf(weights, r.Rows(), k)
	}
	return weft.Tensor{}
}

func (r *hostRouting) ranges() weft.Tensor {
	g := &r.h.geometry
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

// ofRows is a number of each row, -1 for those that hold no token.
func (r *hostRouting) ofRows(number func(src int, a arrival, l landing) int32) weft.Tensor {
	out := make([]int32, r.Rows())
	for i := range out {
		out[i] = -1
	}
	r.eachLanding(func(src int, a arrival, l landing) { out[l.row] = number(src, a, l) })
	return weft.TensorOf(out)
}

func (r *hostRouting) rowWeights() weft.Tensor {
	out := make([]float32, r.Rows())
	r.eachLanding(func(_ int, _ arrival, l landing) { out[l.row] = l.weight })
	return weft.TensorOf(out)
}

func (r *hostRouting) eachLanding(f func(src int, a arrival, l landing)) {
	for src := range r.h.geometry.ranks {
		for i := r.arrive[src]; i < r.arrive[src+1]; i++ {
			for _, l := range r.landingsOf(i) {
				if l.row >= 0 {
					f(src, r.arrivals[i], l)
				}
			}
		}
	}
}

// tellSelections writes the local experts of each row that holds a token, -1 for other ranks', and
// their weights, 0 for those; nil is not written.
func (r *hostRouting) tellSelections(experts []int32, weights []float32) {
	k := r.h.spec.TopK
	for i := range r.arrivals {
		row := r.rowOf(int32(i))
		if row < 0 {
			continue
		}
		if experts != nil {
			for j := range k {
				experts[row*k+j] = -1
			}
		}
		if weights != nil {
			clear(weights[row*k : (row+1)*k])
		}
		for _, s := range r.selectionsOf(int32(i)) {
			if experts != nil {
				experts[row*k+int(s.k)] = s.row
			}
			if weights != nil {
				weights[row*k+int(s.k)] = s.weight
			}
		}
	}
}

// allOf is what there is of arrival i: rows, or for layouts with one row per rank the row and then
// the selections.
func (r *hostRouting) allOf(i int32) []landing {
	from := r.arrivals[i].first
	to := int32(len(r.landings))
	if int(i)+1 < len(r.arrivals) {
		to = r.arrivals[i+1].first
	}
	return r.landings[from:to]
}

func (r *hostRouting) landingsOf(i int32) []landing {
	all := r.allOf(i)
	if !r.h.spec.Layout.byExpert() {
		all = all[:1] // the row; the selections follow it
	}
	return all
}

// selectionsOf lists, for layouts with one row per rank, the local experts of arrival i; the
// landing's row holds the expert.
func (r *hostRouting) selectionsOf(i int32) []landing { return r.allOf(i)[1:] }

func (r *hostRouting) rowOf(i int32) int { return int(r.landings[r.arrivals[i].first].row) }
