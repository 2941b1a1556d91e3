package pull

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/spec"
)

// hostRouting is what the host engine knows of a Routing.
type hostRouting struct {
	batch *spec.Batch
	h     *host
	ints  []int32 // the memory of the int32 slices below

	// Home: where this rank's tokens went.
	weights []float32 // [tokens, topk]; nil without weights
	experts []int32   // [tokens, topk]; -1 where there is none
	rows    []int32   // [tokens, topk]: the row at the expert's rank; -1 where nothing was sent
	// Of several hosts: the number of each selection among those of this rank's that go to the same rank, and
	// by rank how many these are.
	nth, selected []int32
	hostTokens    []int32  // by host: this rank's tokens that go there
	sums          hostSums // with sums for each host
	// The ranks that have token t, in the order in which their sums are added:
	// destinations[firstDestination[t]:firstDestination[t+1]].
	firstDestination []int32
	destinations     []destination

	// Here: the tokens that ranks send, by source rank, then token:
	// recvTokens[firstToken[src]:firstToken[src+1]].
	firstToken []int32
	recvTokens []recvToken
	// The rows of received token i: recvRows[recvTokens[i].first:recvTokens[i+1].first].
	recvRows []recvRow

	zones   spec.Zones
	counts  []int32 // [ranks, local experts]: selections by source
	tokens  []int32 // [ranks]: tokens by source
	total   int     // rows routed here, dropped ones included
	kept    int     // rows that exist
	traffic spec.Traffic
}

// destination is a rank that has one of this rank's tokens.
type destination struct {
	rank      int32
	nthOfHost int32 // of the token among those that this rank sends to the rank's host
	nth       int32 // of the token among those that this rank sends there
	index     int32 // of the token among those that the rank receives: where it leaves its partial sum
	row       int32 // the token's row, for layouts with one row per rank; -1 if it was dropped
	live      bool  // at least one row of it was kept
}

// recvToken is a token that a rank sends here.
type recvToken struct {
	token int32 // its index at its source
	first int32 // its first row
}

// recvRow is a row of a token here.
type recvRow struct {
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
	r.traffic = spec.Traffic{}
	r.batch = h.batches.Take()
	r.batch.Base, r.batch.Info = h.Base, r
	return r
}

// routingOf is what the host engine knows of a batch that [Batch.Check] has found to be this handle's.
func (h *host) routingOf(r *spec.Batch) *hostRouting { return r.Info.(*hostRouting) }

// sized returns a slice of length n, in the memory of s if it is large enough.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

func (r *hostRouting) Traffic() spec.Traffic { return r.traffic }

func (r *hostRouting) Rows() int {
	h := r.h
	if h.Spec.Layout.Packed() && h.Spec.Counts == spec.HostCounts {
		return r.kept
	}
	return h.Geometry.Rows()
}

func (r *hostRouting) Received() int { return r.kept }

func (r *hostRouting) RowsKnown() int { return r.kept }

func (r *hostRouting) Demand() int { return r.total }

// Tensor implements [Info].
func (r *hostRouting) Tensor(part spec.Part) weft.Tensor {
	switch part {
	case spec.RowDemand:
		return weft.TensorOf([]int32{int32(r.total)})
	case spec.ExpertCounts:
		return weft.TensorOf(r.zones.Kept)
	case spec.ExpertDemand:
		return weft.TensorOf(r.zones.Demand)
	case spec.PaddedCounts:
		return weft.TensorOf(r.zones.Padded)
	case spec.ExpertOffsets:
		return weft.TensorOf(r.zones.Start)
	case spec.SourceCounts:
		return weft.TensorOf(r.tokens)
	case spec.Ranges:
		return r.ranges()
	case spec.SourceTokens:
		return r.ofRows(func(_ int, a recvToken, _ recvRow) int32 { return a.token })
	case spec.SourceRanks:
		return r.ofRows(func(src int, _ recvToken, _ recvRow) int32 { return int32(src) })
	case spec.SourceSelections:
		return r.ofRows(func(_ int, _ recvToken, l recvRow) int32 { return l.k })
	case spec.RowWeights:
		return r.rowWeights()
	case spec.RowExperts:
		k := r.h.Spec.TopK
		experts := make([]int32, r.Rows()*k)
		for i := range experts {
			experts[i] = -1
		}
		putSelections(r, experts, nil)
		return weft.TensorOf(experts, r.Rows(), k)
	case spec.RowSelectionWeights:
		k := r.h.Spec.TopK
		weights := make([]float32, r.Rows()*k)
		putSelections[int32](r, nil, weights)
		return weft.TensorOf(weights, r.Rows(), k)
	}
	return weft.Tensor{}
}

