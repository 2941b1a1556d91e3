package spec

import "slices"

// Model has the constants of a machine from which costs are computed: those of a profile of package
// tuning. Times are in microseconds, rates in gigabytes a second.
type Model struct {
	// Of GPUs.
	Launch float64 `json:"launch_us,omitzero"` // a kernel, in a graph
	Load   float64 `json:"load_us,omitzero"`   // the first load from memory, and instructions around it
	Hop    float64 `json:"hop_us,omitzero"`    // a word on its way to a peer, until that one's poll sees it
	Spread float64 `json:"spread_us,omitzero"` // each doubling of the ranks beyond two
	Fence  float64 `json:"fence_us,omitzero"`  // between data and a counter
	Push   float64 `json:"push_gbps,omitzero"` // stores of every rank to all others
	Pull   float64 `json:"pull_gbps,omitzero"` // loads of every rank from all others
	Pair   float64 `json:"pair_gbps,omitzero"` // stores of one rank to one other
	Copy   float64 `json:"copy_gbps,omitzero"` // of a GPU's own memory, read and written

	// Measured are times that replace what formulas say.
	Measured []Measured `json:"-"`
}

// Measured is how long an algorithm took on some number of ranks. It holds for as many ranks and more, up
// to the next number that was measured.
type Measured struct {
	Algorithm string  `json:"algorithm"`
	Ranks     int     `json:"ranks"`
	InPlace   bool    `json:"in_place,omitzero"`
	Points    []Point `json:"points"` // by ascending bytes; one, at least
}

// Point is the time of one size.
type Point struct {
	Bytes  int     `json:"bytes"` // as [Request.Sent]
	Micros float64 `json:"us"`
}

// Micros is how long bytes take at a rate in gigabytes a second.
func Micros(bytes, gbps float64) float64 { return bytes / gbps / 1e3 }

// measured is the row that is closest to a request: of the most ranks that are not more than its own, in
// the request's placement if there is a row for that.
func (m *Model) measured(name string, q *Request) (best *Measured) {
	inPlace := q.Windows&InPlace != 0
	for i := range m.Measured {
		row := &m.Measured[i]
		if row.Algorithm != name || row.Ranks > q.Ranks {
			continue
		}
		if best == nil || row.Ranks > best.Ranks || row.Ranks == best.Ranks && row.InPlace == inPlace {
			best = row
		}
	}
	return best
}

// at is the time of so many bytes: on the lines through the points, level before the first, and beyond the
// last as the last two say.
func (m *Measured) at(bytes int) float64 {
	p := m.Points
	i, _ := slices.BinarySearchFunc(p, bytes, func(p Point, bytes int) int { return p.Bytes - bytes })
	if i == 0 || len(p) == 1 {
		return p[0].Micros
	}
	a, b := p[min(i, len(p)-1)-1], p[min(i, len(p)-1)]
	slope := (b.Micros - a.Micros) / float64(b.Bytes-a.Bytes)
	if i == len(p) {
		slope = max(slope, 0)
	}
	return b.Micros + slope*float64(bytes-b.Bytes)
}
