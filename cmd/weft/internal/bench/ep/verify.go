package ep

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/floats"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/ep"
)

// expected computes the results of the operations of one shape on one rank from all ranks' routing
// alone.
type expected struct {
	me, ranks int
	hosts     []int // by rank; nil: all are of one
	cfg       Shape
	spec      ep.Spec
	rows      *pattern
	payload   weft.DType // of the rows that arrive
	salt      int        // other rows for another salt, so that none that lies about is taken for a new one
	problem   string     // the first error
	gathered  []byte     // the scales of one row
}

// row returns the bytes of a token's row, divided by 2^down; do not change them.
func (m *expected) row(d weft.DType, source, token, down int) []byte {
	return m.rows.row(d, source, token+m.salt, down)
}

// scalesFor gives the exponents of the scales of a token's row.
func (m *expected) scalesFor(source, token int) func(block int) int {
	return m.rows.scales(source, token+m.salt)
}

// floats gives a token's row as numbers to be multiplied by 2^shift.
func (m *expected) floats(source, token int) (row []float32, shift int) {
	return m.rows.floats(source, token+m.salt)
}

// makeRows makes the contents of rows, when cfg and spec are set.
func (m *expected) makeRows() (err error) {
	m.payload = m.spec.Output
	if m.scaleBytes() > 0 {
		m.payload = weft.Float8E4M3
	}
	m.rows, err = newPattern(m.cfg.Hidden, m.spec.Output, m.payload)
	return err
}

func (m *expected) byExpert() bool {
	return m.spec.Layout == ep.ExpertMajor || m.spec.Layout == ep.ExpertPacked
}

// eachRow calls f for every row that a batch puts on this rank, where the contract puts
// it: which row of the received tensor, whose token it is, and its expert (for layouts
// with one row per rank: -1).
func (m *expected) eachRow(b *batch, f func(row, source, token, expert int)) {
	me, local, k := m.me, m.cfg.Experts/m.ranks, m.cfg.TopK
	here := func(e int32) bool { return e >= 0 && int(e)/local == me }
	if !m.byExpert() {
		row := 0
		for src, ids := range b.ids {
			for t := range m.cfg.Tokens {
				if m.spec.Layout == ep.RankMajor {
					row = src*m.spec.MaxTokens + t
				}
				for _, e := range ids[t*k : (t+1)*k] {
					if here(e) {
						f(row, src, t, -1)
						row++
						break
					}
				}
			}
		}
		return
	}
	// Zones begin at multiples of the capacity, or follow each other.
	counts := make([]int, local)
	for _, ids := range b.ids {
		for _, e := range ids {
			if here(e) {
				counts[int(e)%local]++
			}
		}
	}
	next := make([]int, local)
	for le := range local {
		switch {
		case m.spec.Layout == ep.ExpertMajor:
			next[le] = le * m.ranks * m.spec.MaxTokens
		case le > 0:
			next[le] = next[le-1] + counts[le-1]
		}
	}
	for src, ids := range b.ids {
		for i, e := range ids {
			if here(e) {
				le := int(e) % local
				f(next[le], src, i/k, int(e))
				next[le]++
			}
		}
	}
}

// at returns one row of a tensor of rows.
func (m *expected) at(t weft.Tensor, row int) []byte {
	n := m.cfg.Hidden * t.DType.Size()
	return t.Raw()[row*n : (row+1)*n]
}

func (m *expected) complain(format string, args ...any) {
	if m.problem == "" {
		m.problem = fmt.Sprintf(format, args...)
	}
}

// verdict is err, or else the recorded complaint, which it clears.
func (m *expected) verdict(err error) error {
	if p := m.problem; err == nil && p != "" {
		err = timing.Wrongf("%s", p)
	}
	m.problem = ""
	return err
}