func (r *hostRouting) ranges() weft.Tensor {
	g := &r.h.Geometry
	out := make([]int64, g.Local*g.Ranks)
	for le := range g.Local {
		begin := int32(0)
		for src := range g.Ranks {
			n := max(0, min(r.counts[src*g.Local+le], r.zones.Kept[le]-begin))
			out[le*g.Ranks+src] = int64(begin)<<32 | int64(n)
			begin += n
		}
	}
	return weft.TensorOf(out, g.Local, g.Ranks)
}

// ofRows is a number of each row, -1 for those that hold no token.
func (r *hostRouting) ofRows(number func(src int, a recvToken, l recvRow) int32) weft.Tensor {
	out := make([]int32, r.Rows())
	for i := range out {
		out[i] = -1
	}
	r.eachRow(func(src int, a recvToken, l recvRow) { out[l.row] = number(src, a, l) })
	return weft.TensorOf(out)
}

func (r *hostRouting) rowWeights() weft.Tensor {
	out := make([]float32, r.Rows())
	r.eachRow(func(_ int, _ recvToken, l recvRow) { out[l.row] = l.weight })
	return weft.TensorOf(out)
}

func (r *hostRouting) eachRow(f func(src int, a recvToken, l recvRow)) {
	for src := range r.h.Geometry.Ranks {
		for i := r.firstToken[src]; i < r.firstToken[src+1]; i++ {
			for _, l := range r.rowsOf(i) {
				if l.row >= 0 {
					f(src, r.recvTokens[i], l)
				}
			}
		}
	}
}

// putSelections writes the local experts of each row that holds a token, -1 for other ranks', and
// their weights, 0 for those; nil is not written.
func putSelections[N int32 | int64](r *hostRouting, experts []N, weights []float32) {
	k := r.h.Spec.TopK
	for i := range r.recvTokens {
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
				experts[row*k+int(s.k)] = N(s.row)
			}
			if weights != nil {
				weights[row*k+int(s.k)] = s.weight
			}
		}
	}
}

// allOf is what there is of received token i: rows, or for layouts with one row per rank the row and
// then the selections.
func (r *hostRouting) allOf(i int32) []recvRow {
	from := r.recvTokens[i].first
	to := int32(len(r.recvRows))
	if int(i)+1 < len(r.recvTokens) {
		to = r.recvTokens[i+1].first
	}
	return r.recvRows[from:to]
}

func (r *hostRouting) rowsOf(i int32) []recvRow {
	all := r.allOf(i)
	if !r.h.Spec.Layout.ByExpert() {
		all = all[:1] // the row; the selections follow it
	}
	return all
}

// selectionsOf lists, for layouts with one row per rank, the local experts of received token i, each
// as the row of a recvRow.
func (r *hostRouting) selectionsOf(i int32) []recvRow { return r.allOf(i)[1:] }

func (r *hostRouting) rowOf(i int32) int { return int(r.recvRows[r.recvTokens[i].first].row) }

// selectionsFrom is how many selections of a rank's come here.
func (r *hostRouting) selectionsFrom(src int) (n int) {
	local := r.h.Geometry.Local
	for _, k := range r.counts[src*local : (src+1)*local] {
		n += int(k)
	}
	return n
}