// checkReceived compares every row that must have arrived.
func (m *expected) checkReceived(b *batch, received *ep.Received) {
	rows := 0
	var all []byte
	if m.scaleBytes() > 0 {
		all = received.Scales.Raw()
	}
	m.eachRow(b, func(row, src, token, expert int) {
		rows++
		if row >= received.Rows() {
			m.complain("dispatch: %d rows, so no row %d", received.Rows(), row)
			return
		}
		m.checkRow(m.at(received.Data, row), m.scalesOf(all, received.Scales, row), row, src, token, expert)
	})
	if received.Received() != rows {
		m.complain("dispatch: %d rows reported, %d sent", received.Received(), rows)
	}
}

// checkRow compares a row that must have arrived.
func (m *expected) checkRow(data, scales []byte, row, src, token, expert int) {
	if !bytes.Equal(data, m.row(m.payload, src, token, 0)) {
		m.complain("dispatch: row %d is not token %d of rank %d for expert %d", row, token, src, expert)
		return
	}
	if block := m.wrongScale(scales, m.scalesFor(src, token)); block >= 0 {
		m.complain("dispatch: scale %d of row %d, token %d of rank %d, is wrong", block, row, token, src)
	}
}

// scalesOf returns the scales of a row, in their order in the row, from what a tensor of scales
// holds. They are good until it is called again.
func (m *expected) scalesOf(all []byte, t weft.Tensor, row int) []byte {
	n := m.scaleBytes()
	if m.spec.ScaleOrder == ep.RowMajorScales || n == 0 {
		return all[row*n : (row+1)*n]
	}
	const word = 4 // an fp32 scale, or four of a byte
	zone := t.Shape[len(t.Shape)-1]
	at := row/zone*zone*n + row%zone*word
	m.gathered = m.gathered[:0]
	for range n / word {
		m.gathered = append(m.gathered, all[at:at+word]...)
		at += zone * word
	}
	return m.gathered
}

// scaleBytes is the size of the scales of a received row.
func (m *expected) scaleBytes() int {
	switch m.spec.Payload {
	case ep.FP8:
		return m.cfg.Hidden / ep.ScaleBlock * 4
	case ep.FP8UE8M0:
		return m.cfg.Hidden / ep.ScaleBlock
	}
	return 0
}

// putScales writes the scales of a row.
func (m *expected) putScales(to []byte, exponent func(block int) int) {
	for i := range m.cfg.Hidden / ep.ScaleBlock {
		if m.spec.Payload == ep.FP8 {
			binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(pow2(exponent(i))))
		} else {
			to[i] = byte(127 + exponent(i))
		}
	}
}

// wrongScale is the first of a row's scales that is not the power of two that it should be, or -1.
func (m *expected) wrongScale(scales []byte, exponent func(block int) int) int {
	switch m.spec.Payload {
	case ep.FP8:
		for i := 0; 4*i < len(scales); i++ {
			if math.Float32frombits(binary.LittleEndian.Uint32(scales[4*i:])) != pow2(exponent(i)) {
				return i
			}
		}
	case ep.FP8UE8M0:
		for i, s := range scales {
			if int(s) != 127+exponent(i) {
				return i
			}
		}
	}
	return -1
}

// down is the power of two by which an expert, or for layouts with one row per rank a
// rank, divides its rows.
func down(who int) int { return who % shifts }

// runExperts writes the experts' outputs to y. That is needed where it is checked; with fresh
// operands it is done always, so that caches are as after a matrix product.
func (m *expected) runExperts(b *batch, received *ep.Received, y weft.Tensor, check bool) {
	if !check && !m.cfg.Fresh {
		return
	}
	m.eachRow(b, func(row, src, token, expert int) {
		who := expert
		if expert < 0 {
			who = m.me
		}
		if row < received.Rows() {
			copy(m.at(y, row), m.row(m.spec.Output, src, token, down(who)))
		}
	})
}

// tokensChecked bounds how many tokens' sums are recomputed in an iteration.
const tokensChecked = 32

// checkHome recomputes the sums of some tokens, other ones in each iteration. out has those of all.
func (m *expected) checkHome(b *batch, out []byte, iteration int) {
	m.checkSums(b, out, iteration, "combine", m.spec.Weighting == ep.Weighted)
}

// checkSums is checkHome for any operation that sums, with weights or without.
func (m *expected) checkSums(b *batch, out []byte, iteration int, op string, weighted bool) {
	if m.cfg.Tokens == 0 {
		return
	}
	want := make([]byte, 0, m.cfg.Hidden*m.spec.Output.Size())
	for _, t := range m.someTokens(iteration) {
		var err error
		if want, err = m.home(want[:0], b, t, weighted); err != nil {
			m.complain("%v", err)
			return
		}
		if !bytes.Equal(out[t*cap(want):(t+1)*cap(want)], want) {
			m.complain("%s: the sum of token %d is wrong", op, t)
			return
		}
	}
}

// someTokens are those that an iteration looks at.
func (m *expected) someTokens(iteration int) []int {
	var some []int
	for i := range min(tokensChecked, m.cfg.Tokens) {
		some = append(some, (iteration*tokensChecked+i*7)%m.cfg.Tokens)
	}
	return some
}

// byHost joins what each host's ranks have.
func byHost[T any](m *expected, byRank [][]T) [][]T {
	joined := make([][]T, len(byRank))
	for r, all := range byRank {
		host := 0
		if m.hosts != nil {
			host = m.hosts[r]
		}
		joined[host] = append(joined[host], all...)
	}
	return joined
}

// home computes the sum of a token's rows.
func (m *expected) home(out []byte, b *batch, t int, weighted bool) ([]byte, error) {
	me, local, k := m.me, m.cfg.Experts/m.ranks, m.cfg.TopK
	ids, weights := b.ids[me][t*k:(t+1)*k], b.weights[t*k:(t+1)*k]
	values, shift := m.floats(me, t)

	// The experts return the token's row times a factor each.
	type term struct{ factor, weight float32 }
	var groups [][]term                                               // sums that are rounded before they are added
	byRank, ranks := make([][]term, m.ranks), make([]int, 0, m.ranks) // ranks in the order in which sums are added
	for i, e := range ids {
		if e < 0 {
			continue
		}
		r := int(e) / local
		if m.spec.Reduction == ep.PartialBySelection { // of the last ones there
			ranks = append(slices.DeleteFunc(ranks, func(other int) bool { return other == r }), r)
		}
		switch {
		case !m.byExpert():
			byRank[r] = []term{{pow2(shift - down(r)), 1}}
		default:
			byRank[r] = append(byRank[r], term{pow2(shift - down(int(e))), weights[i]})
		}
		if m.byExpert() && m.spec.Reduction == ep.Exact {
			groups = append(groups, byRank[r])
			byRank[r] = nil
		}
	}
	for r := range m.ranks {
		if m.spec.Reduction != ep.PartialBySelection {
			ranks = append(ranks, r)
		}
	}
	if m.spec.Reduction.ByHost() {
		byRank = byHost(m, byRank)
	}
	for _, r := range ranks {
		if byRank[r] != nil {
			groups = append(groups, byRank[r])
		}
	}
	exact := m.byExpert() && m.spec.Reduction == ep.Exact
	add := func(acc float32, x float32, w term) float32 {
		y := x * w.factor // exact
		if weighted {
			return floats.FMA(w.weight, y, acc)
		}
		return acc + y
	}
	for _, x := range values {
		var acc float32
		for _, g := range groups {
			if exact {
				acc = add(acc, x, g[0])
				continue
			}
			var part float32
			for _, w := range g {
				part = add(part, x, w)
			}
			if m.spec.Reduction != ep.PartialByHostFP32 {
				part = floats.Round(m.spec.Output, part)
			}
			acc += part
		}
		var err error
		if out, err = floats.Append(out, m.spec.Output, acc); err != nil {
			return nil, err
		}
	}
	return out, nil
}
